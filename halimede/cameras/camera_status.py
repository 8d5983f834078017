"""The state of one camera, as the body ``CameraStatus``. Pure: the caller passes the time.

``wall_s`` is in seconds since 1970, ``now_s`` in seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from halimede.cameras import ipc_messages
from halimede.cameras.frame_rate import MOST_FPS
from halimede.cameras.ipc_messages import CapturedPicture, ReaderCounts
from halimede.cameras.settings import CameraSettings
from halimede.messages import CameraStatus

#: states of a camera
State = Literal["connecting", "running", "stalled", "failed", "stopped", "gone"]
#: seconds over which frame rates are measured
RATE_WINDOW_S = 5.0
#: share of the rate limit of a source from which it counts as a flood
FLOOD_SHARE = 0.9
#: text for a source that is a flood
FLOOD = "it sends more than can be used ({rate:.0f} frames a second): the newest are taken, lower its rate"


@dataclass(slots=True)
class Rate:
    """The growth of a count per second, over the last ``RATE_WINDOW_S`` seconds.

    ``samples``: times in seconds, with the count.
    """

    samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=64))

    def at(self, now_s: float, count: int) -> float:
        """Add the count at a time; return its growth per second, 0 if too little time has passed to know it."""
        # at intervals of which 64 samples cover the window
        if not self.samples or now_s - self.samples[-1][0] >= RATE_WINDOW_S / 32:
            self.samples.append((now_s, count))
        while len(self.samples) > 2 and now_s - self.samples[0][0] > RATE_WINDOW_S:
            self.samples.popleft()
        began, before = self.samples[0]
        return (count - before) / (now_s - began) if now_s - began > 0.2 else 0.0

    def clear(self) -> None:
        """Drop all earlier counts."""
        self.samples.clear()


class CameraStatusTracker:
    """The state of one camera. Counts continue over all lives of its reader.

    Attributes:
        state, reason, error: of the status; reason and error are empty while frames come.
        frames, bytes: number of pictures that were sent, and their bytes in sum.
        reconnects: times that the source was opened again.
        dropped: pictures that the sink did not accept.

    """

    def __init__(self, settings: CameraSettings) -> None:
        self._settings = settings
        self.state: State = "connecting"
        self.reason = self.error = ""
        self.frames = self.bytes = self.reconnects = self.dropped = 0
        self._codec = ""
        self._width = self._height = 0
        self._latency_ms = 0.0
        self._last_frame = 0.0
        self._started = 0.0
        #: counts of earlier readers, and of the present one
        self._skipped_before = self._refused_before = 0
        self._now = ReaderCounts()
        self._sent_rate, self._source_rate = Rate(), Rate()

    @property
    def skipped(self) -> int:
        """The number of frames that were skipped for newer ones, or above the requested rate."""
        return self._skipped_before + self._now.skipped + self.dropped

    @property
    def refused(self) -> int:
        """The number of frames that were too large or unreadable."""
        return self._refused_before + self._now.refused

    @property
    def has_run(self) -> bool:
        """Whether a frame arrived since the source was last opened."""
        return self._now.received > self._now.refused

    def opening(self, wall_s: float, *, again: bool) -> None:
        """Record that the source is opened (``again``: once more). The state stays until a frame arrives."""
        self._started = self._started or wall_s
        self.reconnects += again
        self._skipped_before += self._now.skipped
        self._refused_before += self._now.refused
        self._now = ReaderCounts()
        self._source_rate.clear()

    def count(self, counts: ReaderCounts) -> None:
        """Take over the counts of the present reader."""
        self._now = counts

    def arrived(self, picture: CapturedPicture) -> None:
        """Record that a picture has come: the camera runs, with this codec and size."""
        self.count(picture.counts)
        if self.state != "running":
            self._sent_rate.clear()
        self.state, self.reason, self.error = "running", "", ""
        self._codec, self._width, self._height = picture.codec, picture.width, picture.height

    def sent(self, size: int, taken_ns: int, wall_s: float) -> None:
        """Count a picture of ``size`` bytes that was sent; ``taken_ns``: nanoseconds since 1970."""
        self.frames += 1
        self.bytes += size
        self._last_frame = wall_s
        self._latency_ms = max(0.0, wall_s * 1000 - taken_ns / 1e6)

    def ended(self, state: State, reason: str, error: str) -> None:
        """Record that no more pictures arrive for now, with the reason in one word and in a sentence."""
        self.state, self.reason, self.error = state, reason, error

    def status(self, now_s: float) -> CameraStatus:
        """Return the status to publish at a time; the counts are added to the frame rates."""
        rate = self._source_rate.at(now_s, self._now.received)
        fps = self._sent_rate.at(now_s, self.frames)
        reason, error = self.reason, self.error
        if self.state == "running":
            if rate >= FLOOD_SHARE * MOST_FPS:
                reason, error = ipc_messages.FLOOD, FLOOD.format(rate=rate)
            elif self._now.refused:
                error = self._now.why
        return CameraStatus(
            camera=self._settings.name,
            state=self.state,
            source=self._settings.address.shown[:1024],
            reason=reason,
            error=self._settings.address.redact(error)[:1024],
            codec=self._codec,
            width=self._width,
            height=self._height,
            fps=round(fps, 2) if self.state == "running" else 0.0,
            wanted_fps=self._settings.fps,
            frames=self.frames,
            skipped=self.skipped,
            refused=self.refused,
            reconnects=self.reconnects,
            bytes=self.bytes,
            last_frame=_time(self._last_frame),
            latency_ms=round(self._latency_ms, 3),
            node=self._settings.node,
            started=_time(self._started),
        )


def _time(wall_s: float) -> str:
    """Return a time as RFC 3339 text in UTC, empty for 0."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if wall_s else ""
