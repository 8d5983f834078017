"""The stage ``Motion`` finds what moves in pictures of a fixed camera: it compares them with a background.

It needs no model: it is for workers without a detector, and for nodes too small for one. It uses only brightness: it
does not find what differs from the background only in color, or what stands still. A shadow counts as the object that
casts it. Pictures are compared at a smaller size, whose pixels are called cells.
"""

from __future__ import annotations

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
from halimede.system.lru import LruCache

#: cameras that are remembered; above that, the least recently seen one is dropped
MAX_CAMERAS = 32
#: pictures in a row that hardly match the background, after which the background is learned again
STRANGE = 5
#: remembered answers of a camera: if a frame of a batch fails, the others are run again
REMEMBERED = 64
#: cells that must differ, of the three by three around a cell, for the cell to count
CROWD = 4
#: parts at most this many cells apart belong to one object
GAP = 2
#: label of the boxes
LABEL = "motion"
#: a number for each cell, ``(height, width)``
Plane: TypeAlias = NDArray[np.floating[Any]]
#: pictures (planes) whose median is the background, and the least number of them for a comparison
PLANES, LEAST = 9, 5
#: indexes in the PLANES sorted pictures between which half of them lie
LOW, HIGH = 2, 6
#: about so many cells are used to fit the light, spread over the picture
FITTED = 4096
#: factor from the median absolute deviation to the standard deviation of normal noise
NORMAL = 1.4826
#: least and highest factor of brightness between two pictures that can be compared
GAINS = (0.2, 5.0)
#: the grey level of white
WHITE = 255.0


@dataclass(slots=True)
class _Camera:
    """A camera's background, its ``strange`` pictures in a row, and its last answers by frame id."""

    background: Background
    strange: int = 0
    answers: LruCache[bytes, list[Box]] = field(default_factory=lambda: LruCache(REMEMBERED))


@dataclass(frozen=True, slots=True)
class _Settings:
    """The parameters of ``Motion``.

    Attributes:
        threshold: grey levels (1..255) by which an object must differ from the background.
        area: least share (0..1) of the picture that an object covers.
        most: share of the picture above which the whole picture counts as different.
        side: longest side in pixels at which pictures are compared.
        memory: the number of latest pictures over which those that make the background are spread.
        boxes: the most boxes of a picture.

    """

    threshold: float
    area: float
    most: float
    side: int
    memory: int
    boxes: int


class Motion(Stage):
    """Set the boxes of what moves, with the label ``motion`` and a score from 0.5 to 1.

    A ``Stage`` that remembers earlier pictures: its application must not be shared. The first five pictures of a camera
    only define the background. Changes of light (over the whole picture, or more on one side) and noise do not count as
    motion. A picture that differs completely has no boxes. After five of these in a row the background is learned
    again: the camera was moved.

    Its parameters are

    - ``motionThreshold`` (15): grey levels (of 255) by which an object must differ from the background;
    - ``motionArea`` (0.0005): least share of the picture that an object covers;
    - ``motionMost`` (0.6): share of the picture above which the whole picture counts as different;
    - ``motionSide`` (320): longest side in pixels at which pictures are compared;
    - ``motionMemory`` (180): latest pictures that make the background; an object that stands still for half of them
      becomes background;
    - ``maxBoxes`` (32): the most boxes, the largest first.
    """

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._settings = _read(tools.parameters)
        self._cameras: LruCache[str, _Camera] = LruCache(MAX_CAMERAS)

    def run(self, items: Sequence[Item]) -> None:
        """Set the boxes of each item (an empty list if nothing moves), and learn the backgrounds.

        A frame that comes again gets the boxes that it got before. Raises SampleError for a picture that is not uint8.
        """
        for item in items:
            camera = self._camera(item.camera)
            boxes = camera.answers.get(item.id)
            if boxes is None:
                boxes = self._find_motion(camera, item.image)
                if item.id:
                    camera.answers.put(item.id, boxes)
            item.prediction.boxes = list(boxes)

    def _camera(self, name: str) -> _Camera:
        """Return the state of a camera, a new one for a new camera."""
        camera = self._cameras.get(name)
        if camera is None:
            camera = _Camera(Background(self._settings.memory))
            self._cameras.put(name, camera)
        return camera

    def _find_motion(self, camera: _Camera, image: Array) -> list[Box]:
        """Return the boxes of what moves in a camera's next picture, and learn its background from the picture.

        A picture that differs completely has no boxes, and is not learned before it is the fifth in a row.
        """
        factor = -(-max(image.shape[:2]) // self._settings.side)  # rounded up
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
        """Learn the background from a picture; return no boxes."""
        camera.background.learn(picture)
        return []

    def _count_strange(self, camera: _Camera, picture: NDArray[np.float32]) -> list[Box]:
        """Count a picture that differs completely, and begin a new background after enough; return no boxes."""
        camera.strange += 1
        if camera.strange >= STRANGE:
            camera.strange = 0
            camera.background = Background(self._settings.memory)
            camera.background.learn(picture)
        return []


def small(image: Array, factor: int) -> NDArray[np.float32]:
    """Return the grey levels (0..255) of a picture, ``factor`` times smaller. Raises SampleError unless it is uint8."""
    if image.dtype != np.uint8:
        raise SampleError(f"the stage Motion wants a picture of 8 bits, and is given {image.dtype}")
    grey = Image.fromarray(preprocess.apply([Grayscale()], image)[:, :, 0])
    return np.asarray(grey.reduce(factor) if factor > 1 else grey, np.float32)


def _read(parameters: Parameters) -> _Settings:
    """Return the parameters of an application. Raises InvalidFieldError."""
    return _Settings(
        threshold=parameters.number("motionThreshold", 15, least=1, most=255),
        area=parameters.number("motionArea", 0.0005, least=0, most=1),
        most=parameters.number("motionMost", 0.6, least=0.05, most=1),
        side=int(parameters.number("motionSide", 320, least=32, most=1024)),
        memory=int(parameters.number("motionMemory", 180, least=9, most=1_000_000)),
        boxes=max_boxes(parameters),
    )


def _box(region: Region, difference: Difference, factor: int, width: int, height: int) -> Box:
    """Return a region of cells as a box in pixels of the frame, which has this width and height.

    The score, above 0.5, grows with the difference. ``factor``: pixels of the frame on each side of a cell.
    """
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
    """Return a mask without cells that have fewer than ``least`` set cells in the three by three around them."""
    padded = np.pad(mask.astype(np.uint8), 1)
    across = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    return np.asarray(mask & (across[:-2] + across[1:-1] + across[2:] >= least))


@dataclass(frozen=True, slots=True)
class Difference:
    """Of each cell the difference from the background, ``moved``, and the ``limit`` above which it counts as motion.

    Both are grey levels.
    """

    moved: Plane
    limit: Plane


class Background:
    """The background of one camera, and its difference from a picture.

    The background is, for each cell, the median of PLANES pictures, which are spread over the last ``memory`` pictures:
    neither passing objects nor objects of the first pictures stay in it for long. Before a comparison, the background
    is fitted to the light of the picture: a gain and an offset, each with a slope across and down the picture, fitted
    to the cells that do not move. All pictures are grey levels (0..255), and have the same size.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._planes: list[Plane] = []
        #: of each cell the median of the planes, and the range in which half of them lie; None: too few planes
        self._middle: Plane | None = None
        self._spread: Plane | None = None
        #: pictures so far, and those after the last one that became a plane
        self._pictures = 0
        self._since = 0

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Height and width of its pictures; None before the first one."""
        return self._planes[0].shape if self._planes else None

    @property
    def ready(self) -> bool:
        """Whether there are enough pictures for a comparison."""
        return self._middle is not None

    def compare(self, picture: Plane, threshold: float) -> Difference | None:
        """Return the difference of a picture from the background; None: it is not ready, or the light differs too much.

        ``threshold``: grey levels by which an object must at least differ.
        """
        if self._middle is None or self._spread is None:
            return None
        light = fit_light(self._middle, picture)
        if light is None:
            return None
        gain, offset = light
        expected = np.clip(self._middle * gain + offset, 0, WHITE)
        moved = np.abs(picture - expected)
        noise = NORMAL * float(np.median(moved))
        # cells that flicker, and noisy pictures, must differ by more; flicker alone at most doubles the threshold
        flicker = np.minimum(3 * self._spread * gain, 2 * threshold)
        return Difference(moved, np.maximum(flicker, max(threshold, 4 * noise)))

    def learn(self, picture: Plane) -> None:
        """Learn from a picture. At first each picture counts, later one of ever more, up to one of memory / PLANES.

        A picture whose light differs too much from that of the background is left out.
        """
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
    """Return the gain and offset of each cell that map the background to the picture where nothing moves.

    A least squares fit that excludes outliers (moving objects) and cells that are black or white, where light is
    clipped. Returns None if the gain is outside of GAINS.
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
    for _ in range(4):  # each fit leaves out the cells that the fit before does not explain: moving objects
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
    """Return a few planes sorted cell by cell: the first one has the least value of each cell.

    Whole planes are compared at a time, which is faster than a sort of each cell.
    """
    ordered = list(planes)
    for step in range(len(ordered)):
        for i in range(step % 2, len(ordered) - 1, 2):
            ordered[i], ordered[i + 1] = np.minimum(ordered[i], ordered[i + 1]), np.maximum(ordered[i], ordered[i + 1])
    return ordered
