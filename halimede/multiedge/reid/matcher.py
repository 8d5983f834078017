"""Assigns identities to the objects of a frame: the joint of re-identification.

Each box has features. An identity appears once in a frame of a camera, so boxes and identities are paired as a whole,
by similarity. The expected position of an object, from its earlier positions in the same camera, changes the required
similarity. An object that is similar to no known identity gets a new one. Queries are answered by identity, by
features, or by camera and time.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from halimede.inference import Array, SampleError, unit, unpack
from halimede.inference.boxes import overlaps
from halimede.messages import Box, Identity, IdentityAnswer, IdentityQuery, Prediction, Sighting, Track
from halimede.multiedge.reid.assignment import assign
from halimede.multiedge.reid.gallery import Gallery
from halimede.multiedge.reid.identity_eviction import IdentityRecord
from halimede.multiedge.reid.settings import ReidSettings
from halimede.multiedge.reid.vector_index import Floats
from halimede.multiedge.stage import Finding, Joint, JointTools, Outcome
from halimede.multiedge.stages import vectors
from halimede.system.lru import LruCache

#: boxes of one frame that are processed
MOST_BOXES = 256
#: frames in a row with vectors of another length until a new gallery is begun: the model was replaced
NEW_LENGTH_FRAMES = 100
#: frames whose answers are remembered, and bytes of a finding's key that identify its frame
MAX_ANSWERS, FRAME_ID = 4096, 16
#: seconds between two checks for changes to store and identities to delete: with and without changes
BUSY_S, QUIET_S = 1.0, 10.0
NOBODY = "matcher"
#: sightings of each identity in an answer with several identities
SIGHTINGS_EACH = 5
FOREVER = 1e15
#: the most identities in a query by features
NEAREST = 200
#: identities that each object is compared with
CANDIDATES = 8
#: reduction of the required similarity at the expected position, and the worth added there
SLACK, WORTH = 0.25, 0.3
#: overlaps of boxes: from which an object is at its expected position, from which two boxes show one object, and up to
#: which they do not
EXPECTED, TWICE, APART = 0.3, 0.5, 0.1
#: pixels from the edge of the picture within which a box counts as cut off
RIM = 2.0
#: limit of coordinates: no picture is as large, but a sender may send any number
FAR = 1e6
#: name of a source that names no camera
UNNAMED = "unnamed"
MOST_CAMERAS = 1024
MOST_OBJECTS = 512
#: weight of the newest speed in the mean
BELIEF = 0.5
#: identities whose last camera is remembered
MOST_LAST = 20_000


class Matcher(Joint):
    """Give objects identities over all cameras of a service, in a gallery in ``tools.state``. Call ``open`` first.

    The answer to a finding has its boxes and, as ``value``, a list of as many identities; None: not certain.
    """

    def __init__(self, tools: JointTools, settings: ReidSettings) -> None:
        super().__init__(tools)
        self._settings = settings
        self.gallery = Gallery(tools.state, settings.limits, settings.features)
        self._paths = Trajectories(settings.track_s)
        self._counts = dict.fromkeys(("matched", "new", "unsure", "malformed", "strange"), 0)
        #: a worker that takes over may send frames again
        self._answers: LruCache[tuple[str, bytes], Prediction] = LruCache(MAX_ANSWERS)
        self._strange = 0
        self._has_learned = self._dirty = False
        self._tend_at = 0.0  # at once: on a standby only ``due`` sets the gallery's time

    def open(self) -> None:
        """Load the gallery."""
        self.gallery.open()

    def close(self) -> None:
        """Store the gallery."""
        self.gallery.close()

    def take(self, findings: Sequence[Finding], now: float) -> Outcome:
        """Assign identities to the objects of each finding. Malformed findings keep their own predictions."""
        self.gallery.at(now)
        answers: dict[bytes, Prediction | None] = {}
        tracks: list[Track] = []
        for finding in findings:
            frame = (finding.camera, finding.key[:FRAME_ID])
            answer = self._answers.get(frame) or self._answer(finding, tracks)
            if answer is not None:
                self._answers.put(frame, answer)
            answers[finding.key] = answer
        if tracks and not self._dirty:
            self._dirty = True
            self._tend_at = now + BUSY_S
        if self._has_learned:  # store new identities before they are published: a restarted worker must have them
            self._has_learned = False
            self.gallery.flush()
        return Outcome(answers, tracks)

    def due(self, now: float) -> Outcome:
        """Store changes and delete expired identities."""
        if now >= self._tend_at:
            self.gallery.tend(now)
            self._dirty = False
            self._tend_at = now + QUIET_S
        return Outcome()

    def next_due(self) -> float:
        """Return the time of the next check."""
        return self._tend_at

    def follow(self, tracks: Sequence[Track]) -> None:
        """Apply decisions of another worker; malformed ones are skipped."""
        for track in tracks:
            try:
                self.gallery.follow(track)
            except SampleError:
                self._counts["malformed"] += 1

    def ask(self, query: IdentityQuery) -> IdentityAnswer:
        """Answer a query about sightings."""
        try:
            return IdentityAnswer(worker=NOBODY, identities=answer(self.gallery, query))
        except (SampleError, ValueError, sqlite3.Error, msgspec.DecodeError) as error:
            return IdentityAnswer(worker=NOBODY, error=str(error))

    def snapshot(self) -> Iterator[Track]:
        """Yield all known identities."""
        return self.gallery.snapshot()

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics."""
        sizes = {
            "identities": len(self.gallery),
            "vectors": len(self.gallery.bank),
            "index_bytes": self.gallery.bank.memory,
        }
        counts = {name: getattr(self.gallery, name) for name in ("evicted", "expired", "unsaved")}
        return {f"reid_{name}": float(value) for name, value in (self._counts | sizes | counts).items()}

    def _answer(self, finding: Finding, tracks: list[Track]) -> Prediction | None:
        prediction = finding.prediction
        try:
            rows = vectors(prediction)
        except SampleError:
            rows = None
        if rows is None or len(rows) > MOST_BOXES or not rows.any(axis=1).all():
            self._counts["malformed"] += 1
            return None
        if not len(rows):
            return None
        if self.gallery.bank.length not in {0, rows.shape[1]} and not self._has_begun_anew(rows.shape[1]):
            return None
        self._strange = 0
        features = np.stack([unit(row) for row in rows])
        frame = FrameMatches(finding, features, self.gallery, self._paths, self._settings)
        identities = [self._see(frame, i, identity, tracks) for i, identity in enumerate(frame.who())]
        return msgspec.structs.replace(prediction, embeddings=None, value=identities)

    def _see(self, frame: FrameMatches, i: int, identity: IdentityRecord | None, tracks: list[Track]) -> str | None:
        new = identity is None and frame.may_be_new(i)
        if identity is None and not new:
            self._counts["unsure"] += 1
            return None
        if identity is None:
            identity = self.gallery.create()
            frame.record_match(i)
        self._counts["new" if new else "matched"] += 1
        sighting = frame.sighting(i, identity)
        self.gallery.see(identity, sighting)
        has_learned = (new or frame.may_teach(i, identity)) and self.gallery.learn(identity, frame.features[i])
        self._has_learned |= has_learned
        self._paths.record(frame.camera, identity.id, frame.time, frame.boxes[i])
        embedding = self.gallery.bank.mean(identity) if has_learned else b""
        tracks.append(identity.track(sighting, embedding=embedding, new=new))
        return identity.id

    def _has_begun_anew(self, length: int) -> bool:
        """Whether a new gallery was begun: enough frames had vectors of another length, so the model was replaced."""
        self._counts["strange"] += 1
        self._strange += 1
        if self._strange < NEW_LENGTH_FRAMES:
            return False
        self.gallery.begin_anew(f"features have {length} numbers now, and had {self.gallery.bank.length}")
        self._paths = Trajectories(self._settings.track_s)
        self._answers = LruCache(MAX_ANSWERS)
        return True


def answer(gallery: Gallery, query: IdentityQuery) -> list[Identity]:
    """Return matching identities, the latest or the most similar first. Raises SampleError, ValueError."""
    gallery.flush()
    if query.identity:
        identity = gallery.get(query.identity)
        return [_identity(gallery, identity, query, query.limit)] if identity else []
    if query.embedding:
        return _like(gallery, query)
    until = query.until or FOREVER
    identities = (gallery.get(id_) for id_ in gallery.store.latest_ids(query.camera, query.since, until, query.limit))
    return [_identity(gallery, identity, query, SIGHTINGS_EACH) for identity in identities if identity]


def _like(gallery: Gallery, query: IdentityQuery) -> list[Identity]:
    vector = unit(unpack(query.embedding, 1)[0])
    if not vector.any():
        raise SampleError("the features are all zero")
    (near,) = gallery.bank.nearest(vector[None], min(query.limit, NEAREST), 2.0)
    identities = (_identity(gallery, record, query, SIGHTINGS_EACH, similarity) for record, similarity in near.items())
    is_filtered = bool(query.camera or query.since or query.until)
    return [record for record in identities if record.sightings or not is_filtered]


def _identity(
    gallery: Gallery, record: IdentityRecord, query: IdentityQuery, limit: int, similarity: float | None = None
) -> Identity:
    sightings = gallery.store.sightings(record.id, query.camera, query.since, query.until or FOREVER, limit)
    return Identity(
        identity=record.id,
        count=record.count,
        cameras=list(record.cameras),
        first=record.first,
        last=record.last,
        similarity=None if similarity is None else round(similarity, 4),
        sightings=sightings,
    )


class FrameMatches:
    """The objects of one frame, and their candidates by similarity and by expected position."""

    def __init__(
        self, finding: Finding, features: Floats, gallery: Gallery, paths: Trajectories, settings: ReidSettings
    ) -> None:
        self.features = features
        self.camera = finding.camera or UNNAMED
        self.time = finding.captured_ns / 1e9
        boxes = finding.prediction.boxes
        # without boxes the whole picture is the only object, and has no position
        self._message_boxes = boxes if boxes is not None else [Box(0.0, 0.0, 0.0, 0.0, 1.0)]
        self.boxes = _corners(self._message_boxes)
        self._finding = finding
        self._gallery = gallery
        self._settings = settings
        self._near: dict[tuple[int, IdentityRecord], float] = {}
        self._expected: set[tuple[int, IdentityRecord]] = set()
        self._steps: dict[IdentityRecord, Trajectory] = {}
        if boxes:
            for id_, step in paths.before(self.camera, self.time):
                if (identity := gallery.get(id_)) is not None:
                    self._steps[identity] = step
        self._paths = paths
        self._matched: list[int] = []

    def who(self) -> list[IdentityRecord | None]:
        """Pair objects with identities, one to one; None: no identity."""
        settings = self._settings
        for i, near in enumerate(self._gallery.bank.nearest(self.features, CANDIDATES, settings.threshold)):
            self._near.update({(i, identity): similarity for identity, similarity in near.items()})
        for identity in self._steps:
            for i, similarity in enumerate(self._gallery.bank.similarities(identity, self.features).tolist()):
                self._near[i, identity] = similarity
        columns = {identity: j for j, identity in enumerate(dict.fromkeys(identity for _, identity in self._near))}
        worth = np.zeros((len(self.features), len(columns)))
        for (i, identity), similarity in self._near.items():
            worth[i, columns[identity]] = max(similarity, 0.0) if similarity >= settings.threshold else 0.0
        for identity, j in columns.items():
            self._believe(identity, worth[:, j])
        candidates = list(columns)
        identities: list[IdentityRecord | None] = [None] * len(self.features)
        for i, j in assign(worth):
            identities[i] = candidates[j]
            self.record_match(i)
        return identities

    def record_match(self, i: int) -> None:
        """Record that an object has its identity."""
        self._matched.append(i)

    def _believe(self, identity: IdentityRecord, worth: Array) -> None:
        """Change the worth of an identity for each object by the identity's expected position."""
        settings = self._settings
        step = self._steps.get(identity)
        if step is not None:
            likely = overlaps(step.expected_box(self.time), self.boxes)
            for i in np.flatnonzero(likely >= EXPECTED).tolist():
                similarity = self._near[i, identity]
                if similarity >= settings.threshold - SLACK:
                    worth[i] = max(similarity, 0.0) + WORTH * likely[i]
                    self._expected.add((i, identity))
            if settings.speed:
                worth[~step.reachable(self.time, self.boxes, settings.speed)] = 0.0
        if settings.travel_s and self._paths.travel_s(identity.id, self.camera, self.time) < settings.travel_s:
            worth[:] = 0.0

    def may_be_new(self, i: int) -> bool:
        """Whether an object without a similar identity may be new: no second box of another object, not cut off."""
        matched = self.boxes[self._matched]
        return not self._is_cut_off(i) and not (len(matched) and (overlaps(self.boxes[i], matched) > TWICE).any())

    def may_teach(self, i: int, identity: IdentityRecord) -> bool:
        """Whether the identity is certain enough to store the vector, and the box shows no other object."""
        other_boxes = np.delete(self.boxes, i, axis=0)
        if self._is_cut_off(i) or (len(other_boxes) and (overlaps(self.boxes[i], other_boxes) > APART).any()):
            return False
        return (i, identity) in self._expected or self._near[i, identity] >= self._settings.learn

    def sighting(self, i: int, identity: IdentityRecord) -> Sighting:
        """Return the sighting of an object."""
        finding = self._finding
        similarity = min(max(self._near.get((i, identity), 1.0), -1.0), 1.0)
        return Sighting(
            camera=self.camera,
            time=self.time,
            box=self._message_boxes[i],
            frame=finding.key[:16].hex().ljust(32, "0"),
            similarity=round(similarity, 4),
            worker=finding.worker,
            node=finding.node,
        )

    def _is_cut_off(self, i: int) -> bool:
        """Whether an object extends beyond its picture, if the picture's size is known."""
        size = self._finding.prediction.value
        if not isinstance(size, Mapping) or not self.boxes[i].any():
            return False
        x1, y1, x2, y2 = self.boxes[i].tolist()
        width, height = size.get("width"), size.get("height")
        if not isinstance(width, int | float) or not isinstance(height, int | float):
            return False
        return bool(x1 <= RIM or y1 <= RIM or x2 >= width - RIM or y2 >= height - RIM)


def _corners(boxes: Sequence[Box]) -> Array:
    xyxy = np.array([[box.x1, box.y1, box.x2, box.y2] for box in boxes], np.float64).reshape(-1, 4)
    xyxy = np.clip(xyxy, -FAR, FAR)
    return np.concatenate([np.minimum(xyxy[:, :2], xyxy[:, 2:]), np.maximum(xyxy[:, :2], xyxy[:, 2:])], axis=1)


@dataclass(slots=True)
class Trajectory:
    """An object in a camera: the time (seconds), its corners, and the velocity of its center (pixels a second)."""

    time: float
    box: Array
    velocity: Array

    def expected_box(self, time: float) -> Array:
        """Return its expected corners at another time."""
        moved = self.velocity * (time - self.time)
        return np.asarray(self.box + np.concatenate([moved, moved]))

    def reachable(self, time: float, boxes: Array, speed: float) -> Array:
        """Return whether the object can be at each box by then, with at most ``speed`` times its own size a second."""
        size = float(np.hypot(*(self.box[2:] - self.box[:2])))
        sizes = np.hypot(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1])
        away = _middle(boxes) - _middle(self.box)
        far = np.hypot(away[:, 0], away[:, 1])
        return np.asarray(far <= np.maximum(size, sizes) * (1.0 + speed * abs(time - self.time)))


class Trajectories:
    """The latest positions by camera and identity, bounded, for ``keep_s`` seconds of each camera's own clock.

    Similarity alone confuses similar objects and loses an object that turns. Positions help: objects do not jump.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._cameras: OrderedDict[str, OrderedDict[str, Trajectory]] = OrderedDict()
        self._last: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def before(self, camera: str, time: float) -> Iterator[tuple[str, Trajectory]]:
        """Yield objects that a camera saw shortly before (or after: pictures may arrive out of order)."""
        for identity, step in self._cameras.get(camera, {}).items():
            if abs(time - step.time) <= self._keep_s:
                yield identity, step

    def travel_s(self, identity: str, camera: str, time: float) -> float:
        """Return the seconds since another camera saw the identity last; infinity if this camera saw it last."""
        last, at = self._last.get(identity, (camera, 0.0))
        return float("inf") if last == camera else abs(time - at)

    def record(self, camera: str, identity: str, time: float, box: Array) -> None:
        """Record a position."""
        self._last[identity] = (camera, time)
        self._last.move_to_end(identity)
        if len(self._last) > MOST_LAST:
            self._last.popitem(last=False)
        steps = self._cameras.setdefault(camera, OrderedDict())
        self._cameras.move_to_end(camera)
        while len(self._cameras) > MOST_CAMERAS:
            self._cameras.popitem(last=False)
        if steps and time < next(reversed(steps.values())).time - self._keep_s:
            steps.clear()  # the camera's clock was set back
        old = steps.get(identity)
        if old and time < old.time:
            return
        velocity = np.zeros(2) if old is None else old.velocity
        if old and 0 < time - old.time <= self._keep_s:
            now = (_middle(box) - _middle(old.box)) / (time - old.time)
            velocity = now if not old.velocity.any() else BELIEF * now + (1 - BELIEF) * old.velocity
        steps[identity] = Trajectory(time, box, velocity)
        steps.move_to_end(identity)
        while steps and (len(steps) > MOST_OBJECTS or next(iter(steps.values())).time < time - self._keep_s):
            steps.popitem(last=False)


def _middle(boxes: Array) -> Array:
    return np.asarray((boxes[..., :2] + boxes[..., 2:]) / 2)
