"""Assigns identities to the objects of a frame: the joint of re-identification.

Each box has features. Within one frame of one camera an identity appears once, so boxes and identities are paired as
a whole, by how alike they are; where an object was a moment ago before the same camera says how far to believe that.
Who is like nobody known gets a new identity. Queries are answered by identity, by features, or by camera and time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np

from halimede.inference import SampleError, unit, unpack
from halimede.messages import Identity, IdentityAnswer, IdentityQuery, Prediction, Track
from halimede.multiedge.reid.frame_matcher import FrameMatches
from halimede.multiedge.reid.gallery import Gallery
from halimede.multiedge.reid.identity_eviction import IdentityEviction
from halimede.multiedge.reid.settings import ReidSettings
from halimede.multiedge.reid.trajectories import Trajectories
from halimede.multiedge.stage import Finding, Joint, JointTools, Outcome
from halimede.multiedge.stages import vectors
from halimede.system.lru import LruCache

#: boxes of one frame that are looked at
MOST_BOXES = 256
#: frames in a row with vectors of another length before the gallery is begun anew: the model was changed
STRANGE = 100
#: frames whose answers are remembered, and bytes of a finding's key that are its frame's
REMEMBERED, FRAME_ID = 4096, 16
#: seconds between two looks at what is to be written and forgotten, when there is something and when there is not
BUSY_S, QUIET_S = 1.0, 10.0
NOBODY = "matcher"
#: sightings of each, where several identities are asked for
FEW = 5
FOREVER = 1e15
#: how many are looked up by features at most
NEAREST = 200


class Matcher(Joint):
    """Give objects identities over all cameras of a service, in a gallery in ``tools.state``. Call ``open`` first.

    A finding's answer has the boxes and, as ``value``, a list of as many: an identity or None (nothing sure).
    """

    def __init__(self, tools: JointTools, settings: ReidSettings) -> None:
        super().__init__(tools)
        self._settings = settings
        self.gallery = Gallery(tools.state, settings.limits, settings.features)
        self._paths = Trajectories(settings.track_s)
        self._counts = dict.fromkeys(("matched", "new", "unsure", "malformed", "strange"), 0)
        #: frames may come again from whoever has taken over
        self._answered: LruCache[tuple[str, bytes], Prediction] = LruCache(REMEMBERED)
        self._strange = 0
        self._learnt = self._dirty = False
        self._tend_at = 0.0  # at once: a standby is told what time it is by nothing else

    def open(self) -> None:
        """Read the gallery."""
        self.gallery.open()

    def close(self) -> None:
        """Write the gallery."""
        self.gallery.close()

    def take(self, findings: Sequence[Finding], now: float) -> Outcome:
        """Say who is in each of them. Malformed ones stand as they are."""
        self.gallery.at(now)
        answers: dict[bytes, Prediction | None] = {}
        tracks: list[Track] = []
        for finding in findings:
            frame = (finding.camera, finding.key[:FRAME_ID])
            answer = self._answered.get(frame) or self._answer(finding, tracks)
            if answer is not None:
                self._answered.put(frame, answer)
            answers[finding.key] = answer
        self._tended(now, dirty=bool(tracks))
        if self._learnt:  # nobody is told of an identity that a killed worker would not know again
            self._learnt = False
            self.gallery.flush()
        return Outcome(answers, tracks)

    def due(self, now: float) -> Outcome:
        """Write and forget."""
        if now >= self._tend_at:
            self.gallery.tend(now)
            self._dirty = False
            self._tend_at = now + QUIET_S
        return Outcome()

    def next_due(self) -> float:
        """Return when there is something to write."""
        return self._tend_at

    def follow(self, tracks: Sequence[Track]) -> None:
        """Learn what another worker has decided; what is malformed is left out."""
        for track in tracks:
            try:
                self.gallery.follow(track)
            except SampleError:
                self._counts["malformed"] += 1

    def ask(self, query: IdentityQuery) -> IdentityAnswer:
        """Answer where somebody was seen."""
        try:
            return IdentityAnswer(worker=NOBODY, identities=answer(self.gallery, query))
        except (SampleError, ValueError, sqlite3.Error, msgspec.DecodeError) as error:
            return IdentityAnswer(worker=NOBODY, error=str(error))

    def snapshot(self) -> Iterator[Track]:
        """Yield everybody who is known."""
        return self.gallery.snapshot()

    def metrics(self) -> Mapping[str, float]:
        """Return what shall be seen in metrics."""
        held = {"identities": len(self.gallery), "vectors": self.gallery.vectors, "index_bytes": self.gallery.memory}
        gone = {name: getattr(self.gallery, name) for name in ("evicted", "expired", "unsaved")}
        return {f"reid_{name}": float(value) for name, value in (self._counts | held | gone).items()}

    def _tended(self, now: float, *, dirty: bool) -> None:
        if dirty and not self._dirty:
            self._dirty = True
            self._tend_at = now + BUSY_S

    def _answer(self, finding: Finding, tracks: list[Track]) -> Prediction | None:
        said = finding.prediction
        try:
            rows = vectors(said)
        except SampleError:
            rows = None
        if rows is None or len(rows) > MOST_BOXES or not rows.any(axis=1).all():
            self._counts["malformed"] += 1
            return None
        if not len(rows):
            return None
        if self.gallery.length not in {0, rows.shape[1]} and not self._begin_anew(rows.shape[1]):
            return None
        self._strange = 0
        features = np.stack([unit(row) for row in rows])
        frame = FrameMatches(finding, features, self.gallery, self._paths, self._settings)
        who = [self._see(frame, i, known, tracks) for i, known in enumerate(frame.who())]
        return msgspec.structs.replace(said, embeddings=None, value=who)

    def _see(self, frame: FrameMatches, i: int, known: IdentityEviction | None, tracks: list[Track]) -> str | None:
        new = known is None and frame.may_be_new(i)
        if known is None and not new:
            self._counts["unsure"] += 1
            return None
        if known is None:
            known = self.gallery.create()
            frame.taken(i)
        self._counts["new" if new else "matched"] += 1
        seen = frame.sighting(i, known)
        self.gallery.see(known, seen)
        learnt = (new or frame.may_teach(i, known)) and self.gallery.learn(known, frame.features[i])
        self._learnt |= learnt
        self._paths.seen(frame.camera, known.id, frame.time, frame.boxes[i])
        embedding = self.gallery.mean(known) if learnt else b""
        tracks.append(known.track(seen, embedding=embedding, new=new))
        return known.id

    def _begin_anew(self, length: int) -> bool:
        """Say whether so many vectors of another length have come that the model must have been changed."""
        self._counts["strange"] += 1
        self._strange += 1
        if self._strange < STRANGE:
            return False
        self.gallery.begin_anew(f"features have {length} numbers now, and had {self.gallery.length}")
        self._paths = Trajectories(self._settings.track_s)
        self._answered = LruCache(REMEMBERED)
        return True


def answer(gallery: Gallery, query: IdentityQuery) -> list[Identity]:
    """Return who fits, the latest first; by features the most alike first. Raises SampleError, ValueError."""
    gallery.flush()
    if query.identity:
        known = gallery.get(query.identity)
        return [_identity(gallery, known, query, query.limit)] if known else []
    if query.embedding:
        return _like(gallery, query)
    until = query.until or FOREVER
    known_ = (gallery.get(id_) for id_ in gallery.store.seen(query.camera, query.since, until, query.limit))
    return [_identity(gallery, known, query, FEW) for known in known_ if known]


def _like(gallery: Gallery, query: IdentityQuery) -> list[Identity]:
    vector = unit(unpack(query.embedding, 1)[0])
    if not vector.any():
        raise SampleError("the features are all zero")
    (near,) = gallery.nearest(vector[None], min(query.limit, NEAREST), 2.0)
    found = (_identity(gallery, known, query, FEW, similarity) for known, similarity in near.items())
    asked = bool(query.camera or query.since or query.until)
    return [identity for identity in found if identity.sightings or not asked]


def _identity(
    gallery: Gallery, known: IdentityEviction, query: IdentityQuery, limit: int, similarity: float | None = None
) -> Identity:
    sightings = gallery.store.sightings(known.id, query.camera, query.since, query.until or FOREVER, limit)
    return Identity(
        identity=known.id,
        count=known.count,
        cameras=list(known.cameras),
        first=known.first,
        last=known.last,
        similarity=None if similarity is None else round(similarity, 4),
        sightings=sightings,
    )
