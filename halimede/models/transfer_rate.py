"""How fast something comes: measured by whoever waits for it, shown to people and held against a bound."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from halimede.models.errors import FetchError, FetchReason
from halimede.models.source_types import TransferLimits

#: seconds that a speed is the mean of, and between two of the points that it is made from
SPAN_S, STEP_S = 10.0, 0.5


class TransferRate:
    """Bytes a second over the last ten seconds, from what is told of progress. What was here at first has not come."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._points: deque[tuple[float, int]] = deque()

    def told(self, done: int) -> float:
        """Note how many bytes are here; return bytes a second, 0 until it can be said."""
        now = self._now()
        if self._points and done < self._points[-1][1]:
            self._points.clear()  # it began anew
        if not self._points:
            self._points.append((now, done))
            return 0.0
        first_at, first = self._points[0]
        rate = (done - first) / (now - first_at) if now > first_at else 0.0
        if now - self._points[-1][0] >= STEP_S:
            self._points.append((now, done))
            while now - self._points[1][0] > SPAN_S:
                self._points.popleft()
        return rate


async def not_slower(
    blocks: AsyncIterator[bytes], limits: TransferLimits, shown: str, now: Callable[[], float]
) -> AsyncIterator[bytes]:
    """Pass blocks on while they come at the least rate, measured over windows of the time spent waiting for them."""
    waited, came = 0.0, 0
    while True:
        began = now()
        try:
            async with asyncio.timeout(limits.rate_window_s) as window:
                block = await anext(blocks, None)
        except TimeoutError:
            if not window.expired():
                raise  # the source's own
            block = b""  # what keeps its connection awake may still send nothing
        if block is None:
            return
        waited += now() - began
        came += len(block)
        if waited >= limits.rate_window_s:
            if came < waited * limits.min_rate or not block:
                text = f"{shown} sends {came / waited:.0f} bytes a second, less than {limits.min_rate:g}"
                raise FetchError(FetchReason.TOO_SLOW, text, temporary=True)
            waited, came = 0.0, 0
        yield block
