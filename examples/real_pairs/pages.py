"""Pictures of many words at known places: a board of labels, as a camera sees it.

PP-OCRv4's detector finds the words of a page, and the pair of readers of ``words`` reads each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from examples.real_pairs import packages, words
from examples.real_pairs.manifests import PARTS, model
from halimede.messages import Prediction

DETECTOR_FILE = "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"
#: size of a page in pixels, its cells, and the pixels between two words
SIZE, COLUMNS, ROWS, GAP = (1280, 960), 5, 8, 6
QUALITY = 90
TRUTHS = "pages.json"


@dataclass(frozen=True)
class Plate:
    """The plate of a word on a page: its text, and its corners in pixels."""

    text: str
    x1: int
    y1: int
    x2: int
    y2: int

    def contains(self, x: float, y: float) -> bool:
        """Whether a point lies on the plate."""
        return self.x1 <= x < self.x2 and self.y1 <= y < self.y2


def detector(installed: Path = packages.FOLDER) -> dict[str, Any]:
    """Return the manifest of the detector of text."""
    steps = [
        {"op": "channels", "format": "bgr"},
        {"op": "fit", "longest": 960, "multiple": 32, "method": "linear"},
        {"op": "normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
        {"op": "layout", "order": "chw"},
    ]
    return model(
        "text-detector",
        installed / DETECTOR_FILE,
        format="onnx",
        labels=["text"],
        preprocess=steps,
        postprocess={"task": "detection", "boxes": {"decode": "db"}},
    )


def write_pages(folder: Path, part: str, count: int, seed: int = 0) -> dict[str, list[Plate]]:
    """Write pages as JPEG; return the plates of each. Raises HalimedeError if there is no font."""
    files = words.fonts()
    folder.mkdir(parents=True, exist_ok=True)
    pages = {}
    for number in range(count):
        chance = np.random.default_rng((seed, len(PARTS) + PARTS.index(part), number))
        page, plates = render_page(files, chance)
        page.save(folder / f"{number:04}.jpg", quality=QUALITY)
        pages[f"{number:04}.jpg"] = plates
    (folder / TRUTHS).write_text(json.dumps({name: [vars(plate) for plate in page] for name, page in pages.items()}))
    return pages


def render_page(files: Sequence[Path], chance: np.random.Generator) -> tuple[Image.Image, list[Plate]]:
    """Return a page, and its plates: one in each cell, at a place of its own."""
    page = Image.new("RGB", SIZE, tuple(chance.integers(60, 200, 3).tolist()))
    width, height = SIZE[0] // COLUMNS, SIZE[1] // ROWS
    plates = []
    for cell in range(COLUMNS * ROWS):
        text = words.random_word(chance)
        drawn = words.render(text, files, chance)
        drawn.thumbnail((width - 2 * GAP, height - 2 * GAP))
        x = cell % COLUMNS * width + int(chance.integers(GAP, width - drawn.width - GAP + 1))
        y = cell // COLUMNS * height + int(chance.integers(GAP, height - drawn.height - GAP + 1))
        page.paste(drawn, (x, y))
        plates.append(Plate(text, x, y, x + drawn.width, y + drawn.height))
    return page, plates


def read_right(page: Sequence[Plate], answer: Prediction) -> list[bool]:
    """Return whether each plate of a page was read to the last letter, by a line on it."""
    lines = [
        (line.text, *np.mean([(point.x, point.y) for point in line.corners or ()], axis=0))
        for line in answer.lines or ()
        if line.corners
    ]
    return [any(text == plate.text and plate.contains(x, y) for text, x, y in lines) for plate in page]
