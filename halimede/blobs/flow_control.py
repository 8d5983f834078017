"""How much is asked for at a time, of a source that nobody knows beforehand: decided here, from answers and silence.

Many small pieces in flight fill a fast line as well as few large ones, but a slow line must not be filled for seconds:
what a node has to say itself waits behind it. So pieces and their number grow while answers come fast, and shrink
where they come late or not at all.
"""

from __future__ import annotations

#: bytes of one piece
SMALLEST, FIRST, LARGEST = 16 * 1024, 64 * 1024, 1024 * 1024
#: pieces in flight
MOST = 16
#: seconds from question to answer: below, more is asked for; above, less
FAST, SLOW = 0.1, 0.75
#: seconds until a piece counts as lost
SOONEST, FIRST_WAIT, LATEST = 1.0, 4.0, 20.0


class FlowControl:
    """Pieces in flight, bytes of each, and how long to wait for one."""

    def __init__(self) -> None:
        self.window = 2
        self.length = FIRST
        self.wait_s = FIRST_WAIT
        self._mean: float | None = None
        self._deviation = 0.0

    def came(self, seconds: float) -> None:
        """Take note of a piece that came so long after it was asked for."""
        if self._mean is None:
            self._mean, self._deviation = seconds, seconds / 2
        else:
            self._deviation += (abs(seconds - self._mean) - self._deviation) / 4
            self._mean += (seconds - self._mean) / 8
        self.wait_s = min(LATEST, max(SOONEST, self._mean + 8 * self._deviation))
        if seconds <= FAST:
            self._more()
        elif seconds >= SLOW:
            self._less()

    def lost(self) -> None:
        """Take note of a piece that did not come."""
        self.wait_s = min(LATEST, self.wait_s * 2)
        self._less()

    def _more(self) -> None:
        if self.window < MOST:
            self.window += 1
        else:
            self.length = min(LARGEST, self.length * 2)

    def _less(self) -> None:
        if self.length > FIRST:
            self.length //= 2
        elif self.window > 1:
            self.window -= 1
        else:
            self.length = max(SMALLEST, self.length // 2)
