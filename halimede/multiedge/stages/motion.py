"""Finds what moves before a camera that stands still, without a model: each picture is compared with a background.

For cameras that have no detector, and for nodes too small for one. It knows brightness alone: what differs from what
is behind it in colour only is not seen, and neither is what stands still; a shadow is seen as what throws it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from halimede.api.processing import Grayscale
from halimede.inference import Array, SampleError, preprocess
from halimede.messages import Box
from halimede.multiedge.stage import Item, Parameters, Stage, Tools
from halimede.multiedge.stages.background import Background, Difference
from halimede.multiedge.stages.connected_components import Region, crowded, regions
from halimede.multiedge.stages.model_stages import max_boxes

#: cameras that are remembered: the one that was not seen for longest goes first
MAX_CAMERAS = 32
#: after so many pictures in a row that have little to do with the background it is learnt anew
STRANGE = 5
#: answers of a camera that are known again: a batch in which a frame fails is run in halves
REMEMBERED = 64
#: cells of nine around one that must have moved with it
CROWD = 4
#: parts of one thing that are as far apart, in cells
GAP = 2
LABEL = "motion"


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

    The first five pictures of a camera only teach it the background. Changes of light (all over the picture, or more
    on one side) and noise are no motion; a picture that is different altogether has no boxes, and after five of these
    the background is learnt anew: the camera was moved, or its resolution has changed.

    Its parameters are

    - ``motionThreshold`` (15): grey levels (of 255) by which a thing must differ from what is behind it;
    - ``motionArea`` (0.0005): least share of the picture that it takes up;
    - ``motionMost`` (0.6): share of the picture beyond which it is no motion but another picture;
    - ``motionSide`` (320): longest side in pixels at which pictures are compared;
    - ``motionMemory`` (180): pictures of the past; what stands still for half of them becomes background;
    - ``maxBoxes`` (32): so many of the largest stay.
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
                boxes = self._downscale(camera, item.image)
                _remember(camera, item.id, boxes)
            item.prediction.boxes = list(boxes)

    def _camera(self, name: str) -> _Camera:
        if name not in self._cameras:
            self._cameras[name] = _Camera(Background(self._settings.memory))
            while len(self._cameras) > MAX_CAMERAS:
                self._cameras.popitem(last=False)
        self._cameras.move_to_end(name)
        return self._cameras[name]

    def _downscale(self, camera: _Camera, image: Array) -> list[Box]:
        factor = -(-max(image.shape[:2]) // self._settings.side)
        picture = small(image, factor)
        if camera.background.shape not in {None, picture.shape}:
            camera.background = Background(self._settings.memory)
        found = camera.background.compare(picture, self._settings.threshold)
        if found is None:
            return self._strange(camera, picture) if camera.background.ready else self._learnt(camera, picture)
        mask = crowded(found.moved > found.limit, CROWD)
        if mask.mean() > self._settings.most:
            return self._strange(camera, picture)
        camera.strange = 0
        camera.background.learn(picture)
        height, width = image.shape[:2]
        least = max(1.0, self._settings.area * mask.size)
        parts = [region for region in regions(mask, GAP) if region.area >= least][: self._settings.boxes]
        return [_box(region, found, factor, width, height) for region in parts]

    def _learnt(self, camera: _Camera, picture: NDArray[np.float32]) -> list[Box]:
        camera.background.learn(picture)
        return []

    def _strange(self, camera: _Camera, picture: NDArray[np.float32]) -> list[Box]:
        camera.strange += 1
        if camera.strange >= STRANGE:
            camera.strange = 0
            camera.background = Background(self._settings.memory)
            camera.background.learn(picture)
        return []


def small(image: Array, factor: int) -> NDArray[np.float32]:
    """Give the brightness of a picture, ``factor`` times smaller. Raises SampleError for what is no 8-bit picture."""
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


def _box(region: Region, found: Difference, factor: int, width: int, height: int) -> Box:
    """Give a region in pixels of the frame. Its score, over one half, grows with how much it differs."""
    place = (slice(region.top, region.bottom), slice(region.left, region.right))
    moved, limit = found.moved[place], found.limit[place]
    over = moved > limit
    score = float(np.mean(moved[over] / (moved[over] + limit[over])))
    return Box(
        float(region.left * factor),
        float(region.top * factor),
        float(min(region.right * factor, width)),
        float(min(region.bottom * factor, height)),
        score,
        LABEL,
    )
