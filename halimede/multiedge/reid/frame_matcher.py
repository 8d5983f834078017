"""The objects of one frame, and who they may be: by how they look, and by where everybody was a moment ago."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from halimede.inference import Array
from halimede.inference.boxes import overlaps
from halimede.messages import Box, Sighting
from halimede.multiedge.reid.assignment import assign
from halimede.multiedge.reid.gallery import Gallery
from halimede.multiedge.reid.identity_eviction import IdentityEviction
from halimede.multiedge.reid.settings import ReidSettings
from halimede.multiedge.reid.trajectories import Trajectories, Trajectory
from halimede.multiedge.reid.vector_index import Floats
from halimede.multiedge.stage import Finding

#: identities that each object is compared with
CANDIDATES = 8
#: by how much less alike an object may be where it is expected, and what that is worth
SLACK, WORTH = 0.25, 0.3
#: overlap with where it is expected from which it is; with another's box from which both show one object, and neither
EXPECTED, TWICE, APART = 0.3, 0.5, 0.1
#: pixels from the rim of the picture within which a box is cut off
RIM = 2.0
#: no picture is as large; numbers that a sender makes up may be
FAR = 1e6
#: a source that names no camera
UNNAMED = "unnamed"


class FrameMatches:
    """The objects of one finding, and who they may be."""

    def __init__(
        self, finding: Finding, features: Floats, gallery: Gallery, paths: Trajectories, settings: ReidSettings
    ) -> None:
        self.features = features
        self.camera = finding.camera or UNNAMED
        self.time = finding.captured_ns / 1e9
        boxes = finding.prediction.boxes
        # without boxes the whole picture is the one object, whose place says nothing
        self._said = boxes if boxes is not None else [Box(0.0, 0.0, 0.0, 0.0, 1.0)]
        self.boxes = _corners(self._said)
        self._finding = finding
        self._gallery = gallery
        self._settings = settings
        self._near: dict[tuple[int, IdentityEviction], float] = {}
        self._expected: set[tuple[int, IdentityEviction]] = set()
        self._steps: dict[IdentityEviction, Trajectory] = {}
        if boxes:
            for id_, step in paths.before(self.camera, self.time):
                if (known := gallery.get(id_)) is not None:
                    self._steps[known] = step
        self._paths = paths
        self._matched: list[int] = []

    def who(self) -> list[IdentityEviction | None]:
        """Pair objects with identities, one to one; None: with nobody."""
        settings = self._settings
        for i, near in enumerate(self._gallery.nearest(self.features, CANDIDATES, settings.threshold)):
            self._near.update({(i, known): similarity for known, similarity in near.items()})
        for known in self._steps:
            for i, similarity in enumerate(self._gallery.similarities(known, self.features).tolist()):
                self._near[i, known] = similarity
        columns = {known: j for j, known in enumerate(dict.fromkeys(known for _, known in self._near))}
        worth = np.zeros((len(self.features), len(columns)))
        for (i, known), similarity in self._near.items():
            worth[i, columns[known]] = max(similarity, 0.0) if similarity >= settings.threshold else 0.0
        for known, j in columns.items():
            self._believe(known, worth[:, j])
        whose = list(columns)
        found: list[IdentityEviction | None] = [None] * len(self.features)
        for i, j in assign(worth):
            found[i] = whose[j]
            self.taken(i)
        return found

    def taken(self, i: int) -> None:
        """Note that it is known who an object is."""
        self._matched.append(i)

    def _believe(self, known: IdentityEviction, worth: Array) -> None:
        """Change what an identity is worth to each object by where it was."""
        settings = self._settings
        step = self._steps.get(known)
        if step is not None:
            likely = overlaps(step.expected(self.time), self.boxes)
            for i in np.flatnonzero(likely >= EXPECTED).tolist():
                similarity = self._near[i, known]
                if similarity >= settings.threshold - SLACK:
                    worth[i] = max(similarity, 0.0) + WORTH * likely[i]
                    self._expected.add((i, known))
            if settings.speed:
                worth[~step.reachable(self.time, self.boxes, settings.speed)] = 0.0
        if settings.travel_s and self._paths.elsewhere(known.id, self.camera, self.time) < settings.travel_s:
            worth[:] = 0.0

    def may_be_new(self, i: int) -> bool:
        """Say whether an object that is like nobody is somebody: not a second box of one, not cut off."""
        others = self.boxes[self._matched]
        return not self._cut(i) and not (len(others) and (overlaps(self.boxes[i], others) > TWICE).any())

    def may_teach(self, i: int, known: IdentityEviction) -> bool:
        """Say whether it is sure enough who this is, and that the box shows nobody else."""
        others = np.delete(self.boxes, i, axis=0)
        if self._cut(i) or (len(others) and (overlaps(self.boxes[i], others) > APART).any()):
            return False
        return (i, known) in self._expected or self._near[i, known] >= self._settings.learn

    def sighting(self, i: int, known: IdentityEviction) -> Sighting:
        """Return what is said of it."""
        finding = self._finding
        similarity = min(max(self._near.get((i, known), 1.0), -1.0), 1.0)
        return Sighting(
            camera=self.camera,
            time=self.time,
            box=self._said[i],
            frame=finding.key[:16].hex().ljust(32, "0"),
            similarity=round(similarity, 4),
            worker=finding.worker,
            node=finding.node,
        )

    def _cut(self, i: int) -> bool:
        """Say whether an object reaches beyond its picture, where the picture's size is known."""
        size = self._finding.prediction.value
        if not isinstance(size, Mapping) or not self.boxes[i].any():
            return False
        left, top, right, bottom = self.boxes[i].tolist()
        width, height = size.get("width"), size.get("height")
        if not isinstance(width, int | float) or not isinstance(height, int | float):
            return False
        return bool(left <= RIM or top <= RIM or right >= width - RIM or bottom >= height - RIM)


def _corners(boxes: Sequence[Box]) -> Array:
    found = np.array([[box.x1, box.y1, box.x2, box.y2] for box in boxes], np.float64).reshape(-1, 4)
    found = np.clip(found, -FAR, FAR)
    return np.concatenate([np.minimum(found[:, :2], found[:, 2:]), np.maximum(found[:, :2], found[:, 2:])], axis=1)
