"""Detects motion in pictures of a camera that does not move: compares each picture with a background, without a model.

For cameras without a detector, and for nodes too small for one. It uses only brightness: it does not detect what
differs from the background only in color, or what stands still. A shadow is detected like the object that casts it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from halimede.api.processing import Grayscale
from halimede.inference import Array, SampleError, preprocess
from halimede.inference.connected_regions import Mask, Region, regions
from halimede.messages import Box
from halimede.multiedge.stage import Item, Parameters, Stage, Tools
from halimede.multiedge.stages.model_stages import max_boxes

#: cameras that are remembered; above that, the least recently seen one is dropped
MAX_CAMERAS = 32
#: pictures in a row that hardly match the background, after which the background is learned again
STRANGE = 5
#: remembered answers of a camera: if a frame fails, its batch is run again in halves
REMEMBERED = 64
#: cells, of the nine around a cell, that must differ for the cell to count
CROWD = 4
#: parts at most this many cells apart belong to one object
GAP = 2
LABEL = "motion"
Plane: TypeAlias = NDArray[np.floating[Any]]
#: pictures for the median, and the least number of them for a comparison
PLANES, LEAST = 9, 5
#: indexes in the sorted pictures between which half of them lie
LOW, HIGH = 2, 6
#: cells that the fit of the light uses
FITTED = 4096
#: factor from the median absolute deviation to the standard deviation of normal noise
NORMAL = 1.4826
#: gains within which two pictures can be compared
GAINS = (0.2, 5.0)
WHITE = 255.0


@dataclass(slots=True)
class _Camera:
    background: Background
    strange: int = 0
    answers: OrderedDict[bytes, list[Box]] = field(default_factory=OrderedDict)


@dataclass(frozen=True, slots=True)
class _Settings:
    threshold: float
    area: float
    most: float
    side: int
    memory: int
    boxes: int


class Motion(Stage):
    """Set the boxes of what moves (label ``motion``). Remembers earlier pictures: its application is not shared.

    The first five pictures of a camera only define the background. Changes of light (over the whole picture, or more on
    one side) and noise do not count as motion. A picture that differs completely has no boxes, and after five of these
    the background is learned again: the camera was moved, or its resolution has changed.

    Its parameters are

    - ``motionThreshold`` (15): grey levels (of 255) by which an object must differ from the background;
    - ``motionArea`` (0.0005): least share of the picture that an object covers;
    - ``motionMost`` (0.6): share of the picture above which the whole picture counts as different;
    - ``motionSide`` (320): longest side in pixels at which pictures are compared;
    - ``motionMemory`` (180): pictures in memory; an object that stands still for half of them becomes background;
    - ``maxBoxes`` (32): the most boxes, the largest first.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._settings = _read(tools.parameters)
        self._cameras: OrderedDict[str, _Camera] = OrderedDict()

    def run(self, items: Sequence[Item]) -> None:
        """Set the boxes of each item, an empty list where nothing moves."""
        for item in items:
            camera = self._camera(item.camera)
            boxes = camera.answers.get(item.id)
            if boxes is None:
                boxes = self._find_motion(camera, item.image)
                _remember(camera, item.id, boxes)
            item.prediction.boxes = list(boxes)

    def _camera(self, name: str) -> _Camera:
        if name not in self._cameras:
            self._cameras[name] = _Camera(Background(self._settings.memory))
            while len(self._cameras) > MAX_CAMERAS:
                self._cameras.popitem(last=False)
        self._cameras.move_to_end(name)
        return self._cameras[name]

    def _find_motion(self, camera: _Camera, image: Array) -> list[Box]:
        factor = -(-max(image.shape[:2]) // self._settings.side)
        picture = small(image, factor)
        if camera.background.shape not in {None, picture.shape}:
            camera.background = Background(self._settings.memory)
        difference = camera.background.compare(picture, self._settings.threshold)
        if difference is None:
            return self._count_strange(camera, picture) if camera.background.ready else self._learn(camera, picture)
        mask = remove_isolated(difference.moved > difference.limit, CROWD)
        if mask.mean() > self._settings.most:
            return self._count_strange(camera, picture)
        camera.strange = 0
        camera.background.learn(picture)
        height, width = image.shape[:2]
        least = max(1.0, self._settings.area * mask.size)
        objects = [region for region in regions(mask, GAP) if region.area >= least][: self._settings.boxes]
        return [_box(region, difference, factor, width, height) for region in objects]

    def _learn(self, camera: _Camera, picture: NDArray[np.float32]) -> list[Box]:
        camera.background.learn(picture)
        return []

    def _count_strange(self, camera: _Camera, picture: NDArray[np.float32]) -> list[Box]:
        camera.strange += 1
        if camera.strange >= STRANGE:
            camera.strange = 0
            camera.background = Background(self._settings.memory)
            camera.background.learn(picture)
        return []


def small(image: Array, factor: int) -> NDArray[np.float32]:
    """Return the brightness of a picture, ``factor`` times smaller. Raises SampleError unless it has 8 bits."""
    if image.dtype != np.uint8:
        raise SampleError(f"the stage Motion wants a picture of 8 bits, and is given {image.dtype}")
    grey = Image.fromarray(preprocess.apply([Grayscale()], image)[:, :, 0])
    return np.asarray(grey.reduce(factor) if factor > 1 else grey, np.float32)


def _read(parameters: Parameters) -> _Settings:
    return _Settings(
        threshold=parameters.number("motionThreshold", 15, least=1, most=255),
        area=parameters.number("motionArea", 0.0005, least=0, most=1),
        most=parameters.number("motionMost", 0.6, least=0.05, most=1),
        side=int(parameters.number("motionSide", 320, least=32, most=1024)),
        memory=int(parameters.number("motionMemory", 180, least=9, most=1_000_000)),
        boxes=max_boxes(parameters),
    )


def _remember(camera: _Camera, frame: bytes, boxes: list[Box]) -> None:
    if frame:
        camera.answers[frame] = boxes
        while len(camera.answers) > REMEMBERED:
            camera.answers.popitem(last=False)


def _box(region: Region, difference: Difference, factor: int, width: int, height: int) -> Box:
    """Return a region in pixels of the frame. Its score, above one half, grows with the difference."""
    cells = (slice(region.y1, region.y2), slice(region.x1, region.x2))
    moved, limit = difference.moved[cells], difference.limit[cells]
    over = moved > limit
    score = float(np.mean(moved[over] / (moved[over] + limit[over])))
    return Box(
        float(region.x1 * factor),
        float(region.y1 * factor),
        float(min(region.x2 * factor, width)),
        float(min(region.y2 * factor, height)),
        score,
        LABEL,
    )


def remove_isolated(mask: Mask, least: int) -> Mask:
    """Return the set cells with at least ``least`` set cells among the nine around them, themselves included."""
    padded = np.pad(mask.astype(np.uint8), 1)
    across = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    return np.asarray(mask & (across[:-2] + across[1:-1] + across[2:] >= least))


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between a picture and the background in grey levels, its limit, and the noise."""

    moved: Plane
    limit: Plane
    noise: float


class Background:
    """The background of one camera, and its difference from a picture. Pure NumPy.

    The background is, for each cell, the median of ``memory`` pictures taken over time: neither passing objects nor
    objects of the first pictures stay in it for long. Before a comparison, the background is fitted to the light of the
    picture: a gain and an offset, each with a slope across and down the picture, fitted to the cells that do not move.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._planes: list[Plane] = []
        self._middle: Plane | None = None
        self._spread: Plane | None = None
        self._pictures = 0
        self._since = 0

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The size of its pictures; None before the first one."""
        return self._planes[0].shape if self._planes else None

    @property
    def ready(self) -> bool:
        """Whether there are enough pictures for a comparison."""
        return self._middle is not None

    def compare(self, picture: Plane, threshold: float) -> Difference | None:
        """Compare a picture with the background; None while there is none, or if the light differs too much."""
        if self._middle is None or self._spread is None:
            return None
        light = fit_light(self._middle, picture)
        if light is None:
            return None
        gain, offset = light
        expected = np.clip(self._middle * gain + offset, 0, WHITE)
        moved = np.abs(picture - expected)
        noise = NORMAL * float(np.median(moved))
        flicker = np.minimum(3 * self._spread * gain, 2 * threshold)
        return Difference(moved, np.maximum(flicker, max(threshold, 4 * noise)), noise)

    def learn(self, picture: Plane) -> None:
        """Record a picture: at first each picture is stored, later one of ever more, until ``memory`` is reached."""
        self._pictures += 1
        self._since += 1
        if self._planes and self._since < min(max(1, self._memory // PLANES), max(1, self._pictures // 3)):
            return
        if self._middle is not None:
            light = fit_light(self._middle, picture)
            if light is None:
                return
            gain, offset = light
            picture = (picture - offset) / gain
        self._since = 0
        self._planes = [*self._planes[-PLANES + 1 :], picture]
        if len(self._planes) >= LEAST:
            ordered = _sort_planes(self._planes)
            self._middle = ordered[len(ordered) // 2]
            self._spread = ordered[HIGH * len(ordered) // PLANES] - ordered[LOW * len(ordered) // PLANES]


def fit_light(background: Plane, picture: Plane) -> tuple[Plane, Plane] | None:
    """Return the gain and offset (planes) that map the background to the picture where nothing moves.

    A least squares fit that excludes outliers (moving objects) and cells that are black or white, where light is
    clipped. Returns None if the light differs too much.
    """
    height, width = picture.shape
    stride = max(1, int(np.sqrt(height * width / FITTED)))
    cells = (slice(stride // 2, None, stride), slice(stride // 2, None, stride))
    down, across = (
        axis.ravel()
        for axis in np.meshgrid(*(np.linspace(-1, 1, size) for size in picture[cells].shape), indexing="ij")
    )
    before, after = background[cells].ravel(), picture[cells].ravel()
    middle = float(np.median(before))
    contrast = [float(np.median(np.abs(values - np.median(values)))) for values in (before, after)]
    gain = contrast[1] / contrast[0] if min(contrast) > 1 else 1.0
    gain = float(np.clip(gain, *GAINS))
    centred = (before - middle) / WHITE
    columns = np.stack([centred, centred * across, centred * down, np.ones_like(before), across, down], axis=1)
    # without contrast in the background, the gain cannot be determined and stays near its start
    weight = np.diag([2e-4, 2e-4, 2e-4, 1e-5, 1e-3, 1e-3]) * len(before)
    start = np.array([gain * WHITE, 0, 0, float(np.median(after)), 0, 0])
    factors, lit = start, (after > 0) & (after < WHITE)
    for _ in range(4):
        residuals = np.abs(after - columns @ factors)
        fits = lit & (residuals <= max(2.0, 3 * NORMAL * float(np.median(residuals))))
        chosen = columns[fits]
        factors = np.linalg.solve(chosen.T @ chosen + weight, chosen.T @ after[fits] + weight @ start)
    if not GAINS[0] <= factors[0] / WHITE <= GAINS[1]:
        return None
    rows, cols = np.linspace(-1, 1, height)[:, np.newaxis], np.linspace(-1, 1, width)[np.newaxis]
    gains = np.clip((factors[0] + factors[1] * cols + factors[2] * rows) / WHITE, *GAINS)
    offsets = factors[3] + factors[4] * cols + factors[5] * rows - gains * middle
    return gains.astype(np.float32), offsets.astype(np.float32)


def _sort_planes(planes: list[Plane]) -> list[Plane]:
    """Return a few planes sorted cell by cell: whole planes at a time, which is faster than a sort of each cell."""
    ordered = list(planes)
    for step in range(len(ordered)):
        for i in range(step % 2, len(ordered) - 1, 2):
            ordered[i], ordered[i + 1] = np.minimum(ordered[i], ordered[i + 1]), np.maximum(ordered[i], ordered[i + 1])
    return ordered
