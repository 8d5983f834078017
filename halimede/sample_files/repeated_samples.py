"""Compares which samples the files of a dataset list: those of one file may stand in another one again."""

from __future__ import annotations

from collections.abc import Sequence

#: most samples that are remembered: 130 bytes each
MAX_REMEMBERED = 500_000


class RepeatedSamples:
    """The samples of the files of one dataset, by hashes. Files of other views of samples are added last.

    ``message``: which file repeats another one's samples, and what to do; empty: none does.
    """

    def __init__(self) -> None:
        self.message = ""
        self._number = 0
        #: the first file of each sample, by scope
        self._files: dict[str, dict[int, str]] = {}

    def add(self, name: str, scope: str, samples: Sequence[int], *, is_view: bool = False) -> bool:
        """Add a file; return whether its samples count: those of a view do not if other files list all of them.

        ``scope``: samples of different scopes are different ones.
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
