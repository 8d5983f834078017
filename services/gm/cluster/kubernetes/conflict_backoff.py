"""How long an object is left alone that somebody else was faster with: while what we know of it is old, every write is
in vain. One try after the other doubles the pause, until one succeeds or another version of the object is known.
"""

from __future__ import annotations

import asyncio

from services.gm.workqueue import reached

#: seconds
FIRST_PAUSE, LAST_PAUSE = 0.2, 8.0


class ConflictBackoff:
    """By uid; call ``end`` when an object has changed or is gone, so that nothing is kept of it."""

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._pauses)

    def hold(self, uid: str) -> bool:
        """Whether an object's pause is not over yet."""
        return uid in self._pauses and not reached(self._pauses[uid][1])

    def lengthen(self, uid: str) -> None:
        """Begin the next pause, twice as long as the last one."""
        last, _ = self._pauses.get(uid, (FIRST_PAUSE / 2, 0.0))
        pause = min(LAST_PAUSE, 2 * last)
        self._pauses[uid] = pause, asyncio.get_running_loop().time() + pause

    def end(self, uid: str) -> None:
        """Have the next write go out at once."""
        self._pauses.pop(uid, None)
