"""Draws answers on their picture: boxes with labels, landmarks, lines of text, and classes in a corner.

Every line has a dark border, and every text a plate (a filled rectangle behind it), so that both can be read on light
and on dark pictures. Lines and letters grow with the picture, and a tiny picture is enlarged first. All lines are drawn
before all plates, and a plate goes where it covers least: next to its box, or in it. The box with the highest score
chooses first. A plate that would cover another plate is shortened; if the score alone would still cover one, the box
has only its line.

If one model answers, a label has the same colour on every picture. If several do, each model has a colour, and a legend
names the model. The size of the picture, the number of boxes, and each text are bounded. Equal input gives an equal
picture.
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
#: colours of labels, also for the colour-blind (Okabe and Ito's colours, without black)
COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#d55e00", "#cc79a7", "#0072b2")
#: colours of the first model's answer and of the final answer, as on GM's page
EDGE_COLOUR, FINAL_COLOUR = "#4aa8ff", "#ff9a1f"
#: colours of true objects, landmarks, lines of text, and borders
TRUTH_COLOUR, POINT_COLOUR, LINE_COLOUR, BORDER_COLOUR = "#ffffff", "#ff4fd8", "#56b4e9", "#000000"
#: rows of text that take more than 1/8 of the height go to the emptiest corner: the picture may be a line of text
STRIP_PARTS = 8
#: length of a dash, in widths of its line
DASH_WIDTHS = 6
#: a landmark's radius is at most the extent of its object's landmarks over this
DOT_RADII = 8
#: the width of a line, and the size of the font, are the picture's side over these; the least of each, in pixels
STROKE_SIDES, FONT_SIDES, MIN_STROKE, MIN_FONT = 400, 64, 2, 12
#: the space between a label and its score: with one space of the font, `2 0.98` is read as 20.98
GAP = "  "
#: characters of a shortened label
SHORT_CHARACTERS = 8
#: what a plate costs: for each covered pixel of another plate, for a line that it covers from its top to its bottom,
#: for each step in the order of places, and for each shorter text; to cover a whole box costs 1
PLATE_COST, LINE_COST, ORDER_COST, SHORTER_COST = 1000.0, 0.3, 0.01, 0.5
#: least side in pixels of a JPEG with limited bytes, and the qualities to try at each size, the best first
MIN_JPEG_SIDE = 64
QUALITIES = (85, 70, 55, 40, 25, 10)

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
#: a point (x, y), in pixels of the drawing
Corner = tuple[float, float]
#: x1, y1, x2, y2: left, top, right and bottom, in pixels of the drawing
Rectangle = tuple[float, float, float, float]
#: an array of numbers
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Layer:
    """An answer to draw.

    Attributes:
        answer: the prediction, with places in pixels of the frame.
        name: the model or worker that gave the answer, for the legend; empty: no legend.
        colour: ``#rrggbb`` of all boxes and texts; empty: each label has its own.
        dashed: boxes have dashed lines, through which an equal box of another layer can be seen.
        has_labels: boxes and lines of text have plates with their label and score.

    """

    answer: Prediction
    name: str = ""
    colour: str = ""
    dashed: bool = False
    has_labels: bool = True


def result_layers(answer: Prediction, by: str, edge: Prediction | None) -> list[Layer]:
    """Return the layers of a final answer. ``by``: the kind of worker that gave it, such as ``"edge"`` or ``"cloud"``.

    ``edge``: the edge's own answer, which is below that of another worker with dashed lines; None: it is unknown.
    """
    if by == "edge":
        return [Layer(answer, by, EDGE_COLOUR)]
    below = [] if edge is None else [Layer(edge, "edge", EDGE_COLOUR, dashed=True)]
    return [*below, Layer(answer, by, FINAL_COLOUR)]


def truth_layer(boxes: Sequence[Box]) -> Layer:
    """Return the layer of the true objects: dashed white boxes without labels."""
    return Layer(Prediction(boxes=list(boxes)), colour=TRUTH_COLOUR, dashed=True, has_labels=False)


def draw(pixels: Pixels, layers: Sequence[Layer], *, side: int = MAX_SIDE) -> Image.Image:
    """Return a picture with answers on it; the longer side has at most ``side`` pixels.

    ``pixels``: the frame, ``(height, width[, 3]) uint8``. The last layer's labels choose their places first. Raises
    InvalidFieldError for an array that is no picture.
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
    """Return what a drawing shows of an answer: its class, the boxes with the highest scores, landmarks, and lines."""
    order = _surest(answer.boxes or ())
    return Prediction(
        label=answer.label,
        score=answer.score,
        boxes=answer.boxes and [answer.boxes[number] for number in order],
        landmarks=answer.landmarks and _landmarks(answer, order),
        lines=answer.lines and answer.lines[:MAX_BOXES],
    )


def draw_jpeg(pixels: Pixels, layers: Sequence[Layer], *, side: int = MAX_SIDE, max_bytes: int = 0) -> bytes:
    """Return the drawing as a JPEG, of the best quality that has at most ``max_bytes``; 0: no limit.

    If no quality has so few bytes, the limit of the longer side is halved, until it is at most MIN_JPEG_SIDE; then the
    JPEG may have more bytes. ``side``: as of ``draw``.
    """
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
    """Rectangles that plates avoid: each has a cost for each of its pixels that a plate covers."""

    def __init__(self) -> None:
        self._rectangles: Floats = np.empty((0, 4))
        self._costs: Floats = np.empty(0)

    def add(self, rectangle: Rectangle, cost: float) -> None:
        """Add a rectangle; ``cost`` is that of one covered pixel."""
        self._rectangles = np.vstack([self._rectangles, rectangle])
        self._costs = np.append(self._costs, cost)

    def costs(self, plates: Sequence[Rectangle]) -> Floats:
        """Return the cost of each of these plates, ``(plates,) float64``: the sum over all that it would cover."""
        corners = np.asarray(plates)[:, np.newaxis]
        first = np.maximum(corners[..., :2], self._rectangles[:, :2])
        last = np.minimum(corners[..., 2:], self._rectangles[:, 2:])
        return np.asarray(np.clip(last - first, 0, None).prod(axis=2) @ self._costs)


class Canvas:
    """The drawing of one picture: ``image`` is the frame at its size in the drawing, with what was drawn so far.

    Call ``draw_lines`` of all layers first, then ``write_rows``, then ``write_labels``: plates avoid what is there.
    ``side``: most pixels of the longer side.
    """

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
        self._font_size: int = max(MIN_FONT, round(longest / FONT_SIDES))
        self._padding: int = max(2, self._font_size // 6)
        self._plate_height = float(round(1.2 * self._font_size) + self._padding)
        self._font = _font(self._font_size)
        self._pen = ImageDraw.Draw(self.image)
        self._obstacles = Obstacles()
        self._line_cost = LINE_COST / (self._plate_height * self._stroke)

    def draw_lines(self, layer: Layer) -> None:
        """Draw boxes, landmarks and the outlines of lines of text, without labels."""
        order = _surest(layer.answer.boxes or ())
        for number in reversed(order):  # the surest one on top
            box = (layer.answer.boxes or [])[number]
            self._outline(_corners(self._rectangle(box)), layer.colour or _colour(str(box.label)), dashed=layer.dashed)
        for _, corners in _placed_lines(layer):
            self._outline(self._points(corners), layer.colour or LINE_COLOUR)
        for points in filter(None, map(self._points, _landmarks(layer.answer, order))):
            self._draw_points(points)

    def write_rows(self, rows: Sequence[tuple[str, str]]) -> None:
        """Write rows of text, one below the other, in the corner where they cover least; a row is (text, colour)."""
        width, height = self.image.size
        rows = [(self._shorten(text), colour) for text, colour in rows[: max(1, int(height / self._plate_height))]]
        if not rows:
            return
        wide, high = max(self._plate_width(text) for text, _ in rows), len(rows) * self._plate_height
        corners = [(x, y) for y in (0, height) for x in (0, width)]
        if high > height / STRIP_PARTS:
            corners.sort(key=lambda corner: self._contrast(corner, wide, high))
        x1, y1, x2, _ = self._cheapest(corners, wide, high)[0]
        for number, (text, colour) in enumerate(rows):
            plate_width, y = self._plate_width(text), y1 + number * self._plate_height
            x = x1 if x1 <= 0 else x2 - plate_width
            self._write((x, y, x + plate_width, y + self._plate_height), text, colour)

    def _contrast(self, corner: Corner, wide: float, high: float) -> float:
        """Return the standard deviation of the pixels in a corner of this size: high where there is a text."""
        width, height = self.image.size
        x1, y1 = min(corner[0], max(0.0, width - wide)), min(corner[1], max(0.0, height - high))
        return float(np.asarray(self.image.crop((int(x1), int(y1), int(x1 + wide), int(y1 + high)))).std())

    def write_labels(self, layer: Layer) -> None:
        """Write the labels and scores of boxes and of lines of text, unless the layer has no labels."""
        if not layer.has_labels:
            return
        for number in _surest(layer.answer.boxes or ()):
            box = (layer.answer.boxes or [])[number]
            label = str(box.label)
            texts = [_scored_text(label, box.score, most) for most in (LABEL_CHARACTERS, SHORT_CHARACTERS)]
            texts.append(score_text(box.score))
            self._write_label(self._rectangle(box), texts, layer.colour or _colour(label))
        for line, corners in _placed_lines(layer):
            bounds = _bounds(self._points(corners))
            self._write_label(bounds, [_scored_text(line.text, line.score)], layer.colour or LINE_COLOUR)

    def _write_label(self, bounds: Rectangle, texts: Sequence[str], colour: str) -> None:
        """Write one of these texts, given the longest first, where it costs least; none if each covers a plate."""
        x1, y1, x2, y2 = bounds
        high, gap = self._plate_height, self._stroke // 2 + 1
        choices = []
        for number, text in enumerate(map(self._shorten, dict.fromkeys(texts))):
            wide = self._plate_width(text)
            above, below, far = y1 - gap - high, y2 + gap, x2 - wide
            starts = [
                (x1, above), (x1, below), (far, above), (far, below), (x2 + gap, y1), (x1 - gap - wide, y1),
                (x1 + gap, y1 + gap), (far - gap, y1 + gap),
                (x1 + gap, y2 - gap - high), (far - gap, y2 - gap - high),
            ]  # fmt: skip
            plate, cost = self._cheapest(starts, wide, high)
            choices.append((cost + number * SHORTER_COST, plate, text))
        cost, plate, text = min(choices)
        if cost < PLATE_COST:
            self._write(plate, text, colour)

    def _cheapest(self, starts: Sequence[Corner], wide: float, high: float) -> tuple[Rectangle, float]:
        """Return the plate that costs least, and its cost. ``starts``: possible top left corners, the best first.

        A plate that would leave the picture is moved into it.
        """
        width, height = self.image.size
        inside = [(max(0.0, min(x, width - wide)), max(0.0, min(y, height - high))) for x, y in starts]
        rectangles = [(x, y, x + wide, y + high) for x, y in inside]
        costs = self._obstacles.costs(rectangles) + ORDER_COST * np.arange(len(starts))
        best = int(costs.argmin())
        return rectangles[best], float(costs[best])

    def _write(self, plate: Rectangle, text: str, colour: str) -> None:
        """Draw a plate of this colour with a text."""
        x1, y1, x2, y2 = plate
        self._obstacles.add(plate, PLATE_COST)
        self._pen.rectangle((x1, y1, x2 - 1, y2 - 1), fill=colour, outline=BORDER_COLOUR)
        self._pen.text((x1 + self._padding, (y1 + y2) / 2), text, _ink(colour), self._font, anchor="lm")

    def _outline(self, corners: Sequence[Corner], colour: str, *, dashed: bool = False) -> None:
        """Draw a closed line with a border through the corners, which later plates avoid."""
        stroke, half = self._stroke, self._stroke / 2
        x1, y1, x2, y2 = bounds = _bounds(corners)
        self._obstacles.add(bounds, 1 / max(1.0, (x2 - x1) * (y2 - y1)))
        sides = list(itertools.pairwise([*corners, corners[0]]))
        for (begin_x, begin_y), (end_x, end_y) in sides:
            side_bounds = _bounds([(begin_x - half, begin_y - half), (end_x + half, end_y + half)])
            self._obstacles.add(side_bounds, self._line_cost)
        segments = [dash for side in sides for dash in _dashes(*side, DASH_WIDTHS * stroke)] if dashed else sides
        for segment in segments:
            self._pen.line(segment, fill=BORDER_COLOUR, width=stroke + 2)
        for segment in segments:
            self._pen.line(segment, fill=colour, width=stroke)

    def _draw_points(self, points: Sequence[Corner]) -> None:
        """Draw the landmarks of one object as dots, which are smaller where the points are close together."""
        x1, y1, x2, y2 = _bounds(points)
        widest = self._stroke + 1
        radius = max(1.0, min(widest, max(x2 - x1, y2 - y1) / DOT_RADII)) if len(points) > 1 else widest
        for x, y in points:
            dot = (x - radius, y - radius, x + radius, y + radius)
            self._pen.ellipse(dot, fill=POINT_COLOUR, outline=BORDER_COLOUR)
            self._obstacles.add(dot, self._line_cost)

    def _rectangle(self, box: Box) -> Rectangle:
        """Return the rectangle of a box in the drawing."""
        (x1, y1), (x2, y2) = self._point(box.x1, box.y1), self._point(box.x2, box.y2)
        return min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)

    def _points(self, points: Sequence[PicturePoint]) -> list[Corner]:
        """Return the places in the drawing of points of the frame."""
        return [self._point(point.x, point.y) for point in points]

    def _point(self, x: float, y: float) -> Corner:
        """Return the place in the drawing of a point of the frame; a point outside becomes the nearest inside."""
        width, height = self.image.size
        return min(max(x * self._factor, 0.0), width - 1.0), min(max(y * self._factor, 0.0), height - 1.0)

    def _shorten(self, text: str) -> str:
        """Return a text that is no wider than the picture, if three characters are not wider."""
        while len(text) > 3 and self._plate_width(text) > self.image.size[0]:
            text = text[:-3] + ".."
        return text

    def _plate_width(self, text: str) -> float:
        """Return the width of the plate of a text, in pixels of the drawing."""
        return float(round(self._pen.textlength(text, self._font))) + 2 * self._padding


@functools.lru_cache(maxsize=16)
def _font(size: int) -> Font:
    """Return the font with letters of this size in pixels."""
    return ImageFont.load_default(size)


def _rows(layer: Layer) -> list[tuple[str, str]]:
    """Return the texts of an answer that have no place in the picture, each with its colour.

    They are the layer's name with the class or the number of boxes, and lines of text without corners.
    """
    answer, colour = layer.answer, layer.colour or LINE_COLOUR
    count = len(answer.boxes or ())
    head = ""
    if answer.label is not None:
        head, colour = _scored_text(answer.label, answer.score), layer.colour or _colour(answer.label)
    elif count > MAX_BOXES:
        head, colour = f"{MAX_BOXES} of {count} boxes", layer.colour or TRUTH_COLOUR
    elif layer.name and answer.boxes is not None:
        head = count_text(count, "box", "boxes")
    rows = [(f"{layer.name}{GAP}{head}".strip(), colour)] if layer.name or head else []
    lines = [line for line in (answer.lines or ())[:MAX_BOXES] if not line.corners]
    return rows + [(_scored_text(line.text, line.score), layer.colour or LINE_COLOUR) for line in lines]


def _surest(boxes: Sequence[Box]) -> list[int]:
    """Return the indices of the boxes to draw, the highest score first."""
    return sorted(range(len(boxes)), key=lambda number: -boxes[number].score)[:MAX_BOXES]


def _landmarks(answer: Prediction, order: Sequence[int]) -> list[list[PicturePoint]]:
    """Return the landmarks of the boxes to draw (``order``: their indices), or of the first objects without boxes."""
    landmarks = answer.landmarks or []
    numbers = order if answer.boxes else range(MAX_BOXES)
    return [landmarks[number][:MAX_POINTS] for number in numbers if number < len(landmarks)]


def _placed_lines(layer: Layer) -> list[tuple[TextLine, list[PicturePoint]]]:
    """Return the lines of text that have corners, each with its corners."""
    return [(line, line.corners) for line in (layer.answer.lines or ())[:MAX_BOXES] if line.corners]


def _bounds(points: Sequence[Corner]) -> Rectangle:
    """Return the smallest rectangle that contains these points."""
    xs, ys = zip(*points, strict=True)
    return min(xs), min(ys), max(xs), max(ys)


def _dashes(begin: Corner, end: Corner, length: float) -> list[tuple[Corner, Corner]]:
    """Return the dashes of a line as begin and end, one at each end of the line, with gaps of about ``length``."""
    # the last bit makes the number of dashes and gaps odd
    points = np.linspace(begin, end, (int(max(abs(np.subtract(end, begin))) / length) | 1) + 1).tolist()
    return [(tuple(first), tuple(last)) for first, last in itertools.pairwise(points)][::2]


def _corners(rectangle: Rectangle) -> list[Corner]:
    """Return the corners of a rectangle, clockwise from the top left."""
    x1, y1, x2, y2 = rectangle
    return [(x1, y1), (x2, y1), (x2, y2), (x1, y2)]


def _colour(label: str) -> str:
    """Return the colour of a label, the same in every process."""
    return COLOURS[zlib.crc32(label.encode("utf-8", "replace")) % len(COLOURS)]


def _ink(colour: str) -> str:
    """Return black or white: the one that contrasts more with this colour."""
    # luma (ITU-R BT.601), 0 to 255
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 110 else "#ffffff"


def _scored_text(label: str, score: float | None, characters: int = TEXT_CHARACTERS) -> str:
    """Return a label of at most so many characters, with its score if there is one."""
    text = _plain(label, characters)
    return text if score is None else f"{text}{GAP}{score_text(score)}"


def _plain(text: str, characters: int) -> str:
    """Return text as one short row of characters, without accents, which the font does not have."""
    row = unicodedata.normalize("NFKD", " ".join(text[: 4 * characters].split()))
    row = "".join(c for c in row if c.isprintable() and not unicodedata.combining(c))
    return row if len(row) <= characters else row[: characters - 2] + ".."
