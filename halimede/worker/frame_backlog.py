"""Detects that frames wait at the broker because the model is too slow, for the worker's report.

Frames that wait at the broker have no known age. So a model counts as too slow if the worker has had nearly as many
frames without an answer as it may have, for some time.
"""

from __future__ import annotations

import asyncio

from halimede.bus import Bus

#: part of the receive maximum from which frames may wait at the broker: a batch frees several frames at once. Hard
#: samples that wait for the next tier cannot reach it, because a slow tier is not a slow model
CROWDED = 0.9
#: seconds for which the worker has so many frames before it reports this: a burst of pictures is no trouble
BACKLOG_S = 15.0
#: message for users
TOO_SLOW = (
    "the model is slower than the cameras: frames wait at the broker, and answers get older. Set source.maxAgeMs, "
    "publish fewer frames, or use a faster model"
)


class FrameBacklog:
    """The backlog of the frames on ``bus``, which sends the worker at most ``receive_maximum`` without an answer."""

    def __init__(self, bus: Bus, receive_maximum: int) -> None:
        self._bus = bus
        self._crowd = CROWDED * receive_maximum
        #: loop time since which the worker has nearly as many frames as it may have; None: it has not
        self._since: float | None = None

    def trouble(self) -> str:
        """Return TOO_SLOW if frames have waited for BACKLOG_S, empty otherwise. Call it about once a second."""
        now = asyncio.get_running_loop().time()
        if self._bus.unacknowledged < self._crowd:
            self._since = None
            return ""
        if self._since is None:
            self._since = now
        return TOO_SLOW if now - self._since >= BACKLOG_S else ""
