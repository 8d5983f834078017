"""Detects that frames wait at the broker: the worker has nearly as many without an answer as it may have.

A worker is asked about once a second, for its report. Frames that wait at the broker have no known age, so a model that
is too slow is recognised by the number of frames that the worker has.
"""

from __future__ import annotations

import asyncio

from halimede.bus import Bus

#: share of the receive maximum from which frames may wait at the broker: a batch frees several at once. It is more than
#: hard samples that wait for the next tier can have (``OffloadClient``): a slow tier is not a slow model
CROWDED = 0.9
#: seconds for which the worker has so many, before it reports this: a burst of pictures is no trouble
BACKLOG_S = 15.0
TOO_SLOW = (
    "the model is slower than the cameras: frames wait at the broker, and answers get older. Set source.maxAgeMs, "
    "publish fewer frames, or use a faster model"
)


class FrameBacklog:
    """The backlog of the frames on ``bus``, of which the worker has at most ``receive_maximum``."""

    def __init__(self, bus: Bus, receive_maximum: int) -> None:
        self._bus = bus
        self._crowd = CROWDED * receive_maximum
        #: loop time since which the worker has nearly as many frames as it may have; None: it has not
        self._since: float | None = None

    def trouble(self) -> str:
        """Return that frames have waited at the broker for some time, empty otherwise."""
        now = asyncio.get_running_loop().time()
        if self._bus.unacknowledged < self._crowd:
            self._since = None
            return ""
        if self._since is None:
            self._since = now
        return TOO_SLOW if now - self._since >= BACKLOG_S else ""
