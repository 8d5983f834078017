"""Fits which regions of hard frames are uploaded: the fewest bytes with which the joint answers have the objects.

Objects are those that the big model finds in whole frames. The scale of frames comes first, then regions at this scale,
then whether a smaller picture of them is as good. Everything is fitted on one part of the pictures and measured on the
other. If the best rule has too few objects or hardly fewer bytes than frames, or if the held-out pictures have no
objects, frames are uploaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

import msgspec
import numpy as np

from halimede.calibration.blocks import Indices
from halimede.calibration.measurement import share
from halimede.errors import InvalidFieldError
from halimede.evaluation.data import FIELD
from halimede.evaluation.quality import OBJECT_SCORE
from halimede.evaluation.region_uploads import RegionUploads, objects_in
from halimede.frames.payloads import new_frame
from halimede.inference import Array
from halimede.messages import Frame, Prediction
from halimede.mining.calibration_file import GRID, RegionRule
from halimede.pipeline.transcode import frame_size
from halimede.regions import find_regions

#: share of the big model's objects that joint answers must have, beyond the standard error of this share
MIN_RECALL = 0.97
#: share of the big model's objects that frames at a smaller scale must have
MIN_SCALED_RECALL = 0.99
#: share of the pictures that is held out, and most pictures to fit on
HELD_OUT, MAX_PICTURES = 0.3, 200
#: what rules are tried with: scales of the frame, scores from which a box counts as sure, paddings around regions
SCALES = (0.75, 0.5, 0.375, 0.25)
SURE_SCORES, PADDINGS = (1.0, 0.8, 0.6), (0.0, 0.15, 0.3, 0.5, 1.0)
#: sides of a canvas for packed regions, as shares of the frame's
CANVASES = (0.25, 0.5)
#: share of missed objects that a rule's ``cells`` cover, and most cells: with more, objects are missed anywhere
MAPPED_SHARE, MAX_CELLS = 0.9, 16
#: regions must have fewer bytes than this share of those of frames
MAX_BYTES_SHARE = 0.95

#: answers the samples with these indices by uploads with a rule
Uploader = Callable[[RegionRule, Indices], RegionUploads]


@dataclass(frozen=True, slots=True)
class FittedRegions:
    """What was fitted. ``rule``: None if frames are uploaded whole.

    ``measures``: metrics of the held-out pictures by name; ``notes``: sentences for the user.
    """

    rule: RegionRule | None
    measures: dict[str, float]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RegionTrial:
    """A rule on some pictures.

    ``bytes``: uploads as a share of the bytes of the frames as received. ``objects``, ``matched``, each ``(n,)``: for
    each picture the number of the big model's objects in the whole frame, and of those that the joint answers have.
    """

    rule: RegionRule
    bytes: float
    objects: np.ndarray
    matched: np.ndarray

    @property
    def recall(self) -> float:
        """The share of the objects that the joint answers have."""
        return float(self.matched.sum() / max(1, self.objects.sum()))

    @property
    def is_enough(self) -> bool:
        """Whether the joint answers have enough objects, also in other pictures."""
        error = math.sqrt(self.recall * (1 - self.recall) / max(1, self.objects.sum()))
        return self.recall - error >= MIN_RECALL


class RegionFit:
    """Finds the best rule for the answers of both models to the same pictures.

    ``upload``: answers pictures with a rule.
    """

    def __init__(
        self, images: Sequence[Array | Frame], edge: Sequence[Prediction], cloud: Sequence[Prediction], upload: Uploader
    ) -> None:
        self._images = images
        self._edge = edge
        self._cloud = cloud
        self._upload = upload

    def fit(self) -> FittedRegions:
        """Return the rule with the fewest bytes that has enough objects, and its measures.

        The pictures are uploaded and answered anew with each rule that is tried. Raises InvalidFieldError for samples
        that are no pictures, and what ``upload`` raises.
        """
        order = np.random.default_rng(0).permutation(len(self._edge))
        tested = round(len(order) * HELD_OUT)
        learning, testing = order[tested:][:MAX_PICTURES], order[:tested]
        frames = self._fit_scale(learning)
        best = self._fit_boxes(learning, frames.rule.scale)
        if best.is_enough:
            best = self._fit_canvas(learning, best)
        return self._judge(best, frames, testing)

    def _trial(self, rule: RegionRule, indices: Indices) -> RegionTrial:
        """Return the outcome of a rule on the pictures with these indices."""
        uploads = self._upload(rule, indices)
        objects, matched = objects_in([self._cloud[i] for i in indices], uploads.joint)
        sizes = sum(_bytes_of(self._images[i]) for i in indices)
        return RegionTrial(rule, float(uploads.sizes.sum() / sizes), objects, matched)

    def _fit_scale(self, indices: Indices) -> RegionTrial:
        """Return whole frames at the smallest scale at which the big model finds its objects."""
        best = self._trial(RegionRule(sure=0.0), indices)
        for scale in SCALES:
            trial = self._trial(RegionRule(sure=0.0, scale=scale), indices)
            if trial.recall < MIN_SCALED_RECALL:
                break
            best = trial
        return best

    def _fit_boxes(self, indices: Indices, scale: float) -> RegionTrial:
        """Return the cheapest trial with enough objects, else that with most: of each score the least padding."""
        samples = [(self._edge[i], self._cloud[i], *size_of(self._images[i])) for i in indices]
        maps = {tuple(cells) for cells in ([], missed_cells(samples))}
        trials = []
        for sure, cells in product(SURE_SCORES, sorted(maps)):
            low, high = 0, len(PADDINGS)
            while low < high:
                middle = (low + high) // 2
                rule = RegionRule(sure=sure, padding=PADDINGS[middle], cells=list(cells), scale=scale)
                trials.append(self._trial(rule, indices))
                low, high = (low, middle) if trials[-1].is_enough else (middle + 1, high)
        enough = [trial for trial in trials if trial.is_enough]
        return min(enough, key=lambda trial: trial.bytes) if enough else max(trials, key=lambda trial: trial.recall)

    def _fit_canvas(self, indices: Indices, best: RegionTrial) -> RegionTrial:
        """Return a trial with packed regions if it has enough objects and fewer bytes."""
        for canvas in CANVASES:
            trial = self._trial(msgspec.structs.replace(best.rule, canvas=canvas), indices)
            if trial.is_enough and trial.bytes < best.bytes:
                return trial
        return best

    def _judge(self, best: RegionTrial, frames: RegionTrial, testing: Indices) -> FittedRegions:
        """Choose regions or frames, and measure both on held-out pictures."""
        regions, whole = self._trial(best.rule, testing), self._trial(RegionRule(sure=0.0), testing)
        scaled = self._trial(frames.rule, testing)
        blocks = np.arange(len(testing))
        value = share(regions.matched / np.maximum(1, regions.objects), blocks, regions.objects.astype(float))
        measures = dict(zip(("region_objects", "region_objects.low", "region_objects.high"), value, strict=True))
        measures |= {"region_bytes": regions.bytes, "frame_bytes": whole.bytes, "scaled_bytes": scaled.bytes}
        notes = []
        if not best.is_enough:
            notes.append(
                f"with regions, the joint answers have {best.recall:.1%} of the {int(best.objects.sum())} objects that"
                f" the big model finds in frames, too few to show {MIN_RECALL:.0%}: frames are uploaded (upload: frame)"
            )
        elif best.bytes > MAX_BYTES_SHARE * frames.bytes:
            scale = f" at {frames.rule.scale:g} of their sides: see maxBytes" if frames.rule.scale < 1 else ""
            notes.append(
                f"regions have {best.bytes:.0%} of the bytes of frames, and frames{scale} {frames.bytes:.0%}: frames"
                " are uploaded (upload: frame)"
            )
        if not regions.objects.sum():
            notes.append(f"the big model finds no object (score {OBJECT_SCORE:g} or more) in the held-out pictures")
        return FittedRegions(None if notes else best.rule, measures, notes)


def missed_cells(samples: Sequence[tuple[Prediction, Prediction, int, int]]) -> list[int]:
    """Return the cells of the grid that have most objects outside of the regions of the small model's boxes.

    ``samples``: answers of the small and the big model, width and height in pixels. Empty if there are no such objects,
    or if they are in more than ``MAX_CELLS`` cells.
    """
    counts = np.zeros(GRID * GRID, np.int64)
    for edge, cloud, width, height in samples:
        regions = find_regions(edge.boxes or [], width, height, RegionRule(sure=1.0))
        if regions is None:
            continue  # the frame is uploaded whole
        for box in cloud.boxes or ():
            x, y = (box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2
            is_covered = any(r.x1 <= x < r.x2 and r.y1 <= y < r.y2 for r in regions)
            if box.score >= OBJECT_SCORE and not is_covered and 0 <= x < width and 0 <= y < height:
                counts[int(y * GRID / height) * GRID + int(x * GRID / width)] += 1
    order = np.argsort(-counts, kind="stable")
    number = int(np.searchsorted(counts[order].cumsum(), MAPPED_SHARE * counts.sum())) + 1
    return sorted(order[:number].tolist()) if counts.any() and number <= MAX_CELLS else []


def size_of(image: Array | Frame) -> tuple[int, int]:
    """Return width and height of a picture in pixels. Raises InvalidFieldError for a sample that is no picture."""
    frame = image if isinstance(image, Frame) else new_frame(image)
    size = frame_size(frame)
    if size is None:
        form = f"{frame.dtype} {frame.shape}"
        raise InvalidFieldError(FIELD, form, "regions are parts of pictures: give pictures, or set upload to frame")
    return size


def _bytes_of(image: Array | Frame) -> int:
    """Return the number of bytes of a picture as it was received."""
    return image.data.nbytes if isinstance(image, Frame) else image.nbytes
