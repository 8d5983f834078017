"""Draws answers on their picture: boxes with labels, landmarks, lines of text, and classes in a corner.

Equal input gives an equal picture.

Every line has a dark border, and every text a plate, so that both can be read on light and on dark pictures. Lines and
letters grow with the picture, and a tiny picture is enlarged first. All lines are drawn before all plates, and a plate
goes where it covers least: beside its box, or in it. The surest box chooses first. A plate that would cover another one
is shortened; if even the score alone would cover one, the box has only its line.

Of one model, a label has the same colour on every picture. Of several, each model has a colour, and a legend names it.
All sizes are bounded: of the picture, of the number of boxes, and of each text.
"""

from __future__ import annotations

import functools
import itertools
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from halimede.answer_text import LABEL_CHARACTERS, TEXT_CHARACTERS, count_text, score_text
from halimede.errors import InvalidFieldError
from halimede.frames.encodings import Pixels, encode_image, is_picture
from halimede.messages import Box, PicturePoint, Prediction, TextLine

#: pixels of the longer side: a smaller picture is enlarged to at least this, a larger one scaled down to it
MIN_SIDE, MAX_SIDE = 320, 2048
#: most boxes and lines of text of an answer that are drawn, and points of a box
MAX_BOXES, MAX_POINTS = 100, 500
#: distinguishable also with colour blindness (Okabe and Ito's colours, without black)
COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#d55e00", "#cc79a7", "#0072b2")
#: of the first model and of the one that gave the final answer, as on GM's page
EDGE_COLOUR, FINAL_COLOUR = "#4aa8ff", "#ff9a1f"
TRUTH_COLOUR, POINT_COLOUR, LINE_COLOUR, BORDER = "#ffffff", "#ff4fd8", "#56b4e9", "#000000"
#: rows of text that take more than this part of the height go to the emptiest corner: the picture may be a line of text
STRIP = 8
#: length of a dash, in widths of its line
DASH = 6
#: least width of the landmarks of an object, in radii of one
DOTS = 8
#: sides of the picture for one pixel of a line, and for one of the letters; least of both, in pixels
STROKE_SIDES, LETTER_SIDES, MIN_STROKE, MIN_LETTERS = 400, 64, 2, 12
#: between a label and its score: with one space of the font, `2 0.98` is read as 20.98
GAP = "  "
#: characters of a label whose plate would cover too much
SHORT_CHARACTERS = 8
#: what a plate costs: for each pixel of another plate, for a line that it covers from its top to its bottom, for each
#: step in the order of places, and for each shorter text; 1 is the cost of a whole box
PLATE_COST, LINE_COST, ORDER_COST, SHORTER_COST = 1000.0, 0.3, 0.01, 0.5
#: pixels below which a JPEG of limited size is not made smaller; its qualities, the best first
MIN_JPEG_SIDE = 64
QUALITIES = (85, 70, 55, 40, 25, 10)

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
Corner = tuple[float, float]
#: left, top, right, bottom
Rectangle = tuple[float, float, float, float]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Layer:
    """An answer to draw.

    ``name``: whose answer it is, for the legend; empty: it needs none. ``colour``: of all its boxes and texts; empty:
    each label has its own.
    """

    answer: Prediction
    name: str = ""
    colour: str = ""
    dashed: bool = False
    has_labels: bool = True


def result_layers(answer: Prediction, by: str, edge: Prediction | None) -> list[Layer]:
    """Return the layers of a final answer: of the edge's, and of another worker's (``by``) with the edge's dashed."""
    if by == "edge":
        return [Layer(answer, by, EDGE_COLOUR)]
    behind = [] if edge is None else [Layer(edge, "edge", EDGE_COLOUR, dashed=True)]
    return [*behind, Layer(answer, by, FINAL_COLOUR)]


def truth_layer(boxes: Sequence[Box]) -> Layer:
    """Return the layer of the true objects, without labels."""
    return Layer(Prediction(boxes=list(boxes)), colour=TRUTH_COLOUR, dashed=True, has_labels=False)


def draw(pixels: Pixels, layers: Sequence[Layer], *, side: int = MAX_SIDE) -> Image.Image:
    """Return a picture with answers on it; the longer side has at most ``side`` pixels.

    ``pixels``: height x width (x 3) uint8, in which the boxes are. The last layer's labels choose their places
    first. Raises InvalidFieldError for an array that is no picture.
    """
    if not is_picture(pixels):
        raise InvalidFieldError("picture", f"{pixels.dtype} {pixels.shape}", "give uint8, height x width or x 3")
    canvas = Canvas(pixels, side)
    for layer in sorted(layers, key=lambda layer: layer.dashed):  # gaps show an equal line below
        canvas.draw_lines(layer)
    canvas.write_rows([row for layer in reversed(layers) for row in _rows(layer)])
    for layer in reversed(layers):
        canvas.write_labels(layer)
    return canvas.image


def drawn_parts(answer: Prediction) -> Prediction:
    """Return only what a drawing of this answer shows."""
    order = _surest(answer.boxes or ())
    return Prediction(
        label=answer.label,
        score=answer.score,
        boxes=answer.boxes and [answer.boxes[number] for number in order],
        landmarks=answer.landmarks and _landmarks(answer, order),
        lines=answer.lines and answer.lines[:MAX_BOXES],
    )


def draw_jpeg(pixels: Pixels, layers: Sequence[Layer], *, side: int = MAX_SIDE, max_bytes: int = 0) -> bytes:
    """Return the drawing as a JPEG, of the best quality that has at most ``max_bytes`` (0: no limit), else smaller."""
    drawn = np.asarray(draw(pixels, layers, side=side))
    data = b""
    for quality in QUALITIES:
        data = encode_image(drawn, "jpeg", quality)
        if not max_bytes or len(data) <= max_bytes:
            return data
    return draw_jpeg(pixels, layers, side=side // 2, max_bytes=max_bytes) if side > MIN_JPEG_SIDE else data


def draw_png(pixels: Pixels, layers: Sequence[Layer]) -> bytes:
    """Return the drawing as a PNG, without loss."""
    return encode_image(np.asarray(draw(pixels, layers)), "png")


class Obstacles:
    """The rectangles of a picture, each with the cost of one of its pixels that a plate covers."""

    def __init__(self) -> None:
        self._rectangles: Floats = np.empty((0, 4))
        self._costs: Floats = np.empty(0)

    def add(self, rectangle: Rectangle, cost: float) -> None:
        """Add a rectangle."""
        self._rectangles = np.vstack([self._rectangles, rectangle])
        self._costs = np.append(self._costs, cost)

    def costs(self, plates: Sequence[Rectangle]) -> Floats:
        """Return the cost of each of these plates."""
        corners = np.asarray(plates)[:, np.newaxis]
        first, last = (
            np.maximum(corners[..., :2], self._rectangles[:, :2]),
            np.minimum(corners[..., 2:], self._rectangles[:, 2:]),
        )
        return np.asarray(np.clip(last - first, 0, None).prod(axis=2) @ self._costs)


class Canvas:
    """A picture to draw on, at its size in the drawing. Places are pixels of the drawing."""

    def __init__(self, pixels: Pixels, side: int) -> None:
        height, width = pixels.shape[:2]
        longer, least = max(width, height), min(MIN_SIDE, side)
        #: pixels of the drawing for one of the frame
        self._factor = float(-(-least // longer)) if longer < least else min(1.0, side / longer)
        size = max(1, round(width * self._factor)), max(1, round(height * self._factor))
        resampling = Image.Resampling.NEAREST if self._factor > 1 else Image.Resampling.LANCZOS
        self.image = Image.fromarray(pixels).convert("RGB").resize(size, resampling)
        longest = min(max(size), 3 * min(size))  # of a long strip the shorter side counts
        self._stroke: int = max(MIN_STROKE, round(longest / STROKE_SIDES))
        self._letters: int = max(MIN_LETTERS, round(longest / LETTER_SIDES))
        self._padding: int = max(2, self._letters // 6)
        self._plate_height = float(round(1.2 * self._letters) + self._padding)
        self._font = _font(self._letters)
        self._pen = ImageDraw.Draw(self.image)
        self._obstacles = Obstacles()
        self._line_cost = LINE_COST / (self._plate_height * self._stroke)

    def draw_lines(self, layer: Layer) -> None:
        """Draw boxes, landmarks and the corners of lines of text, without any label."""
        order = _surest(layer.answer.boxes or ())
        for number in reversed(order):  # the surest one on top
            box = (layer.answer.boxes or [])[number]
            self._outline(_corners(self._rectangle(box)), layer.colour or _colour(str(box.label)), dashed=layer.dashed)
        for _, corners in _placed_lines(layer):
            self._outline(self._points(corners), layer.colour or LINE_COLOUR)
        for points in filter(None, map(self._points, _landmarks(layer.answer, order))):
            self._draw_points(points)

    def write_rows(self, rows: Sequence[tuple[str, str]]) -> None:
        """Write rows of text with their colours, one below the other, in the corner where they cover least."""
        width, height = self.image.size
        rows = [(self._fitting(text), colour) for text, colour in rows[: max(1, int(height / self._plate_height))]]
        if not rows:
            return
        wide, high = max(self._plate_width(text) for text, _ in rows), len(rows) * self._plate_height
        corners = [(x, y) for y in (0, height) for x in (0, width)]
        if high > height / STRIP:
            corners.sort(key=lambda corner: self._contrast(corner, wide, high))
        left, top, right, _ = self._cheapest(corners, wide, high)[0]
        for number, (text, colour) in enumerate(rows):
            own, at = self._plate_width(text), top + number * self._plate_height
            x = left if left <= 0 else right - own
            self._write((x, at, x + own, at + self._plate_height), text, colour)

    def _contrast(self, corner: Corner, wide: float, high: float) -> float:
        """Return how different the pixels in a corner of this size are: high where there is a text."""
        width, height = self.image.size
        left, top = min(corner[0], max(0.0, width - wide)), min(corner[1], max(0.0, height - high))
        return float(np.asarray(self.image.crop((int(left), int(top), int(left + wide), int(top + high)))).std())

    def write_labels(self, layer: Layer) -> None:
        """Write the labels of boxes and of lines of text."""
        if not layer.has_labels:
            return
        for number in _surest(layer.answer.boxes or ()):
            box = (layer.answer.boxes or [])[number]
            label = str(box.label)
            texts = [_scored(label, box.score, most) for most in (LABEL_CHARACTERS, SHORT_CHARACTERS)]
            texts.append(score_text(box.score))
            self._write_label(self._rectangle(box), texts, layer.colour or _colour(label))
        for line, corners in _placed_lines(layer):
            around = _around(self._points(corners))
            self._write_label(around, [_scored(line.text, line.score)], layer.colour or LINE_COLOUR)

    def _write_label(self, around: Rectangle, texts: Sequence[str], colour: str) -> None:
        """Write one of these texts, the longest first, where it covers least, and no other plate."""
        left, top, right, bottom = around
        high, gap = self._plate_height, self._stroke // 2 + 1
        choices = []
        for number, text in enumerate(map(self._fitting, dict.fromkeys(texts))):
            wide = self._plate_width(text)
            above, below, far = top - gap - high, bottom + gap, right - wide
            starts = [
                (left, above), (left, below), (far, above), (far, below), (right + gap, top), (left - gap - wide, top),
                (left + gap, top + gap), (far - gap, top + gap),
                (left + gap, bottom - gap - high), (far - gap, bottom - gap - high),
            ]  # fmt: skip
            plate, cost = self._cheapest(starts, wide, high)
            choices.append((cost + number * SHORTER_COST, plate, text))
        cost, plate, text = min(choices)
        if cost < PLATE_COST:
            self._write(plate, text, colour)

    def _cheapest(self, starts: Sequence[Corner], wide: float, high: float) -> tuple[Rectangle, float]:
        """Return the plate at the corner where it covers least, moved into the picture, and its cost."""
        width, height = self.image.size
        inside = [(max(0.0, min(x, width - wide)), max(0.0, min(y, height - high))) for x, y in starts]
        rectangles = [(x, y, x + wide, y + high) for x, y in inside]
        costs = self._obstacles.costs(rectangles) + ORDER_COST * np.arange(len(starts))
        best = int(costs.argmin())
        return rectangles[best], float(costs[best])

    def _write(self, plate: Rectangle, text: str, colour: str) -> None:
        left, top, right, bottom = plate
        self._obstacles.add(plate, PLATE_COST)
        self._pen.rectangle((left, top, right - 1, bottom - 1), fill=colour, outline=BORDER)
        self._pen.text((left + self._padding, (top + bottom) / 2), text, _ink(colour), self._font, anchor="lm")

    def _outline(self, corners: Sequence[Corner], colour: str, *, dashed: bool = False) -> None:
        """Draw a closed line through the corners, with a border."""
        stroke = self._stroke
        left, top, right, bottom = around = _around(corners)
        self._obstacles.add(around, 1 / max(1.0, (right - left) * (bottom - top)))
        sides = list(itertools.pairwise([*corners, corners[0]]))
        for (x1, y1), (x2, y2) in sides:
            line = _around([(x1 - stroke / 2, y1 - stroke / 2), (x2 + stroke / 2, y2 + stroke / 2)])
            self._obstacles.add(line, self._line_cost)
        parts = [part for side in sides for part in _dashes(*side, DASH * stroke)] if dashed else sides
        for part in parts:
            self._pen.line(part, fill=BORDER, width=stroke + 2)
        for part in parts:
            self._pen.line(part, fill=colour, width=stroke)

    def _draw_points(self, points: Sequence[Corner]) -> None:
        """Draw the landmarks of one object as dots, which are smaller where the points are close together."""
        left, top, right, bottom = _around(points)
        widest = self._stroke + 1
        radius = max(1.0, min(widest, max(right - left, bottom - top) / DOTS)) if len(points) > 1 else widest
        for x, y in points:
            dot = (x - radius, y - radius, x + radius, y + radius)
            self._pen.ellipse(dot, fill=POINT_COLOUR, outline=BORDER)
            self._obstacles.add(dot, self._line_cost)

    def _rectangle(self, box: Box) -> Rectangle:
        (x1, y1), (x2, y2) = self._point(box.x1, box.y1), self._point(box.x2, box.y2)
        return min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)

    def _points(self, points: Sequence[PicturePoint]) -> list[Corner]:
        return [self._point(point.x, point.y) for point in points]

    def _point(self, x: float, y: float) -> Corner:
        """Return a place of the frame; one outside of it becomes the nearest at its edge."""
        width, height = self.image.size
        return min(max(x * self._factor, 0.0), width - 1.0), min(max(y * self._factor, 0.0), height - 1.0)

    def _fitting(self, text: str) -> str:
        """Return a text that is no wider than the picture."""
        while len(text) > 3 and self._plate_width(text) > self.image.size[0]:
            text = text[:-3] + ".."
        return text

    def _plate_width(self, text: str) -> float:
        return float(round(self._pen.textlength(text, self._font))) + 2 * self._padding


@functools.lru_cache(maxsize=16)
def _font(letters: int) -> Font:
    return ImageFont.load_default(letters)


def _rows(layer: Layer) -> list[tuple[str, str]]:
    """Return the rows of text of an answer that have no place of their own, each with its colour."""
    answer, colour = layer.answer, layer.colour or LINE_COLOUR
    count = len(answer.boxes or ())
    head = ""
    if answer.label is not None:
        head, colour = _scored(answer.label, answer.score), layer.colour or _colour(answer.label)
    elif count > MAX_BOXES:
        head, colour = f"{MAX_BOXES} of {count} boxes", layer.colour or TRUTH_COLOUR
    elif layer.name and answer.boxes is not None:
        head = count_text(count, "box", "boxes")
    rows = [(f"{layer.name}{GAP}{head}".strip(), colour)] if layer.name or head else []
    lines = [line for line in (answer.lines or ())[:MAX_BOXES] if not line.corners]
    return rows + [(_scored(line.text, line.score), layer.colour or LINE_COLOUR) for line in lines]


def _surest(boxes: Sequence[Box]) -> list[int]:
    """Return the numbers of the boxes to draw, the surest first."""
    return sorted(range(len(boxes)), key=lambda number: -boxes[number].score)[:MAX_BOXES]


def _landmarks(answer: Prediction, order: Sequence[int]) -> list[list[PicturePoint]]:
    """Return the points of the boxes to draw; without boxes, the first ones."""
    landmarks = answer.landmarks or []
    numbers = order if answer.boxes else range(MAX_BOXES)
    return [landmarks[number][:MAX_POINTS] for number in numbers if number < len(landmarks)]


def _placed_lines(layer: Layer) -> list[tuple[TextLine, list[PicturePoint]]]:
    """Return the lines of text that have corners."""
    return [(line, line.corners) for line in (layer.answer.lines or ())[:MAX_BOXES] if line.corners]


def _around(points: Sequence[Corner]) -> Rectangle:
    """Return the smallest rectangle that contains these points."""
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def _dashes(begin: Corner, end: Corner, length: float) -> list[tuple[Corner, Corner]]:
    """Return the dashes of a line, one at each end, with gaps of about the same length."""
    points = np.linspace(begin, end, (int(max(abs(np.subtract(end, begin))) / length) | 1) + 1).tolist()
    return [(tuple(first), tuple(last)) for first, last in itertools.pairwise(points)][::2]


def _corners(rectangle: Rectangle) -> list[Corner]:
    left, top, right, bottom = rectangle
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _colour(label: str) -> str:
    return COLOURS[zlib.crc32(label.encode("utf-8", "replace")) % len(COLOURS)]


def _ink(colour: str) -> str:
    """Return black or white, whichever contrasts more with this colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 110 else "#ffffff"


def _scored(label: str, score: float | None, characters: int = TEXT_CHARACTERS) -> str:
    text = _plain(label, characters)
    return text if score is None else f"{text}{GAP}{score_text(score)}"


def _plain(text: str, characters: int) -> str:
    """Return text as one short row of characters, without accents, which the font does not have."""
    row = unicodedata.normalize("NFKD", " ".join(text[: 4 * characters].split()))
    row = "".join(c for c in row if c.isprintable() and not unicodedata.combining(c))
    return row if len(row) <= characters else row[: characters - 2] + ".."
