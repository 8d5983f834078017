"""Limits the bytes of samples in flight to the broker to what it acknowledges in time.

What a client has written cannot be taken back. Where a line is too slow for what a camera sees, samples whose deadline
is over still stand in the stream, and results, reports and every later sample wait behind them. So the bytes that the
broker has not acknowledged are bounded, the way TCP bounds what is in the network (Chiu and Jain 1989, additive
increase and multiplicative decrease): halved when a sample's deadline finds it not even acknowledged, raised by one
sample for each window that is. A line that keeps up never notices. Pure.
"""

from __future__ import annotations

#: bytes: where it starts, and what is never exceeded
MOST = 256 * 1024 * 1024


class CongestionWindow:
    """The limit in bytes. Call ``allows`` before each sample, then ``carried`` or ``late``."""

    def __init__(self) -> None:
        #: bytes
        self.window = MOST

    def allows(self, size: int, owed: int) -> bool:
        """Whether a sample of ``size`` bytes may go while ``owed`` are not acknowledged.

        It may behind what is less than itself: results and reports are always on their way, and must not keep it back.
        """
        return owed < size or owed + size <= self.window

    def carried(self, size: int) -> None:
        """A sample was acknowledged within its time."""
        if self.window < MOST:
            self.window = min(MOST, self.window + max(1, size * size // self.window))

    def late(self, size: int, owed: int) -> None:
        """The deadline of a sample is over and it is not acknowledged; ``owed`` bytes are not, its own included."""
        if owed:
            self.window = max(size, min(self.window, owed) // 2, 1)
