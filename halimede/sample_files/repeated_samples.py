"""Detects samples that several files of a dataset list, and that would count twice: ``RepeatedSamples``."""

from __future__ import annotations

from collections.abc import Sequence

#: most samples that are remembered, at 130 bytes each; the samples of a file that exceeds it are not
MAX_REMEMBERED = 500_000


class RepeatedSamples:
    """The samples of the files of one dataset, as hashes.

    A view is a file that may list the same samples as other files for another purpose, such as captions. Add views
    last.

    Attributes:
        message: which file repeats the samples of another file, and what to do; empty: no file does.

    """

    def __init__(self) -> None:
        self.message = ""
        self._number = 0
        #: by scope, the last file of each sample
        self._files: dict[str, dict[int, str]] = {}

    def add(self, name: str, scope: str, samples: Sequence[int], *, is_view: bool = False) -> bool:
        """Add the samples of the file ``name``; return whether they count. Sets ``message`` if they count twice.

        The samples of a view do not count if other files list all of them. ``scope``: where the samples are, because
        equal hashes in two scopes are different samples.
        """
        files = self._files.setdefault(scope, {})
        repeated = [file for sample in samples if (file := files.get(sample))]
        if is_view and repeated and len(repeated) == len(samples):
            return False
        if repeated and not self.message:
            again = "the same samples" if len(repeated) == len(samples) else f"{len(repeated):,} of the same samples"
            both = " and ".join(sorted((name, repeated[0])))
            self.message = f"{both} list {again}, which count twice: remove one of the files"
        self._number += len(samples)
        if self._number <= MAX_REMEMBERED:
            files.update(dict.fromkeys(samples, name))
        return True
