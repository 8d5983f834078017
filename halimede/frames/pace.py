"""How fast a model is, and what follows from it: places to offer, samples to take at once, samples not worth starting.

Pure: no clock, no bus.
"""

from __future__ import annotations

from collections import deque

#: weight of the newest call in the running mean
NEWEST = 0.3
#: calls that the fastest one is looked up in
KEPT = 32


class Pace:
    """The running mean of one model's time for a sample.

    ``queue`` and ``batch`` are the upper bounds; ``horizon_s`` is how much work may wait, in seconds of the model's
    time, so that a slow model is known as slow before its queue is full of samples that will be too late.
    ``lanes``: calls that run at a time.
    """

    def __init__(self, *, queue: int, batch: int, horizon_s: float, lanes: int = 1) -> None:
        self.service_ms = 0.0
        self._lanes = lanes
        self._queue = queue
        self._batch = batch
        self._horizon_ms = horizon_s * 1000
        self._calls: deque[float] = deque(maxlen=KEPT)

    def learn(self, samples: int, ms: float) -> None:
        """Take in one call of the model: how many samples, how many milliseconds."""
        each = ms / samples
        self.service_ms = each if not self.service_ms else self.service_ms + NEWEST * (each - self.service_ms)
        self._calls.append(ms)

    @property
    def places(self) -> int:
        """Samples that may wait: what the model answers within the horizon, and at least one."""
        if not self.service_ms:
            return self._queue
        return max(1, min(self._queue, int(self._horizon_ms * self._lanes / self.service_ms)))

    @property
    def batch(self) -> int:
        """Samples to take at once. The first call goes alone: how long the model takes is not known yet."""
        return min(self._batch, self.places) if self.service_ms else 1

    def hopeless(self, left_s: float) -> bool:
        """Whether even the fastest recent call took longer than the time left.

        Each refusal forgets one call: a model that was slow for a while gets to show that it no longer is.
        """
        if not self._calls or left_s * 1000 >= min(self._calls):
            return False
        self._calls.popleft()
        return True
