"""``halimede evaluate`` of two detectors: a page with the pictures on which they differ, and a note on their boxes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.typed import typed
from tests.unit.api.samples import resource
from tests.unit.cli.test_inspect import means
from tests.unit.evaluation.worlds import joint, write

PICTURES = 12
#: answers one box around the middle; its size is a part of the picture's, and the model's file name has that part
SCRIPT = """
def postprocess(outputs, size):
    height, width = size
    wide, high = width * {part}, height * {part}
    return [[(width - wide) / 2, (height - high) / 2, (width + wide) / 2, (height + high) / 2, 0.9, "{label}"]]
"""


def detector(folder: Path, name: str, part: float, label: str = "face") -> dict[str, object]:
    (folder / name).mkdir()
    means(folder / name)
    (folder / name / "boxes.py").write_text(SCRIPT.format(part=part, label=label))
    steps = [{"op": "resize", "width": 4, "height": 4}, {"op": "normalize"}, {"op": "layout", "order": "chw"}]
    spec = {"url": f"./{name}/Channel Means.onnx", "format": "onnx", "preprocess": steps,
            "postprocess": {"task": "detection", "script": {"file": "boxes.py"}}}  # fmt: skip
    return resource("Model", spec, name)


def evaluate(folder: Path, *detectors: dict[str, object]) -> tuple[str, dict[str, Any], str]:
    """Return what the command warns of, its figures, and its page."""
    (folder / "data").mkdir()
    for number in range(PICTURES):
        Image.new("RGB", (4, 4), (number * 20, 90, 40)).save(folder / "data" / f"{number:02}.png")
    service = write(folder, joint(mining="BoxCount"), *detectors)
    done = typed("evaluate", "--service", service, "--data", folder / "data", "--out", folder / "out")
    report = json.loads((folder / "out" / "evaluation.json").read_text())
    return done.stderr, report, (folder / "out" / "evaluation.html").read_text()


def test_models_without_a_common_label_are_named(tmp_path: Path) -> None:
    detectors = detector(tmp_path, "small", 0.8, "0"), detector(tmp_path, "big", 0.8)
    warnings, report, _ = evaluate(tmp_path, *detectors)
    assert "small answers 0, and big face: no answer of one counts as right for the other" in warnings
    assert len(report["notes"]) == 1


@pytest.mark.parametrize(("part", "differ"), [(0.4, True), (0.79, False)])
def test_boxes_that_differ_by_convention_are_named_and_drawn(tmp_path: Path, part: float, *, differ: bool) -> None:
    warnings, report, html = evaluate(tmp_path, detector(tmp_path, "small", part), detector(tmp_path, "big", 0.8))
    assert ("Note: small and big draw different boxes" in warnings) == differ
    assert ("those of small are 0.50 times as wide" in html) == differ
    assert len(report["notes"]) == differ
    assert html.count('src="data:image/jpeg;base64,') == (2 * PICTURES if differ else 0)
    assert len(report["disagreements"]) == (PICTURES if differ else 0)
