"""``halimede evaluate`` of two detectors: a page with the pictures on which they differ, and a note on their boxes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from halimede.cli.app import app
from tests.unit.cli.test_inspect import means
from tests.unit.evaluation.worlds import SEDNA, joint, write

PICTURES = 12
#: answers one box around the middle; its size is a part of the picture's, and the model's file name has that part
SCRIPT = """
def postprocess(outputs, size):
    height, width = size
    wide, high = width * {part}, height * {part}
    return [[(width - wide) / 2, (height - high) / 2, (width + wide) / 2, (height + high) / 2, 0.9, "face"]]
"""


def detector(folder: Path, name: str, part: float) -> dict[str, object]:
    (folder / name).mkdir()
    means(folder / name)
    (folder / name / "boxes.py").write_text(SCRIPT.format(part=part))
    steps = [{"op": "resize", "width": 4, "height": 4}, {"op": "normalize"}, {"op": "layout", "order": "chw"}]
    spec = {"url": f"./{name}/Channel Means.onnx", "format": "onnx", "preprocess": steps,
            "postprocess": {"task": "detection", "script": {"file": "boxes.py"}}}  # fmt: skip
    return {"apiVersion": SEDNA, "kind": "Model", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(("part", "differ"), [(0.4, True), (0.79, False)])
def test_boxes_that_differ_by_convention_are_named_and_drawn(tmp_path: Path, part: float, *, differ: bool) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(PICTURES):
        Image.new("RGB", (4, 4), (number * 20, 90, 40)).save(data / f"{number:02}.png")
    body = joint(mining="BoxCount")
    service = write(tmp_path, body, detector(tmp_path, "small", part), detector(tmp_path, "big", 0.8))
    out = tmp_path / "out"
    words = ["evaluate", "--service", str(service), "--data", str(data), "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    html = (out / "evaluation.html").read_text()
    report = json.loads((out / "evaluation.json").read_text())
    assert ("Note: small and big draw different boxes" in done.stderr) == differ
    assert ("those of small are 0.50 times as wide" in html) == differ
    assert len(report["notes"]) == differ
    assert html.count('src="data:image/jpeg;base64,') == (2 * PICTURES if differ else 0)
    assert len(report["disagreements"]) == (PICTURES if differ else 0)
