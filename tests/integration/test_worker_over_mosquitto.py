"""Edge and cloud workers as processes, ONNX models of real digits, a real Mosquitto between them."""

from __future__ import annotations

import asyncio
import json
import signal

import numpy as np
import pytest

from halimede.frames import encode_image, new_id, pack
from halimede.messages import Frame, Result
from halimede.worker.session_names import FILE
from tests.digits import ALL_HARD, Digits, slow
from tests.graphs import write_spotter
from tests.integration.workers import Site
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = pytest.mark.timeout(180)

SLOW_SMALL = slow(0.05, "small", "edge")
EDGE_ONLY = {"HEM_NAME": "EdgeOnly", "HEM_PARAMETERS": ""}

#: a detector of the brightest thing (``write_spotter``), in a letterbox of so many pixels a side
SPOTTED = 64
SPOTTER = {
    "url": "/none", "format": "onnx", "labels": ["thing"], "decode": "scaled",
    "preprocess": [
        {"op": "grayscale"},
        {"op": "letterbox", "width": SPOTTED, "height": SPOTTED, "fill": 0},
        {"op": "scale", "factor": 1 / 255},
        {"op": "cast", "dtype": "float32"},
    ],
    "postprocess": {"task": "detection"},
}  # fmt: skip
#: sizes of a camera's frames in turn, whole and decoded at each smaller scale
SIZES = [(64, 48), (160, 120), (640, 480), (100, 300), (1280, 720)]


@pytest.mark.slow
async def test_a_model_that_hangs_does_not_keep_a_worker_from_its_end(s: Site, digits: Digits) -> None:
    edge = await s.run_script("edge", slow(3600, "small", "edge"), GRACE_S="1")
    await s.send(digits.pictures[:3])

    async def all_inside() -> bool:
        return await s.metric(s.edge, "queued_frames") == 3

    await eventually(all_inside, 30)
    assert await edge.terminate() == 0
    s.start_script("edge", s.edge, SLOW_SMALL)
    await s.answered()
    await eventually(lambda: s.counts(s.edge).inference_number == 3, 30)
    assert s.counts(s.edge).lost == 0


@pytest.mark.slow
async def test_a_users_estimators_run_on_both_sides_in_a_few_lines(s: Site, digits: Digits) -> None:
    small = """
        from halimede.worker import run_edge

        class Small:
            def load(self, model_url):
                self.name = model_url
            def predict(self, data):
                return [0.5, 0.5]

        run_edge(Small)
    """
    s.start_script("edge", s.edge, small, MODEL_SPEC="")
    module = s.folder / "own"
    module.mkdir()
    (module / "detector.py").write_text("class Big:\n    def predict(self, data):\n        return str(data.shape)\n")
    path = f"{s.environment('cloud', 'x', '')['PYTHONPATH']}:{module}"
    s.start("cloud", s.cloud, "", ESTIMATOR="detector:Big", MODEL_SPEC="", PYTHONPATH=path)
    await s.running(s.edge, s.cloud)
    await s.send_all(digits.pictures[:5])
    assert {(r.by, r.label) for r in s.results.values()} == {("cloud", "(8, 8)")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "changes", "error"),
    [
        ("edge", {"HEM_NAME": "Margn"}, "HardExampleMiningUnknown"),
        ("edge", {"SOURCE": '{"url": "gopher://x"}'}, "SourceInvalid"),
        ("cloud", {"MODEL_URL": "/nowhere.onnx"}, "ModelInvalid"),
        ("cloud", {"GRACE_S": "long"}, "GRACE_S"),
        ("cloud", {"HALIMEDE_BROKER": "ftp://x"}, "HALIMEDE_BROKER"),
    ],
)
async def test_a_mistake_ends_the_worker_with_one_line_and_code_2(
    s: Site, digits: Digits, role: str, changes: dict[str, str], error: str
) -> None:
    worker = s.start(role, s.edge, digits.small, HALIMEDE_LOG_LEVEL="ERROR", **changes)
    assert await asyncio.to_thread(worker.process.wait, patience(30)) == 2
    (line,) = worker.log.read_text().splitlines()
    assert line.startswith(f"halimede {role} worker: ")
    assert error in line
    if error[0].isupper() and "_" not in error:
        await eventually(lambda: s.edge in s.infos and s.infos[s.edge].status == "failed")
        assert s.infos[s.edge].reason == error


@pytest.mark.slow
async def test_an_upgraded_worker_answers_the_frames_that_its_hung_predecessor_had(s: Site, digits: Digits) -> None:
    """The predecessor's session has the client id of earlier versions, which is not a secret."""
    former = await s.run_edge(digits.small, **ALL_HARD)
    former.process.send_signal(signal.SIGSTOP)
    await s.send(digits.pictures[:60], fps=200)
    former.kill()
    (s.folder / s.edge / FILE).unlink()  # earlier versions recorded nothing
    await s.run_edge(digits.small, **ALL_HARD, SESSION_KEY="0f" * 16)
    await s.send_all(digits.pictures[60:80], fps=50)
    assert s.counts(s.edge).lost == 0


def thing(width: int, height: int) -> bytes:
    """Return a JPEG with one bright thing, left of its middle."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[height // 4 : height * 3 // 4, width // 4 : width // 2] = 255
    return encode_image(pixels, "jpeg")


def assert_sees_the_thing(result: Result, width: int, height: int) -> None:
    """The thing's box is in the frame's own pixels, to a pixel of the model's input."""
    boxes = result.prediction.boxes
    assert boxes is not None
    assert len(boxes) == 1, (width, height)
    corners = [boxes[0].x1, boxes[0].y1, boxes[0].x2, boxes[0].y2]
    expected = [width // 4, height // 4, width // 2, height * 3 // 4]
    assert corners == pytest.approx(expected, abs=max(width, height) / SPOTTED + 1), (width, height)


async def test_frames_of_a_camera_that_changes_its_size_have_boxes_in_their_own_pixels(s: Site) -> None:
    model = write_spotter(s.folder / "spotter.onnx")
    await s.run_edge(model, MODEL_SPEC=json.dumps(SPOTTER), **EDGE_ONLY)
    sizes = {}
    for size in SIZES * 3:
        frame = Frame(id=new_id(), encoding="jpeg", data=memoryview(thing(*size)))
        sizes[frame.id.hex()] = size
        await s.publish(pack(frame))
    await eventually(lambda: s.results.keys() >= sizes.keys(), 60)
    for name, size in sizes.items():
        assert_sees_the_thing(s.results[name], *size)
