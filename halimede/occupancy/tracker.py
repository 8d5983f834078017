"""Decides when an object has entered, left, or when the number of such objects has changed.

For each camera, label and zone there is one ``ZoneOccupancy``: the number of objects as last reported, and what the
frames since then have shown. More objects are a change when ``minFrames`` consecutive frames show them. Fewer objects
are a change when as many frames and at least ``holdS`` seconds have shown fewer: a detector overlooks objects more
often than it invents them.

Answers count in the order in which they arrive. Those of two workers, or the late answer to a hard frame, may arrive in
another order than their frames. A late frame can only delay a change, since all frames of a change must agree. Its time
does not count: the time of a camera goes back only after ``CLOCK_FRAMES`` consecutive frames that are older.

The tracker is pure: its caller gives the time of each frame, and publishes the changes. A change has all objects that
are present after it, so ``adopt`` continues from the last change that any tracker has published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Literal

from msgspec import Struct

from halimede.api.occupancy import Occupancy
from halimede.messages import Box, PresentObjects
from halimede.occupancy.objects import DetectedObject
from halimede.polygons import Point, contains

#: most pairs of label and zone that are tracked in a camera, and most boxes of a change: the limits of an event's lists
MAX_PAIRS, MAX_BOXES = 256, 32
#: most cameras that are tracked
MAX_CAMERAS = 1024
#: a camera's clock was set if at least so many consecutive frames are older than the newest one, and the first of them
#: by so many nanoseconds; other old frames are answers that arrive late
CLOCK_FRAMES, CLOCK_SET_NS = 10, 60 * 10**9

#: what has happened to the objects of a label in a zone: the first entered, the last left, or the number changed
Kind = Literal["entered", "left", "changed"]
#: a label and the name of a zone; the name is empty for the whole picture
LabelAndZone = tuple[str, str]


class BestFrame(Struct, frozen=True):
    """The frame since the last change whose object has the highest score: its id, that score, and all boxes."""

    frame: str
    score: float
    boxes: tuple[Box, ...] = ()


class ZoneOccupancy(Struct):
    """The objects of one label in one zone of a camera. Times are nanoseconds by the camera's clock.

    Attributes:
        count: objects, as last reported.
        since: time of the frame with which the first of them entered.
        more_frames: consecutive frames with more objects.
        least_more: the fewest objects in one of these frames.
        full_at: time of the last frame with at least ``count`` objects; 0: another tracker has seen it.
        fewer_frames: frames with fewer objects after that frame.
        most_fewer: the most objects in one of these frames.
        best: the best frame since the last change; None: there is none.

    """

    count: int = 0
    since: int = 0
    more_frames: int = 0
    least_more: int = 0
    full_at: int = 0
    fewer_frames: int = 0
    most_fewer: int = 0
    best: BestFrame | None = None

    def update(self, count: int, now: int, min_frames: int, hold_ns: int) -> None:
        """Count a frame with ``count`` objects at the time ``now``; it may change the reported count.

        ``min_frames``: frames that a change takes; ``hold_ns``: the least time of a change to fewer objects.
        """
        if count > self.count:
            self.least_more = min(self.least_more, count) if self.more_frames else count
            self.more_frames += 1
        else:
            self.more_frames = 0
        if count >= self.count:
            self.full_at, self.fewer_frames, self.most_fewer = now, 0, 0
        else:
            self.full_at = self.full_at or now
            self.most_fewer = max(self.most_fewer, count)
            self.fewer_frames += 1
        if self.more_frames >= min_frames:
            self._report(self.least_more, now)
        elif self.fewer_frames >= min_frames and now - self.full_at >= hold_ns:
            self._report(self.most_fewer, now)

    def note_best(self, frame: str, objects: Sequence[DetectedObject]) -> None:
        """Remember the frame if one of its objects has a higher score than that of the best frame."""
        if not self.count and not self.more_frames:
            self.best = None  # earlier objects were there too shortly for an event
        ranked = sorted(objects, key=lambda detected: -detected.score)[:MAX_BOXES]
        if ranked and (self.best is None or ranked[0].score > self.best.score):
            boxes = tuple(detected.box for detected in ranked if detected.box is not None)
            self.best = BestFrame(frame, ranked[0].score, boxes)

    def _report(self, count: int, now: int) -> None:
        """Make ``count`` the reported number at the time ``now``."""
        if not self.count:
            self.since = now
        self.count, self.full_at = count, now
        self.more_frames = self.fewer_frames = self.most_fewer = 0


class OccupancyChange(Struct, frozen=True):
    """An object has entered or left, or the number has changed.

    Attributes:
        kind: what has happened.
        camera: the camera.
        label: that of the objects.
        zone: the zone; empty: the whole picture.
        count: objects after the change.
        before: objects before it.
        cause: id of the frame that caused it; empty: its zone or label is no longer configured.
        time: that of the frame that caused it (ns since 1970).
        since: time of the frame with which the first object entered.
        best: the best frame since the last change; None: there is none.
        present: all objects of the camera after the change.

    """

    kind: Kind
    camera: str
    label: str
    zone: str
    count: int
    before: int
    cause: str
    time: int
    since: int
    best: BestFrame | None
    present: tuple[PresentObjects, ...] = ()


class CameraOccupancy(Struct):
    """The occupancies of a camera by label and zone.

    Attributes:
        camera: its name.
        time: that of its newest frame (ns); 0: it has had none.
        old_frames: consecutive frames that are older, the first of them by more than ``CLOCK_SET_NS``.
        pairs: the occupancies.

    """

    camera: str
    time: int = 0
    old_frames: int = 0
    pairs: dict[LabelAndZone, ZoneOccupancy] = {}

    def set_time(self, time: int, min_frames: int) -> None:
        """Set the time by that of a frame, which may be late. It goes back if the camera's clock was set back.

        ``min_frames``: the clock counts as set back after at least so many old frames, and at least CLOCK_FRAMES.
        """
        is_old = time < self.time - (0 if self.old_frames else CLOCK_SET_NS)
        self.old_frames = self.old_frames + 1 if is_old else 0
        if self.old_frames >= max(min_frames, CLOCK_FRAMES):
            self.time, self.old_frames = time, 0
        self.time = max(time, self.time)

    def present(self) -> tuple[PresentObjects, ...]:
        """Return the reported objects of all labels and zones, at most ``MAX_PAIRS`` entries."""
        reported = (
            PresentObjects(label=label, zone=zone, count=occupancy.count, since_ns=occupancy.since)
            for (label, zone), occupancy in self.pairs.items()
            if occupancy.count
        )
        return tuple(islice(reported, MAX_PAIRS))

    def change(self, pair: LabelAndZone, before: int, *, since: int, cause: str, time: int) -> OccupancyChange:
        """Return the change of a pair that had ``before`` objects, and whose occupancy has the new count.

        ``since``, ``cause``, ``time``: as of ``OccupancyChange``.
        """
        occupancy, (label, zone) = self.pairs[pair], pair
        return OccupancyChange(
            kind="left" if not occupancy.count else "changed" if before else "entered",
            camera=self.camera,
            label=label,
            zone=zone,
            count=occupancy.count,
            before=before,
            cause=cause,
            time=time,
            since=since,
            best=occupancy.best,
            present=self.present(),
        )


class OccupancyTracker:
    """Tracks the objects in the pictures of a service's cameras. ``rules``: the service's, with its labels and zones.

    Attributes:
        ignored: number of objects that were not tracked: their camera had ``MAX_PAIRS`` pairs already, or
            ``MAX_CAMERAS`` other cameras had objects.

    """

    def __init__(self, rules: Occupancy) -> None:
        self.ignored = 0
        self._min_frames = rules.min_frames
        self._hold_ns = round(rules.hold_s * 10**9)
        self._labels = frozenset(rules.labels)
        self._zones: dict[str, list[tuple[str, list[Point]]]] = {}
        for zone in rules.zones:
            self._zones.setdefault(zone.camera, []).append((zone.name, zone.corners))
        #: those with the latest frames last
        self._cameras: dict[str, CameraOccupancy] = {}

    def has_frames_of(self, camera: str) -> bool:
        """Whether it has observed a frame of a camera."""
        return camera in self._cameras and self._cameras[camera].time > 0

    def observe(self, camera: str, time: int, frame: str, objects: Sequence[DetectedObject]) -> list[OccupancyChange]:
        """Return the changes that the objects of a frame cause.

        ``time``: when the frame was taken (ns since 1970). ``frame``: the id of its result.
        """
        state = self._camera(camera)
        if state is None:
            self.ignored += len(objects)
            return []
        state.set_time(time, self._min_frames)
        groups = self._group(camera, objects)
        changes = []
        for pair in dict.fromkeys([*state.pairs, *groups]):
            occupancy = state.pairs.get(pair)
            if occupancy is None:
                if len(state.pairs) >= MAX_PAIRS:
                    self.ignored += len(groups[pair])
                    continue
                occupancy = state.pairs[pair] = ZoneOccupancy()
            occupancy.full_at = min(occupancy.full_at, state.time)  # as the time may have been set back
            before, entered, objects_there = occupancy.count, occupancy.since, groups.get(pair, [])
            occupancy.note_best(frame, objects_there)
            occupancy.update(len(objects_there), state.time, self._min_frames, self._hold_ns)
            if occupancy.count != before:
                since = entered if before else occupancy.since
                changes.append(state.change(pair, before, since=since, cause=frame, time=state.time))
                occupancy.best = None
            if not occupancy.count and not occupancy.more_frames:
                del state.pairs[pair]
        return changes

    def adopt(self, camera: str, time: int, present: Sequence[PresentObjects]) -> list[OccupancyChange]:
        """Continue from the objects that another tracker has reported last. Return the changes by the present rules.

        Objects whose zone or label is no longer configured have left. ``time``: of these changes (ns since 1970).
        """
        state = self._camera(camera)
        if state is None:
            return []
        reported = {(objects.label, objects.zone): objects for objects in present}
        for pair in dict.fromkeys([*state.pairs, *reported]):
            occupancy, objects = state.pairs.get(pair), reported.get(pair)
            if objects and (occupancy is None or occupancy.count != objects.count):
                state.pairs[pair] = ZoneOccupancy(count=objects.count, since=objects.since_ns)
            elif occupancy and occupancy.count and not objects:
                del state.pairs[pair]
        zones = {"", *(name for name, _ in self._zones.get(camera, ()))}
        changes = []
        for label, zone in list(state.pairs):
            if zone in zones and (not self._labels or label in self._labels):
                continue
            occupancy = state.pairs[label, zone]
            before, occupancy.count = occupancy.count, 0
            if before:
                changes.append(state.change((label, zone), before, since=occupancy.since, cause="", time=time))
            del state.pairs[label, zone]
        return changes

    def _camera(self, name: str) -> CameraOccupancy | None:
        """Return the state of a camera that has a new frame; None: ``MAX_CAMERAS`` others have objects.

        A new camera takes the place of the one without objects that has had no frame for the longest time.
        """
        state = self._cameras.pop(name, None)
        if state is None:
            if len(self._cameras) >= MAX_CAMERAS:
                empty = next((camera for camera, other in self._cameras.items() if not other.present()), None)
                if empty is None:
                    return None
                del self._cameras[empty]
            state = CameraOccupancy(name)
        self._cameras[name] = state
        return state

    def _group(self, camera: str, objects: Sequence[DetectedObject]) -> Mapping[LabelAndZone, list[DetectedObject]]:
        """Return the objects by label and zone; each object is also in the whole picture."""
        groups: dict[LabelAndZone, list[DetectedObject]] = {}
        for detected in objects:
            zones = [""]
            if (foot := detected.foot) is not None:
                zones += [name for name, corners in self._zones.get(camera, ()) if contains(corners, foot)]
            for zone in zones:
                groups.setdefault((detected.label, zone), []).append(detected)
        return groups
