"""Groups findings of different cameras whose pictures were taken within one short window: an instant.

Only capture times, corrected by each camera's known offset, decide which findings belong together. Monotonic time
decides how long an instant waits for missing cameras. An instant is open until it is answered; closed ones are
remembered for late findings. The numbers of open instants, closed instants and cameras are bounded.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from halimede.messages import Box
from halimede.multiedge.fusion.class_distribution import ClassDistribution, read
from halimede.multiedge.stage import Finding

#: the most cameras: the limit of a Fused message
MAX_CAMERAS = 64
#: the most keys of one finding: each worker that sends it has another key
MAX_KEYS = 16
#: an instant no longer waits for a camera whose last pictures, so many, are all later than the instant
PASSED = 2

#: what became of a finding: it is part of an open instant; it was there before; its instant is closed; no space
AddResult = Literal["joined", "repeated", "late", "refused"]


@dataclass(slots=True)
class WindowEntry:
    """One camera's finding in an instant.

    Attributes:
        name: camera, capture time and sequence number: identifies the finding, whichever worker sends it.
        keys: the keys of the requests to answer.
        time_ns: capture time by the common clock, in nanoseconds since 1970.
        worker: the worker that sent it.
        label: the camera's own label; None without one.
        score: its score; None without one.
        boxes: its boxes; None without any, or after the answer.
        opinion: its prediction as a distribution; None if it names no class.

    """

    name: tuple[str, int, int]
    keys: list[bytes]
    time_ns: int
    worker: str
    label: str | None
    score: float | None
    boxes: list[Box] | None
    opinion: ClassDistribution | None


@dataclass(eq=False, slots=True)
class Instant:
    """The findings of different cameras for one short time.

    Attributes:
        due: monotonic seconds at which it has waited long enough.
        entries: the findings by camera.
        earliest: the first capture time, in nanoseconds since 1970; 0 without findings.
        latest: the last capture time.
        open: it waits for findings.

    """

    due: float
    entries: dict[str, WindowEntry] = field(default_factory=dict)
    earliest: int = 0
    latest: int = 0
    open: bool = True

    @property
    def middle_ns(self) -> int:
        """The middle between the first and the last capture time."""
        return (self.earliest + self.latest) // 2

    def add(self, camera: str, entry: WindowEntry) -> None:
        """Add the finding of a camera that has none in it."""
        times = [entry.time_ns, *([self.earliest, self.latest] if self.entries else [])]
        self.entries[camera] = entry
        self.earliest, self.latest = min(times), max(times)

    def can_add(self, time_ns: int, spread_ns: int) -> bool:
        """Whether all capture times would be within ``spread_ns`` after adding ``time_ns``."""
        return max(self.latest, time_ns) - min(self.earliest, time_ns) <= spread_ns


@dataclass(slots=True)
class _Camera:
    """When a camera's last finding came (monotonic seconds), whether it is configured, and its last capture times."""

    active_at: float
    listed: bool
    times: deque[int] = field(default_factory=lambda: deque(maxlen=PASSED))


class Window:
    """Groups findings into instants.

    Args:
        spread_ns: the longest time between the first and the last capture time of an instant.
        wait_s: how long an instant waits for missing cameras.
        absent_s: an instant does not wait for a camera that has sent nothing for so long.
        limit: the most open instants, and the most closed ones.
        cameras: the configured cameras. Others count from their first finding until they are absent.

    """

    def __init__(self, *, spread_ns: int, wait_s: float, absent_s: float, limit: int, cameras: Sequence[str]) -> None:
        self._spread_ns = spread_ns
        self._wait_s = wait_s
        self._absent_s = absent_s
        self._limit = limit
        self._listed = tuple(cameras[:MAX_CAMERAS])
        #: None before the first finding, from which on the configured cameras count as active
        self._cameras: dict[str, _Camera] | None = None
        self._open: OrderedDict[Instant, None] = OrderedDict()
        self._closed: deque[Instant] = deque()
        self._by_name: dict[tuple[str, int, int], Instant] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, finding: Finding, camera: str, offset_ns: int, now: float) -> tuple[AddResult, Instant | None]:
        """Add a finding of ``camera`` to its instant, or to a new one; return what became of it, and the instant.

        The instant is None if there are too many cameras. ``offset_ns``: by how much the camera's clock is ahead.
        ``now``: monotonic seconds.
        """
        state = self._note_camera(camera, now)
        if state is None:
            return "refused", None
        name = (camera, finding.captured_ns, finding.sequence)
        instant = self._by_name.get(name)
        if instant is not None:
            return ("repeated" if _accepts_request(instant, camera, finding.key) else "refused"), instant
        entry = _entry(finding, name, finding.captured_ns - offset_ns)
        state.times.append(entry.time_ns)
        instant = self._nearest(camera, entry.time_ns) or self._new(now)
        instant.add(camera, entry)
        self._by_name[name] = instant
        if not instant.open:
            entry.boxes = None  # its answer is sent now: a closed instant has only the data for late findings
        return ("joined" if instant.open else "late"), instant

    def ready(self, now: float) -> Iterator[Instant]:
        """Close and yield the instants that need not wait any longer at ``now``, the oldest first.

        If more than ``limit`` are open, the oldest ones need not wait.
        """
        for instant in list(self._open):
            if len(self._open) > self._limit or instant.due <= now or not self._must_wait(instant, now):
                self._close(instant)
                yield instant

    def next_due(self) -> float | None:
        """Return the monotonic seconds at which the oldest open instant has waited long enough; None without one."""
        return next((instant.due for instant in self._open), None)

    def missing_cameras(self, instant: Instant) -> list[str]:
        """Return the known cameras without a finding in an instant."""
        return [camera for camera in self._cameras or {} if camera not in instant.entries]

    def _note_camera(self, camera: str, now: float) -> _Camera | None:
        """Return the state of a camera that has sent a finding at ``now``; None if there are too many cameras.

        Cameras that are not configured are forgotten once they are absent.
        """
        if self._cameras is None:
            self._cameras = {name: _Camera(now, listed=True) for name in self._listed}
        absent = [n for n, c in self._cameras.items() if not c.listed and now - c.active_at > self._absent_s]
        for name in absent:
            del self._cameras[name]
        if camera not in self._cameras and len(self._cameras) >= MAX_CAMERAS:
            return None
        state = self._cameras.setdefault(camera, _Camera(now, listed=False))
        state.active_at = now
        return state

    def _nearest(self, camera: str, time_ns: int) -> Instant | None:
        """Return the nearest instant, open or closed, that can take a finding of the camera; None if there is none."""
        candidates = (
            instant
            for instant in chain(self._open, self._closed)
            if camera not in instant.entries and instant.can_add(time_ns, self._spread_ns)
        )
        return min(candidates, key=lambda instant: abs(instant.middle_ns - time_ns), default=None)

    def _new(self, now: float) -> Instant:
        """Return a new open instant."""
        instant = Instant(due=now + self._wait_s)
        self._open[instant] = None
        return instant

    def _must_wait(self, instant: Instant, now: float) -> bool:
        """Whether an active camera may still send a finding of an instant."""
        return any(
            name not in instant.entries and now - c.active_at <= self._absent_s and not self._is_past(c, instant)
            for name, c in (self._cameras or {}).items()
        )

    def _is_past(self, camera: _Camera, instant: Instant) -> bool:
        """Whether the last pictures of a camera are all too late for an instant."""
        after = instant.latest + self._spread_ns
        return len(camera.times) == PASSED and all(time_ns > after for time_ns in camera.times)

    def _close(self, instant: Instant) -> None:
        """Close an instant, and forget the oldest closed one if there are too many."""
        del self._open[instant]
        instant.open = False
        self._closed.append(instant)
        if len(self._closed) > self._limit:
            oldest = self._closed.popleft()
            for entry in oldest.entries.values():
                del self._by_name[entry.name]


def _entry(finding: Finding, name: tuple[str, int, int], time_ns: int) -> WindowEntry:
    """Return a finding as the entry of an instant."""
    edge = finding.prediction
    return WindowEntry(name, [finding.key], time_ns, finding.worker, edge.label, edge.score, edge.boxes, read(edge))


def _accepts_request(instant: Instant, camera: str, key: bytes) -> bool:
    """Record the key of a repeated finding in an open instant; return whether the finding gets an answer."""
    keys = instant.entries[camera].keys
    if not instant.open or key in keys:
        return True
    if len(keys) < MAX_KEYS:
        keys.append(key)
        return True
    return False
