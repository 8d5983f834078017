"""Compares which samples the files of a dataset list: those of one file may stand in another one again."""

from __future__ import annotations

from collections.abc import Sequence

#: most samples that are remembered: 100 bytes each
MAX_REMEMBERED = 1_000_000


class RepeatedSamples:
    """The samples of the files of one dataset, by hashes. Files of other views of samples are added last.

    ``message``: which file repeats another one's samples, and what to do; empty: none does.
    """

    def __init__(self) -> None:
        self.message = ""
        self._files: dict[tuple[str, int], str] = {}

    def add(self, name: str, scope: str, samples: Sequence[int], *, is_view: bool = False) -> bool:
        """Add a file; return whether its samples count: those of a view do not if other files list all of them.

        ``scope``: samples of different scopes are different ones.
        """
        first = next((file for sample in samples if (file := self._files.get((scope, sample)))), "")
        number = sum((scope, sample) in self._files for sample in samples) if first else 0
        if is_view and number and number == len(samples):
            return False
        if number and not self.message:
            again = "the same samples" if number == len(samples) else f"{number:,} of the same samples"
            self.message = f"{first} and {name} list {again}, which count twice: remove one of the files"
        if len(self._files) + len(samples) <= MAX_REMEMBERED:
            self._files.update(dict.fromkeys(((scope, sample) for sample in samples), name))
        return True
