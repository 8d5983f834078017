"""Bounds of an edge worker, and the frames that remain their source's until they are answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Bounds of an edge worker: frames inside, frames in one model call, seconds of one call, ids remembered.

    There is more room inside than hard samples can take up, so that easy ones always get through: of ``patient`` ones,
    which could wait at their source, so many are let in. ``pixels`` bounds the bytes of decoded frames that wait for
    the model: a picture may be a thousand times as large as its file.
    """

    inside: int = 96
    patient: int = 16
    pixels: int = 256 * 1024 * 1024
    batch: int = 16
    horizon_s: float = 0.05
    remembered: int = 65_536


class Owed:
    """Whom to tell when a frame is answered: its source keeps it until then."""

    def __init__(self) -> None:
        self._owed: dict[bytes, list[Callable[[], None]]] = {}

    def __contains__(self, id_: bytes) -> bool:
        return id_ in self._owed

    def add(self, id_: bytes, answered: Callable[[], None]) -> None:
        """Note whom to tell about a frame; one that came again has several."""
        self._owed.setdefault(id_, []).append(answered)

    def again(self, id_: bytes, answered: Callable[[], None]) -> None:
        """Take note of a frame that came again: told now, or when it is answered."""
        if id_ in self._owed:
            self.add(id_, answered)
        else:
            answered()

    def forget(self, id_: bytes) -> None:
        """Tell nobody: its source knows what became of it."""
        self._owed.pop(id_, None)

    def settle(self, id_: bytes) -> bool:
        """Tell everybody; return whether there was anybody."""
        owed = self._owed.pop(id_, None)
        if owed is None:
            return False
        for answered in owed:
            answered()
        return True
