"""Draws answers on the small pictures of hard samples that workers publish, for ``halimede results --draw``.

Results have no pictures; workers publish a small one of some hard samples (``HardSample``).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from halimede.cli.drawings import drawing_name
from halimede.cli.output import clean, console, warn, write_file
from halimede.errors import DecodeError
from halimede.frames import decode, open_payload
from halimede.frames.drawing import draw_jpeg, result_layers
from halimede.frames.encodings import Pixels
from halimede.messages import Box, HardSample, Prediction

#: the option, for errors
OPTION = "--draw"
#: most drawings of one command
MAX_DRAWINGS = 1000


class PreviewDrawer:
    """Draws the final answers of a service to hard samples into a folder, at most ``MAX_DRAWINGS``."""

    def __init__(self, folder: Path, service: str) -> None:
        self._folder = folder
        self._service = service
        self._drawn = 0

    async def draw(self, sample: HardSample) -> None:
        """Draw a sample, unless ``MAX_DRAWINGS`` are drawn; an unreadable picture is left out with a warning.

        Raises InvalidFieldError for a file that cannot be written.
        """
        if self._drawn >= MAX_DRAWINGS:
            return
        # the dot stands for a suffix: a camera's name may have dots itself
        path = self._folder / drawing_name(self._drawn, sample.file or f"{sample.camera}.", self._service)
        try:
            await asyncio.to_thread(_draw, path, sample)
        except DecodeError as error:
            warn(f"the picture of a hard sample is unreadable: {error}")
        else:
            self._drawn += 1

    def report(self) -> None:
        """Print how many samples were drawn, and why not all answers were."""
        console().print(clean(f"{self._drawn} hard samples drawn in {self._folder}"), markup=False)
        warn(
            "Note: results have no pictures. Workers publish those of hard samples, at most one a second; "
            "`halimede publish --draw` draws the answers to all frames that it sends"
        )


def _draw(path: Path, sample: HardSample) -> None:
    """Write the drawing of a sample. Raises DecodeError and InvalidFieldError."""
    pixels = decode(open_payload(sample.data, ""))
    final = _answer(pixels, sample.boxes, sample.label, sample.score)
    edge = _answer(pixels, sample.edge_boxes, sample.edge_label, sample.edge_score)
    write_file(OPTION, path, draw_jpeg(pixels, result_layers(final, sample.by, edge)))


def _answer(pixels: Pixels, boxes: list[Box] | None, label: str, score: float) -> Prediction:
    """Return an answer in pixels of its small picture: ``boxes``, or if they are None ``label`` and ``score``.

    ``boxes`` are shares of the picture's width and height; an empty ``label``: none.
    """
    height, width = pixels.shape[:2]
    if boxes is None:
        return Prediction(label=label or None, score=score)
    return Prediction(
        boxes=[
            Box(box.x1 * width, box.y1 * height, box.x2 * width, box.y2 * height, box.score, box.label) for box in boxes
        ]
    )
