"""Draws an answer on its picture: boxes with labels, landmarks, lines of text, and the class at the top.

Equal input gives an equal picture.

Every line has a dark border, and every text a filled background, so that both can be read on light and on dark
pictures. Lines and letters grow with the picture, and a tiny picture is enlarged first. A label has the same colour on
every picture. All sizes are bounded: of the picture, of the number of boxes, and of each text.
"""

from __future__ import annotations

import functools
import itertools
import unicodedata
import zlib
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from halimede.answer_text import score_text
from halimede.errors import InvalidFieldError
from halimede.frames.encodings import Pixels, encode_image, is_picture
from halimede.messages import Box, PicturePoint, Prediction, TextLine

#: pixels of the longer side: a smaller picture is enlarged to at least this, a larger one scaled down to it
MIN_SIDE, MAX_SIDE = 320, 2048
#: most boxes and lines of text that are drawn, points of a box, and characters of a text
MAX_BOXES, MAX_POINTS, MAX_CHARACTERS = 100, 500, 40
#: distinguishable also with colour blindness (Okabe and Ito's colours, without black)
COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#d55e00", "#cc79a7", "#0072b2")
TRUTH_COLOUR, POINT_COLOUR, LINE_COLOUR, BORDER = "#ffffff", "#ff4fd8", "#56b4e9", "#000000"
#: length of a dash of a box of the truth, in widths of its line
DASH = 4
#: pixels below which a JPEG of limited size is not made smaller; its qualities, the best first
MIN_JPEG_SIDE = 64
QUALITIES = (85, 70, 55, 40, 25, 10)

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
Corner = tuple[float, float]


def draw(pixels: Pixels, answer: Prediction, truth: Sequence[Box] = (), *, side: int = MAX_SIDE) -> Image.Image:
    """Return a picture with the answer on it; the longer side has at most ``side`` pixels.

    ``pixels``: height x width (x 3) uint8, in which the boxes are. ``truth``: known objects, drawn with dashed lines.
    Raises InvalidFieldError for an array that is no picture.
    """
    if not is_picture(pixels):
        raise InvalidFieldError("picture", f"{pixels.dtype} {pixels.shape}", "give uint8, height x width or x 3")
    canvas = Canvas(pixels, side)
    for box in truth[:MAX_BOXES]:
        canvas.outline(canvas.corners(box), TRUTH_COLOUR, dashed=True)
    for line in (answer.lines or ())[:MAX_BOXES]:
        canvas.draw_line(line)
    order = _surest(answer.boxes or ())
    for number in reversed(order):  # the surest one on top
        canvas.draw_box((answer.boxes or [])[number])
    for points in _landmarks(answer, order):
        canvas.draw_points(points)
    if answer.label is not None:
        canvas.write((0, 0), _scored(answer.label, answer.score), _colour(answer.label))
    elif len(answer.boxes or ()) > MAX_BOXES:
        canvas.write((0, 0), f"{MAX_BOXES} of {len(answer.boxes or ())} boxes", TRUTH_COLOUR)
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


def draw_jpeg(
    pixels: Pixels, answer: Prediction, truth: Sequence[Box] = (), *, side: int = MAX_SIDE, max_bytes: int = 0
) -> bytes:
    """Return the drawing as a JPEG, of the best quality that has at most ``max_bytes`` (0: no limit), else smaller."""
    drawn = np.asarray(draw(pixels, answer, truth, side=side))
    data = b""
    for quality in QUALITIES:
        data = encode_image(drawn, "jpeg", quality)
        if not max_bytes or len(data) <= max_bytes:
            return data
    smaller = side > MIN_JPEG_SIDE
    return draw_jpeg(pixels, answer, truth, side=side // 2, max_bytes=max_bytes) if smaller else data


def draw_png(pixels: Pixels, answer: Prediction) -> bytes:
    """Return the drawing as a PNG, without loss."""
    return encode_image(np.asarray(draw(pixels, answer)), "png")


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
        unit = min(max(size), 3 * min(size)) / 160  # of a long strip the shorter side counts
        self._stroke: int = max(2, round(unit / 2))
        self._letters: int = max(11, round(4 * unit))
        self._font = _font(self._letters)
        self._pen = ImageDraw.Draw(self.image)
        #: the height at which the next text without a place stands, below the class
        self._next_text = self._text_height

    def corners(self, box: Box) -> list[Corner]:
        """Return the four corners of a box of the frame."""
        (x1, y1), (x2, y2) = self.point(box.x1, box.y1), self.point(box.x2, box.y2)
        left, right, top, bottom = min(x1, x2), max(x1, x2), min(y1, y2), max(y1, y2)
        return [(left, top), (right, top), (right, bottom), (left, bottom)]

    def point(self, x: float, y: float) -> Corner:
        """Return a place of the frame; one outside of it becomes the nearest at its edge."""
        width, height = self.image.size
        return min(max(x * self._factor, 0.0), width - 1.0), min(max(y * self._factor, 0.0), height - 1.0)

    def draw_box(self, box: Box) -> None:
        """Draw a box, with its label and score above it, or in it at the upper edge of the picture."""
        label, corners = str(box.label), self.corners(box)
        self.outline(corners, _colour(label))
        left, top = corners[0]
        above = top - self._text_height
        self.write((left, above if above >= 0 else top), _scored(label, box.score), _colour(label))

    def draw_points(self, points: Sequence[PicturePoint]) -> None:
        """Draw landmarks as dots."""
        radius = self._stroke + 1
        for x, y in (self.point(point.x, point.y) for point in points):
            self._pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=POINT_COLOUR, outline=BORDER)

    def draw_line(self, line: TextLine) -> None:
        """Draw a line of text: its corners with the text above them, or without corners only the text, at the left."""
        text = _scored(line.text, line.score)
        if line.corners:
            corners = [self.point(corner.x, corner.y) for corner in line.corners]
            self.outline(corners, LINE_COLOUR)
            self.write((corners[0][0], min(y for _, y in corners) - self._text_height), text, LINE_COLOUR)
        elif self._next_text + self._text_height <= self.image.size[1]:
            self.write((0, self._next_text), text, LINE_COLOUR)
            self._next_text += self._text_height

    def outline(self, corners: Sequence[Corner], colour: str, *, dashed: bool = False) -> None:
        """Draw a closed line through the corners, with a border."""
        closed, stroke = [*corners, corners[0]], self._stroke
        self._pen.line(closed, fill=BORDER, width=2 * stroke, joint="curve")
        if not dashed:
            self._pen.line(closed, fill=colour, width=stroke, joint="curve")
            return
        for (x1, y1), (x2, y2) in itertools.pairwise(closed):
            parts = int(max(abs(x2 - x1), abs(y2 - y1)) / (DASH * stroke)) | 1  # odd: a dash at both ends
            across, down = (x2 - x1) / parts, (y2 - y1) / parts
            for i in range(0, parts, 2):
                begin, end = (x1 + i * across, y1 + i * down), (x1 + (i + 1) * across, y1 + (i + 1) * down)
                self._pen.line([begin, end], fill=colour, width=stroke)

    def write(self, corner: Corner, text: str, colour: str) -> None:
        """Write a text on a filled background whose left upper corner is there, or as near as the picture allows."""
        width, height = self.image.size
        while len(text) > 3 and self._text_width(text) > width:
            text = text[:-3] + ".."
        left = max(0.0, min(corner[0], width - self._text_width(text)))
        top = max(0.0, min(corner[1], height - self._text_height))
        right, bottom = left + self._text_width(text), top + self._text_height
        self._pen.rectangle((left, top, right, bottom), fill=colour, outline=BORDER)
        self._pen.text((left + self._stroke, top + self._stroke), text, fill=_ink(colour), font=self._font)

    @property
    def _text_height(self) -> float:
        return self._letters * 1.25 + 2 * self._stroke

    def _text_width(self, text: str) -> float:
        return float(self._pen.textlength(text, self._font)) + 2 * self._stroke


@functools.lru_cache(maxsize=16)
def _font(letters: int) -> Font:
    return ImageFont.load_default(letters)


def _surest(boxes: Sequence[Box]) -> list[int]:
    """Return the numbers of the boxes to draw, the surest first."""
    return sorted(range(len(boxes)), key=lambda number: -boxes[number].score)[:MAX_BOXES]


def _landmarks(answer: Prediction, order: Sequence[int]) -> list[list[PicturePoint]]:
    """Return the points of the boxes to draw; without boxes, the first ones."""
    landmarks = answer.landmarks or []
    numbers = order if answer.boxes else range(MAX_BOXES)
    return [landmarks[number][:MAX_POINTS] for number in numbers if number < len(landmarks)]


def _colour(label: str) -> str:
    return COLOURS[zlib.crc32(label.encode("utf-8", "replace")) % len(COLOURS)]


def _ink(colour: str) -> str:
    """Return black or white, whichever contrasts more with this colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 110 else "#ffffff"


def _scored(label: str, score: float | None) -> str:
    return _plain(label) if score is None else f"{_plain(label)} {score_text(score)}"


def _plain(text: str) -> str:
    """Return text as one short row of characters, without accents, which the font does not have."""
    row = unicodedata.normalize("NFKD", " ".join(text[: 4 * MAX_CHARACTERS].split()))
    row = "".join(c for c in row if c.isprintable() and not unicodedata.combining(c))
    return row if len(row) <= MAX_CHARACTERS else row[: MAX_CHARACTERS - 2] + ".."
