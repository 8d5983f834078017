"""The pair of readers, and pictures of words whose text is known.

PP-OCRv4 reads at the edge, PP-OCRv6 in the cloud. A picture is the crop of one word, as a camera sees a label or a
plate: in a font of Debian's, from the side, blurred, with noise. The words to calibrate on are not those to test on.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from examples.real_pairs import packages
from examples.real_pairs.manifests import PARTS, model
from examples.real_pairs.packages import Package
from halimede.errors import HalimedeError
from halimede.evaluation.data import Progress

V4 = Package(
    "rapidocr-onnxruntime", "1.4.4", ("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",),
    "PP-OCRv4's recogniser", "Apache-2.0",
)  # fmt: skip
V6 = Package(
    "rapidocr", "3.10.0", ("rapidocr/models/PP-OCRv6_rec_small.onnx",), "PP-OCRv6's small recogniser", "Apache-2.0"
)
PACKAGES = (V4, V6)
FONTS = Path("/usr/share/fonts/truetype")
#: the package of Debian that has fonts, if there is none
FONT_PACKAGE = "fonts-dejavu-core"
LETTERS = "ABCDEFGHJKLMNPRSTUVWXYZ23456789"
#: letters of a word, its height in pixels, and the quality of its JPEG
LENGTHS, HEIGHTS, QUALITY = (5, 9), (18, 48), 80


def write_models(_: Path, installed: Path = packages.FOLDER) -> list[dict[str, Any]]:
    """Return the manifests of both Models, the small one first: the files have their alphabets."""
    steps = [
        {"op": "channels", "format": "bgr"},
        {"op": "fit", "height": 48, "method": "linear"},
        {"op": "normalize", "mean": 0.5, "std": 0.5},
        {"op": "layout", "order": "chw"},
    ]
    return [
        model(
            name,
            installed / package.files[0],
            format="onnx",
            decode="scaled",
            preprocess=steps,
            postprocess={"task": "text"},
        )
        for name, package in (("text-small", V4), ("text-big", V6))
    ]


def write_frames(
    folder: Path,
    part: str,
    count: int,
    seed: int = 0,
    *,
    installed: Path = packages.FOLDER,  # noqa: ARG001  # as of all pairs: the fonts are the machine's
    progress: Progress = lambda _done, _total: None,
) -> None:
    """Write words as JPEG, and their texts as ``metadata.csv``. Raises HalimedeError if there is no font."""
    files = fonts()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metadata.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file_name", "text"])
        for number in range(count):
            chance = np.random.default_rng((seed, PARTS.index(part), number))
            text = random_word(chance)
            render(text, files, chance).save(folder / f"{number:04}.jpg", quality=QUALITY)
            table.writerow([f"{number:04}.jpg", text])
            progress(number + 1, count)


def random_word(chance: np.random.Generator) -> str:
    """Return random letters and digits."""
    return "".join(chance.choice(list(LETTERS), chance.integers(LENGTHS[0], LENGTHS[1] + 1)))


@cache
def fonts() -> tuple[Path, ...]:
    """Return the fonts of this machine that have all letters. Raises HalimedeError if there is none."""
    usable = tuple(path for path in sorted(FONTS.rglob("*.ttf")) if _has_letters(path))
    if not usable:
        raise HalimedeError(
            f"{FONTS} has no TrueType font with Latin letters: install one, as by `apt-get install {FONT_PACKAGE}`"
        )
    return usable


def _has_letters(path: Path) -> bool:
    try:
        font = ImageFont.truetype(path, 24)
    except OSError:
        return False
    shapes = {bytes(font.getmask(letter)) for letter in LETTERS}
    return len(shapes) == len(LETTERS)


def render(text: str, files: Sequence[Path], chance: np.random.Generator) -> Image.Image:
    """Return a word on a coloured plate, between clear and hardly readable."""
    font = ImageFont.truetype(files[int(chance.integers(len(files)))], 64)
    left, top, right, bottom = font.getbbox(text)
    rim = 16
    plate, ink = chance.integers(140, 250, 3), chance.integers(0, 110, 3)
    if chance.random() < 0.25:
        plate, ink = ink, plate
    size = (round(right - left) + 2 * rim, round(bottom - top) + 2 * rim)
    drawn = Image.new("RGB", size, tuple(plate.tolist()))
    ImageDraw.Draw(drawn).text((rim - left, rim - top), text, fill=tuple(ink.tolist()), font=font)
    drawn = _from_the_side(drawn, chance)
    height = int(chance.integers(*HEIGHTS))
    drawn = drawn.resize((max(1, round(drawn.width * height / drawn.height)), height), Image.Resampling.LANCZOS)
    blurred = drawn.filter(ImageFilter.GaussianBlur(float(chance.uniform(0, height / 14))))
    noise = chance.normal(0, chance.uniform(0, 25), (height, drawn.width, 1))
    return Image.fromarray((np.asarray(blurred) + noise).clip(0, 255).astype(np.uint8))


def _from_the_side(picture: Image.Image, chance: np.random.Generator) -> Image.Image:
    """Return a picture as a camera sees it that is not in front of it: each corner moved inwards."""
    width, height = picture.size
    corners = np.array([(0, 0), (0, height), (width, height), (width, 0)], float)
    inwards = chance.uniform(0, 1, (4, 2)) * (width * 0.04, height * 0.16) * np.where(corners > 0, -1, 1)
    target = corners + inwards
    rows, values = [], []
    for (x, y), (u, v) in zip(target, corners, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    coefficients = np.linalg.solve(np.array(rows), np.array(values)).tolist()
    fill = picture.getpixel((0, 0))
    return picture.transform(
        picture.size, Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BICUBIC, fillcolor=fill
    )
