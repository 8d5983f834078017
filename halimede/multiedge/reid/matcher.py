"""The joint of re-identification: ``Matcher`` assigns identities to the objects of a frame, and answers queries.

The features of each box (a unit vector) are compared with those of known identities. An identity appears at most once
in a frame, so the boxes and identities of a frame are paired as a whole. Where an object is expected, from its earlier
positions in the same camera, less similarity is required. An object that is similar to no identity gets a new one.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from halimede.inference import Array, SampleError, unit, unpack
from halimede.inference.boxes import MAX_COORDINATE, overlaps
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
MAX_BOXES = 256
#: frames in a row with vectors of another length until a new gallery is begun: the model was replaced
NEW_LENGTH_FRAMES = 100
#: frames whose answers are remembered, and bytes of a finding's key that identify its frame
MAX_ANSWERS, FRAME_ID_BYTES = 4096, 16
#: seconds until changes are stored and old identities deleted: with changes, and without
STORE_PERIOD_S, CHECK_PERIOD_S = 1.0, 10.0
#: name in answers to queries, which the joint server replaces by the worker's
WORKER_NAME = "matcher"
#: sightings of each identity in an answer with several identities
SIGHTINGS_EACH = 5
#: end of a query's time if it has none: later than all
LATEST_TIME = 1e15
#: the most identities in a query by features
MAX_NEAREST = 200
#: identities that each object is compared with
MAX_CANDIDATES = 8
#: reduction of the required similarity at the expected position, and the worth that is added to a pair there
EXPECTED_SLACK, EXPECTED_WORTH = 0.25, 0.3
#: overlap (intersection over union) of two boxes: from the first number on, an object is at its expected position;
#: above the second, both boxes show one object; up to the third, the objects are apart
EXPECTED_OVERLAP, SAME_BOX, APART_BOX = 0.3, 0.5, 0.1
#: pixels from the edge of the picture within which a box counts as cut off
EDGE_PIXELS = 2.0
#: camera in sightings from a source that names none
UNNAMED = "unnamed"
#: most cameras with remembered positions
MAX_CAMERAS = 1024
#: most remembered objects of a camera
MAX_OBJECTS = 512
#: weight of the newest speed in the mean
NEW_WEIGHT = 0.5
#: most identities whose last camera is remembered
MAX_LAST_SEEN = 20_000


class Matcher(Joint):
    """Give objects identities over all cameras of a service, in a gallery in ``tools.state``. Call ``open`` first.

    A ``Joint``. The answer to a finding has its boxes and, as ``value``, a list with the identity of each box; None for
    a box without a certain identity.
    """

    def __init__(self, tools: JointTools, settings: ReidSettings) -> None:
        super().__init__(tools)
        self._settings = settings
        self.gallery = Gallery(tools.state, settings.limits, settings.features)
        self._positions = Trajectories(settings.track_s)
        self._counts = dict.fromkeys(("matched", "new", "unsure", "malformed", "strange"), 0)
        #: answers by camera and frame, because a worker that takes over a camera may send frames again
        self._answers: LruCache[tuple[str, bytes], Prediction] = LruCache(MAX_ANSWERS)
        #: frames in a row with vectors of another length
        self._strange = 0
        #: new vectors are not stored yet; changes are not stored yet
        self._has_learned = self._dirty = False
        #: monotonic seconds at which ``due`` stores changes next
        self._tend_at = 0.0  # at once: on a standby only ``due`` sets the gallery's time

    def open(self) -> None:
        """Load the gallery. Raises OSError or sqlite3.OperationalError if its file cannot be opened."""
        self.gallery.open()

    def close(self) -> None:
        """Store the gallery."""
        self.gallery.close()

    def take(self, findings: Sequence[Finding], now: float) -> Outcome:
        """Assign identities to the objects of each finding, and answer all findings.

        A finding without objects or usable features keeps its own prediction. New vectors are stored before the return.
        """
        self.gallery.set_time(now)
        answers: dict[bytes, Prediction | None] = {}
        tracks: list[Track] = []
        for finding in findings:
            frame = (finding.camera, finding.key[:FRAME_ID_BYTES])
            answer = self._answers.get(frame) or self._answer(finding, tracks)
            if answer is not None:
                self._answers.put(frame, answer)
            answers[finding.key] = answer
        if tracks and not self._dirty:
            self._dirty = True
            self._tend_at = now + STORE_PERIOD_S
        if self._has_learned:  # store new identities before they are published: a restarted worker must have them
            self._has_learned = False
            self.gallery.flush()
        return Outcome(answers, tracks)

    def due(self, now: float) -> Outcome:
        """Store changes and delete expired identities, if it is time for that; return an empty outcome."""
        if now >= self._tend_at:
            self.gallery.delete_and_store(now)
            self._dirty = False
            self._tend_at = now + CHECK_PERIOD_S
        return Outcome()

    def next_due(self) -> float:
        """Return the monotonic seconds at which to store changes next."""
        return self._tend_at

    def follow(self, tracks: Sequence[Track]) -> None:
        """Apply decisions of another worker; those with malformed features are counted and skipped."""
        for track in tracks:
            try:
                self.gallery.follow(track)
            except SampleError:
                self._counts["malformed"] += 1

    def ask(self, query: IdentityQuery) -> IdentityAnswer:
        """Answer a query by identity, by features, or by camera and time; after an error the answer has its text."""
        try:
            return IdentityAnswer(worker=WORKER_NAME, identities=answer(self.gallery, query))
        except (SampleError, ValueError, sqlite3.Error, msgspec.DecodeError) as error:
            return IdentityAnswer(worker=WORKER_NAME, error=str(error))

    def snapshot(self) -> Iterator[Track]:
        """Yield the known identities as tracks. Raises sqlite3.Error or msgspec.DecodeError for an unreadable file."""
        return self.gallery.snapshot()

    def metrics(self) -> Mapping[str, float]:
        """Return the size of the gallery, its counters, and those of the objects by outcome."""
        bank = self.gallery.bank
        sizes = {"identities": len(self.gallery), "vectors": len(bank), "index_bytes": bank.memory}
        counts = {name: getattr(self.gallery, name) for name in ("evicted", "expired", "unsaved")}
        return {f"reid_{name}": float(value) for name, value in (self._counts | sizes | counts).items()}

    def _answer(self, finding: Finding, tracks: list[Track]) -> Prediction | None:
        """Return the answer to a finding, and add its decisions to ``tracks``; None: no objects or usable features."""
        prediction = finding.prediction
        try:
            rows = vectors(prediction)
        except SampleError:
            rows = None
        if rows is None or len(rows) > MAX_BOXES or not rows.any(axis=1).all():
            self._counts["malformed"] += 1
            return None
        if not len(rows):
            return None
        if self.gallery.bank.length not in {0, rows.shape[1]} and not self._has_begun_anew(rows.shape[1]):
            return None
        self._strange = 0
        features = np.stack([unit(row) for row in rows])
        frame = FrameMatches(finding, features, self.gallery, self._positions, self._settings)
        identities = [self._see(frame, i, identity, tracks) for i, identity in enumerate(frame.pair_identities())]
        return msgspec.structs.replace(prediction, embeddings=None, value=identities)

    def _see(self, frame: FrameMatches, i: int, identity: IdentityRecord | None, tracks: list[Track]) -> str | None:
        """Record the object with index ``i`` and return its identity; None: it is not certain.

        ``identity``: the identity that it was paired with; None: none, so it may get a new one.
        """
        new = identity is None and frame.may_be_new(i)
        if identity is None and not new:
            self._counts["unsure"] += 1
            return None
        if identity is None:
            identity = self.gallery.create()
            frame.record_match(i)
        self._counts["new" if new else "matched"] += 1
        sighting = frame.sighting(i, identity)
        self.gallery.record(identity, sighting)
        has_learned = (new or frame.may_teach(i, identity)) and self.gallery.learn(identity, frame.features[i])
        self._has_learned |= has_learned
        self._positions.record(frame.camera, identity.id, frame.time, frame.boxes[i])
        embedding = self.gallery.bank.mean(identity) if has_learned else b""
        tracks.append(identity.track(sighting, embedding=embedding, new=new))
        return identity.id

    def _has_begun_anew(self, length: int) -> bool:
        """Count a frame with vectors of another ``length``; return whether a new gallery was begun because of many."""
        self._counts["strange"] += 1
        self._strange += 1
        if self._strange < NEW_LENGTH_FRAMES:
            return False
        self.gallery.begin_anew(f"features have {length} numbers now, and had {self.gallery.bank.length}")
        self._positions = Trajectories(self._settings.track_s)
        self._answers = LruCache(MAX_ANSWERS)
        return True


def answer(gallery: Gallery, query: IdentityQuery) -> list[Identity]:
    """Return the identities that match a query, the latest or the most similar first.

    Raises SampleError for features that cannot be decoded or are all zero, ValueError for features of another length,
    sqlite3.Error or msgspec.DecodeError if the file cannot be read.
    """
    gallery.flush()
    if query.identity:
        identity = gallery.get(query.identity)
        return [_identity(gallery, identity, query, query.limit)] if identity else []
    if query.embedding:
        return _similar_identities(gallery, query)
    until = query.until or LATEST_TIME
    identities = (gallery.get(id_) for id_ in gallery.store.latest_ids(query.camera, query.since, until, query.limit))
    return [_identity(gallery, identity, query, SIGHTINGS_EACH) for identity in identities if identity]


def _similar_identities(gallery: Gallery, query: IdentityQuery) -> list[Identity]:
    """Return the identities that are most similar to the query's features.

    If the query names a camera or a time, only those with a sighting there. Raises the errors of ``answer``.
    """
    vector = unit(unpack(query.embedding, 1)[0])
    if not vector.any():
        raise SampleError("the features are all zero")
    (near,) = gallery.bank.nearest(vector[None], min(query.limit, MAX_NEAREST), 2.0)  # above 1: a complete search
    identities = (_identity(gallery, record, query, SIGHTINGS_EACH, similarity) for record, similarity in near.items())
    is_filtered = bool(query.camera or query.since or query.until)
    return [record for record in identities if record.sightings or not is_filtered]


def _identity(
    gallery: Gallery, record: IdentityRecord, query: IdentityQuery, limit: int, similarity: float | None = None
) -> Identity:
    """Return an identity, with its last ``limit`` sightings that match a query, in the form for messages."""
    sightings = gallery.store.sightings(record.id, query.camera, query.since, query.until or LATEST_TIME, limit)
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
    """The objects of one frame, and the identities that they may have, by similarity and by expected position.

    Call ``pair_identities`` first. Objects are known by their index in the finding.

    Attributes:
        features: a unit vector for each object, ``(n, length) float32``.
        camera: the camera of the frame; UNNAMED if unknown.
        time: its capture time by the camera's clock, in seconds since 1970.
        boxes: the corners x1, y1, x2, y2 of each object in pixels, ``(n, 4) float64``; zeros for a whole picture.

    """

    def __init__(
        self, finding: Finding, features: Floats, gallery: Gallery, trajectories: Trajectories, settings: ReidSettings
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
        #: similarity of an object, by its index, to an identity; and the pairs of which the object is where expected
        self._near: dict[tuple[int, IdentityRecord], float] = {}
        self._expected: set[tuple[int, IdentityRecord]] = set()
        #: positions of the identities that the camera saw shortly before or after this frame
        self._trajectories: dict[IdentityRecord, Trajectory] = {}
        if boxes:
            for id_, trajectory in trajectories.near_time(self.camera, self.time):
                if (identity := gallery.get(id_)) is not None:
                    self._trajectories[identity] = trajectory
        self._positions = trajectories
        #: indexes of the objects that have an identity
        self._matched: list[int] = []

    def pair_identities(self) -> list[IdentityRecord | None]:
        """Return the identity of each object of the frame, each identity at most once; None: no identity."""
        settings = self._settings
        for i, near in enumerate(self._gallery.bank.nearest(self.features, MAX_CANDIDATES, settings.threshold)):
            self._near.update({(i, identity): similarity for identity, similarity in near.items()})
        for identity in self._trajectories:
            for i, similarity in enumerate(self._gallery.bank.similarities(identity, self.features).tolist()):
                self._near[i, identity] = similarity
        columns = {identity: j for j, identity in enumerate(dict.fromkeys(identity for _, identity in self._near))}
        worth = np.zeros((len(self.features), len(columns)))
        for (i, identity), similarity in self._near.items():
            worth[i, columns[identity]] = max(similarity, 0.0) if similarity >= settings.threshold else 0.0
        for identity, j in columns.items():
            self._weigh_by_position(identity, worth[:, j])
        candidates = list(columns)
        identities: list[IdentityRecord | None] = [None] * len(self.features)
        for i, j in assign(worth):
            identities[i] = candidates[j]
            self.record_match(i)
        return identities

    def record_match(self, i: int) -> None:
        """Record that the object with index ``i`` has an identity: a second box of it is not a new object."""
        self._matched.append(i)

    def _weigh_by_position(self, identity: IdentityRecord, worth: Array) -> None:
        """Change the worth of pairing an identity with each object, ``(n,)``, by the identity's expected position."""
        settings = self._settings
        trajectory = self._trajectories.get(identity)
        if trajectory is not None:
            overlap_by_box = overlaps(trajectory.expected_box(self.time), self.boxes)
            for i in np.flatnonzero(overlap_by_box >= EXPECTED_OVERLAP).tolist():
                similarity = self._near[i, identity]
                if similarity >= settings.threshold - EXPECTED_SLACK:
                    worth[i] = max(similarity, 0.0) + EXPECTED_WORTH * overlap_by_box[i]
                    self._expected.add((i, identity))
            if settings.speed:
                worth[~trajectory.reachable(self.time, self.boxes, settings.speed)] = 0.0
        if settings.travel_s and self._positions.travel_s(identity.id, self.camera, self.time) < settings.travel_s:
            worth[:] = 0.0

    def may_be_new(self, i: int) -> bool:
        """Whether an object without an identity may be new: not a second box of another object, and not cut off."""
        matched = self.boxes[self._matched]
        return not self._is_cut_off(i) and not (len(matched) and (overlaps(self.boxes[i], matched) > SAME_BOX).any())

    def may_teach(self, i: int, identity: IdentityRecord) -> bool:
        """Whether the identity of an object is certain enough to store its vector, and its box shows only it."""
        other_boxes = np.delete(self.boxes, i, axis=0)
        if self._is_cut_off(i) or (len(other_boxes) and (overlaps(self.boxes[i], other_boxes) > APART_BOX).any()):
            return False
        return (i, identity) in self._expected or self._near[i, identity] >= self._settings.learn

    def sighting(self, i: int, identity: IdentityRecord) -> Sighting:
        """Return the sighting of an object with its identity, in the form for messages."""
        finding = self._finding
        similarity = min(max(self._near.get((i, identity), 1.0), -1.0), 1.0)
        return Sighting(
            camera=self.camera,
            time=self.time,
            box=self._message_boxes[i],
            frame=finding.key[:FRAME_ID_BYTES].hex().ljust(2 * FRAME_ID_BYTES, "0"),
            similarity=round(similarity, 4),
            worker=finding.worker,
            node=finding.node,
        )

    def _is_cut_off(self, i: int) -> bool:
        """Whether an object reaches the edge of its picture; False if the picture's size is unknown."""
        size = self._finding.prediction.value
        if not isinstance(size, Mapping) or not self.boxes[i].any():
            return False
        x1, y1, x2, y2 = self.boxes[i].tolist()
        width, height = size.get("width"), size.get("height")
        if not isinstance(width, int | float) or not isinstance(height, int | float):
            return False
        return bool(x1 <= EDGE_PIXELS or y1 <= EDGE_PIXELS or x2 >= width - EDGE_PIXELS or y2 >= height - EDGE_PIXELS)


def _corners(boxes: Sequence[Box]) -> Array:
    """Return boxes as ``(boxes, 4) float64``: x1, y1, x2, y2 in pixels, the smaller corner first."""
    xyxy = np.array([[box.x1, box.y1, box.x2, box.y2] for box in boxes], np.float64).reshape(-1, 4)
    xyxy = np.clip(xyxy, -MAX_COORDINATE, MAX_COORDINATE)
    return np.concatenate([np.minimum(xyxy[:, :2], xyxy[:, 2:]), np.maximum(xyxy[:, :2], xyxy[:, 2:])], axis=1)


@dataclass(slots=True)
class Trajectory:
    """The last position of an object in a camera, and its movement.

    Attributes:
        time: capture time by the camera's clock, in seconds since 1970.
        box: its corners x1, y1, x2, y2 in pixels, ``(4,) float64``.
        velocity: of its center, in pixels a second, ``(2,) float64``; zeros if unknown.

    """

    time: float
    box: Array
    velocity: Array

    def expected_box(self, time: float) -> Array:
        """Return the corners that are expected at another time, ``(4,)`` in pixels."""
        moved = self.velocity * (time - self.time)
        return np.asarray(self.box + np.concatenate([moved, moved]))

    def reachable(self, time: float, boxes: Array, speed: float) -> Array:
        """Return for each of ``(boxes, 4)`` corners whether the object can be there at ``time``, ``(boxes,) bool``.

        ``speed``: the most times its own size that an object moves in a second.
        """
        size = float(np.hypot(*(self.box[2:] - self.box[:2])))
        sizes = np.hypot(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1])
        shift = _centers(boxes) - _centers(self.box)
        distance = np.hypot(shift[:, 0], shift[:, 1])
        return np.asarray(distance <= np.maximum(size, sizes) * (1.0 + speed * abs(time - self.time)))


class Trajectories:
    """The latest positions of identities in each camera, bounded, for ``keep_s`` seconds of the camera's clock.

    Similarity alone confuses similar objects and loses an object that turns. Positions help: objects do not jump.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._cameras: LruCache[str, OrderedDict[str, Trajectory]] = LruCache(MAX_CAMERAS)
        #: the last camera of an identity, and the time when it saw the identity
        self._last_seen: LruCache[str, tuple[str, float]] = LruCache(MAX_LAST_SEEN)

    def near_time(self, camera: str, time: float) -> Iterator[tuple[str, Trajectory]]:
        """Yield the ids of identities that a camera saw shortly before or after a time, with their positions.

        After, because pictures may arrive out of order.
        """
        for identity, trajectory in (self._cameras.get(camera) or {}).items():
            if abs(time - trajectory.time) <= self._keep_s:
                yield identity, trajectory

    def travel_s(self, identity: str, camera: str, time: float) -> float:
        """Return the seconds since another camera saw the identity; infinity if ``camera`` saw it last, or none did."""
        last_camera, last_time = self._last_seen.get(identity) or (camera, 0.0)
        return float("inf") if last_camera == camera else abs(time - last_time)

    def record(self, camera: str, identity: str, time: float, box: Array) -> None:
        """Record the position of an identity: ``box``, its corners ``(4,)`` in pixels at ``time``.

        A position before the latest one is not recorded. The velocity is a running mean.
        """
        self._last_seen.put(identity, (camera, time))
        by_identity = self._cameras.get(camera) or OrderedDict()
        self._cameras.put(camera, by_identity)
        if by_identity and time < next(reversed(by_identity.values())).time - self._keep_s:
            by_identity.clear()  # the camera's clock was set back
        earlier = by_identity.get(identity)
        if earlier and time < earlier.time:
            return
        velocity = np.zeros(2) if earlier is None else earlier.velocity
        if earlier and 0 < time - earlier.time <= self._keep_s:
            measured = (_centers(box) - _centers(earlier.box)) / (time - earlier.time)
            weight = NEW_WEIGHT if earlier.velocity.any() else 1.0
            velocity = weight * measured + (1 - weight) * earlier.velocity
        by_identity[identity] = Trajectory(time, box, velocity)
        by_identity.move_to_end(identity)
        while by_identity and (
            len(by_identity) > MAX_OBJECTS or next(iter(by_identity.values())).time < time - self._keep_s
        ):
            by_identity.popitem(last=False)


def _centers(boxes: Array) -> Array:
    """Return the centers of boxes: corners ``(..., 4)`` become ``(..., 2)``."""
    return np.asarray((boxes[..., :2] + boxes[..., 2:]) / 2)
