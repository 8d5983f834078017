"""A plane on which twelve objects move, and three cameras that see overlapping parts of it, each in its own light.

Everything follows from the seed: where objects are at a time, what a camera sees then, and where in its picture an
object truly is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from examples.multi_edge.pictures import BICUBIC, SIDE, Picture, objects

WIDTH, HEIGHT = 1440, 420
VIEW = (480, 324)
SEED = 6
#: lanes: their middle, and pixels a second (negative: to the left)
LANES = ((42.0, 168.0), (126.0, -190.0), (210.0, 150.0), (294.0, -176.0), (378.0, 196.0))
#: seconds before the first object comes, between two in a lane, and before one that has left comes again
QUIET, SPACING, ABSENCE = 1.0, 1.3, 2.0
BORDER = 3
#: an object of which less is in the picture need not be found, and is not wrong if it is
VISIBLE = 0.6

Points = NDArray[np.float64]


@dataclass(frozen=True)
class Leg:
    """One way of an object across the plane, from ``start`` on; ``to``: the lane that it changes to half way."""

    thing: int
    lane: int
    start: float
    to: int

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return (WIDTH + 2 * SIDE) / abs(LANES[self.lane][1])

    def place(self, time: float) -> tuple[float, float, float]:
        """Return x and y of its middle and its angle in degrees."""
        y, speed = LANES[self.lane]
        gone = time - self.start
        x: float = -SIDE + speed * gone if speed > 0 else WIDTH + SIDE + speed * gone
        part = min(1.0, max(0.0, (gone / self.seconds - 0.35) / 0.3))
        y += (LANES[self.to][0] - y) * (part * part * (3 - 2 * part))
        phase = 1.7 * self.thing
        return x, y + 3 * math.sin(1.9 * time + phase), 6 * math.sin(1.3 * time + phase)


@dataclass(frozen=True)
class Camera:
    """What one camera sees: four corners on the plane (left above, clockwise), and how its picture comes out."""

    name: str
    corners: tuple[tuple[float, float], ...]
    cast: tuple[float, float, float]
    noise: float

    @cached_property
    def to_plane(self) -> Points:
        """Return the 3 x 3 matrix that takes a pixel of the picture to the plane."""
        width, height = VIEW
        pixels = ((0, 0), (width, 0), (width, height), (0, height))
        rows, wanted = [], []
        for (u, v), (x, y) in zip(pixels, self.corners, strict=True):
            rows += [[u, v, 1, 0, 0, 0, -x * u, -x * v], [0, 0, 0, u, v, 1, -y * u, -y * v]]
            wanted += [x, y]
        return np.append(np.linalg.solve(np.array(rows, dtype=float), np.array(wanted, dtype=float)), 1).reshape(3, 3)

    def seen(self, points: Points) -> Points:
        """Take points of the plane to pixels."""
        flat = np.column_stack([points, np.ones(len(points))]) @ np.linalg.inv(self.to_plane).T
        return np.asarray(flat[:, :2] / flat[:, 2:])

    def light(self, share: float) -> float:
        """Return how bright it is there, ``share`` of the film gone: clouds, a lamp, a slow evening."""
        if self.name == "west":
            return 0.86 + 0.26 / (1 + math.exp(-(share - 0.45) * 90))  # somebody switches on a lamp
        if self.name == "mid":
            return 1.0 - 0.32 * math.exp(-(((share - 0.62) / 0.08) ** 2))  # a cloud passes
        return 1.05 - 0.3 * share  # it gets dark


CAMERAS = (
    Camera("west", ((0, 0), (640, 4), (600, 420), (30, 416)), (1.07, 1.0, 0.86), 5.0),
    Camera("mid", ((400, 0), (1040, 0), (1010, 420), (430, 420)), (1.0, 1.0, 1.0), 7.0),
    Camera("east", ((800, 4), (1440, 0), (1410, 416), (840, 420)), (0.86, 0.98, 1.12), 9.0),
)


@dataclass(frozen=True)
class Truth:
    """Where an object is in a picture: corners in pixels, and how much of it is in the picture."""

    thing: int
    box: tuple[float, float, float, float]
    visible: float


@cache
def legs(seconds: float) -> tuple[Leg, ...]:
    """Return all ways of a film: each object crosses the plane, is away for a while, and comes back elsewhere."""
    draw = np.random.default_rng(SEED)
    free_lane = [QUIET + 1.1 * i for i in range(len(LANES))]
    free_thing = dict.fromkeys(range(len(objects())), QUIET)
    found: list[Leg] = []
    while True:
        lane = min(range(len(LANES)), key=lambda i: (free_lane[i], i))
        start = free_lane[lane]
        if start > seconds - 2:
            return tuple(found)
        ready = [i for i, free in free_thing.items() if free <= start]
        if not ready:
            free_lane[lane] = start + 0.4
            continue
        thing = ready[int(draw.integers(len(ready)))]
        to = lane + 2 if lane + 2 < len(LANES) and len(found) % 5 == 4 else lane
        leg = Leg(thing, lane, start, to)
        found.append(leg)
        free_lane[lane] = start + SPACING + 3.4 * float(draw.random())
        free_thing[thing] = start + leg.seconds + ABSENCE


def present(time: float, seconds: float) -> Iterator[tuple[int, tuple[float, float, float]]]:
    """Yield the objects on the plane at a time, and where."""
    for leg in legs(seconds):
        if leg.start <= time <= leg.start + leg.seconds:
            yield leg.thing, leg.place(time)


def plane(time: float, seconds: float) -> Image.Image:
    """Draw the plane from above."""
    image = _ground().copy()
    for thing, (x, y, angle) in present(time, seconds):
        sprite, shadow = _sprite(thing)
        turned = sprite.rotate(angle, BICUBIC, expand=True)
        shade = shadow.rotate(angle, BICUBIC, expand=True)
        image.paste((10, 11, 14), (round(x - shade.width / 2) + 4, round(y - shade.height / 2) + 6), shade)
        image.paste(turned, (round(x - turned.width / 2), round(y - turned.height / 2)), turned)
    return image


def view(camera: Camera, from_above: Image.Image, share: float, draw: np.random.Generator) -> Picture:
    """Return what a camera makes of the plane: its angle, light, cast and noise."""
    seen = from_above.transform(VIEW, Image.Transform.PERSPECTIVE, list(camera.to_plane.ravel()[:8]), BICUBIC)
    lit = np.asarray(seen, dtype=np.float32) * (camera.light(share) * np.array(camera.cast, dtype=np.float32))
    lit += draw.standard_normal(lit.shape, dtype=np.float32) * np.float32(camera.noise)
    return np.clip(lit, 0, 255).astype(np.uint8)


def truths(camera: Camera, time: float, seconds: float) -> list[Truth]:
    """Return what is truly in a camera's picture."""
    width, height = VIEW
    found = []
    for thing, (x, y, angle) in present(time, seconds):
        half, turn = SIDE / 2 + BORDER, math.radians(-angle)
        square = np.array([(-half, -half), (half, -half), (half, half), (-half, half)])
        matrix = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
        points = camera.seen(square @ matrix + (x, y))
        (x1, y1), (x2, y2) = points.min(axis=0), points.max(axis=0)
        left, top, right, bottom = max(x1, 0.0), max(y1, 0.0), min(x2, float(width)), min(y2, float(height))
        if right > left and bottom > top:
            visible = (right - left) * (bottom - top) / ((x2 - x1) * (y2 - y1))
            found.append(Truth(thing, (float(left), float(top), float(right), float(bottom)), float(visible)))
    return found


@cache
def _ground() -> Image.Image:
    draw = np.random.default_rng(SEED)
    coarse = Image.fromarray(draw.integers(0, 255, (14, 48), dtype=np.uint8)).resize((WIDTH, HEIGHT), BICUBIC)
    fine = draw.normal(0, 5, (HEIGHT, WIDTH))
    grey = 66 + (np.asarray(coarse, dtype=float) - 128) * 0.10 + fine
    image = Image.fromarray(np.clip(grey[..., None] * (0.94, 1.0, 1.10), 0, 255).astype(np.uint8))
    lines = ImageDraw.Draw(image)
    for y in (84, 168, 252, 336):
        for x in range(0, WIDTH, 72):
            lines.rectangle((x, y - 1, x + 30, y + 1), fill=(112, 116, 122))
    return image.filter(ImageFilter.GaussianBlur(0.8))


@cache
def _sprite(thing: int) -> tuple[Image.Image, Image.Image]:
    """Return an object with rounded corners and a light border, and its shadow as a mask."""
    side = SIDE + 2 * BORDER
    mask = Image.new("L", (side * 4, side * 4))
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, side * 4 - 1, side * 4 - 1), radius=40, fill=255)
    mask = mask.resize((side, side), Image.Resampling.LANCZOS)
    sprite = Image.new("RGBA", (side, side), (226, 228, 230, 255))
    sprite.paste(Image.fromarray(objects()[thing][1]), (BORDER, BORDER))
    sprite.putalpha(mask)
    return sprite, mask.point(lambda value: value // 2).filter(ImageFilter.GaussianBlur(2))
