"""Groups findings of different cameras whose pictures were taken within one short window.

Only capture times decide which findings belong together: they are compared with one another, corrected by each camera's
known offset. Monotonic time decides how long an instant waits for missing cameras. Everything is bounded: open
instants, closed ones (for late findings), cameras.
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

#: the limit of a Fused message
MAX_CAMERAS = 64
#: the most keys of one finding, which is repeated with another key by each new requester
MAX_KEYS = 16
#: instants do not wait for a camera after so many of its later pictures: it has none of the instant
PASSED = 2

AddResult = Literal["joined", "repeated", "late", "refused"]


@dataclass(slots=True)
class WindowEntry:
    """One camera's finding in an instant. ``time_ns`` is its capture time, by the common clock.

    ``name`` identifies the finding, whichever worker sends it; ``keys`` are those of its requests.
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
    """The findings of one time. ``due`` is monotonic seconds."""

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
        """Add a camera's finding."""
        times = [entry.time_ns, *([self.earliest, self.latest] if self.entries else [])]
        self.entries[camera] = entry
        self.earliest, self.latest = min(times), max(times)

    def can_add(self, time_ns: int, spread_ns: int) -> bool:
        """Whether all capture times would still be within the window."""
        return max(self.latest, time_ns) - min(self.earliest, time_ns) <= spread_ns


@dataclass(slots=True)
class _Camera:
    active_at: float
    listed: bool
    times: deque[int] = field(default_factory=lambda: deque(maxlen=PASSED))


class Window:
    """Groups findings into instants. It waits for ``cameras``, and for other cameras while they send findings."""

    def __init__(self, *, spread_ns: int, wait_s: float, absent_s: float, limit: int, cameras: Sequence[str]) -> None:
        self._spread_ns = spread_ns
        self._wait_s = wait_s
        self._absent_s = absent_s
        self._limit = limit
        self._listed = tuple(cameras[:MAX_CAMERAS])
        self._cameras: dict[str, _Camera] | None = None
        self._open: OrderedDict[Instant, None] = OrderedDict()
        self._closed: deque[Instant] = deque()
        self._by_name: dict[tuple[str, int, int], Instant] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, finding: Finding, camera: str, offset_ns: int, now: float) -> tuple[AddResult, Instant | None]:
        """Add a finding to its instant. ``late``: the instant was closed; ``repeated``: the finding was in it."""
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
        """Close and yield the instants that wait no longer, the oldest first."""
        for instant in list(self._open):
            if len(self._open) > self._limit or instant.due <= now or not self._must_wait(instant, now):
                self._close(instant)
                yield instant

    def next_due(self) -> float | None:
        """Return when the oldest open instant has waited long enough."""
        return next((instant.due for instant in self._open), None)

    def missing_cameras(self, instant: Instant) -> list[str]:
        """Return the cameras without a finding in an instant."""
        return [camera for camera in self._cameras or {} if camera not in instant.entries]

    def _note_camera(self, camera: str, now: float) -> _Camera | None:
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
        candidates = (
            instant
            for instant in chain(self._open, self._closed)
            if camera not in instant.entries and instant.can_add(time_ns, self._spread_ns)
        )
        return min(candidates, key=lambda instant: abs(instant.middle_ns - time_ns), default=None)

    def _new(self, now: float) -> Instant:
        instant = Instant(due=now + self._wait_s)
        self._open[instant] = None
        return instant

    def _must_wait(self, instant: Instant, now: float) -> bool:
        """Whether an active camera may still send a finding."""
        return any(
            name not in instant.entries and now - c.active_at <= self._absent_s and not self._is_past(c, instant)
            for name, c in (self._cameras or {}).items()
        )

    def _is_past(self, camera: _Camera, instant: Instant) -> bool:
        after = instant.latest + self._spread_ns
        return len(camera.times) == PASSED and all(time_ns > after for time_ns in camera.times)

    def _close(self, instant: Instant) -> None:
        del self._open[instant]
        instant.open = False
        self._closed.append(instant)
        if len(self._closed) > self._limit:
            oldest = self._closed.popleft()
            for entry in oldest.entries.values():
                del self._by_name[entry.name]


def _entry(finding: Finding, name: tuple[str, int, int], time_ns: int) -> WindowEntry:
    edge = finding.prediction
    return WindowEntry(name, [finding.key], time_ns, finding.worker, edge.label, edge.score, edge.boxes, read(edge))


def _accepts_request(instant: Instant, camera: str, key: bytes) -> bool:
    """Whether a repeated request gets an answer; an open instant records its key, a closed one answers at once."""
    keys = instant.entries[camera].keys
    if not instant.open or key in keys:
        return True
    if len(keys) < MAX_KEYS:
        keys.append(key)
        return True
    return False
