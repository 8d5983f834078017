"""Edge and cloud workers as processes, ONNX models of real digits, a real Mosquitto between them."""

from __future__ import annotations

import asyncio
import io
import json
import signal

import msgpack
import numpy as np
import pytest
from PIL import Image

from examples.digits import data
from halimede import topics
from halimede.frames import encode_image, new_frame, new_id, pack
from halimede.messages import Frame, Result
from halimede.models.address_policy import VARIABLE
from halimede.worker.session_names import FILE
from tests.cameras import MjpegCamera, Viewer
from tests.digits import ALL_HARD, Digits, slow
from tests.graphs import write_spotter
from tests.inbox import Inbox
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


def once(s: Site) -> None:
    assert set(s.results) == set(s.sent)
    assert set(s.copies.values()) == {1}


@pytest.mark.slow
async def test_every_sample_is_answered_exactly_once_and_the_cloud_makes_answers_better(
    s: Site, digits: Digits
) -> None:
    await s.run_both(digits)
    await s.send_all(digits.pictures[:400], fps=100)
    once(s)
    truth = data.load().test_y
    hard = s.by("cloud")
    assert 30 < len(hard) < 200
    small_right = sum(r.edge is not None and r.edge.label == str(truth[s.sent[r.id]]) for r in hard)
    big_right = sum(r.label == str(truth[s.sent[r.id]]) for r in hard)
    assert big_right > small_right
    await eventually(lambda: s.counts(s.edge).inference_number == 400)
    counts = s.counts(s.edge)
    assert (counts.cloud_inference_number, counts.hard_example_number) == (len(hard), len(hard))
    assert (counts.lost, counts.rejected, counts.late, counts.degraded) == (0, 0, 0, 0)
    await eventually(lambda: s.counts(s.cloud).served == len(hard))


async def test_bad_frames_are_rejected_counted_dead_lettered_and_the_stream_goes_on(s: Site, digits: Digits) -> None:
    await s.run_edge(digits.small)
    no_picture = new_frame(np.zeros((2, 2, 2, 2), np.uint8))
    bad = [b"", b"garbage", digits.pictures[0][:40], msgpack.packb({"v": 1}), pack(no_picture)]
    for payload in bad:
        await s.publish(payload)
    await s.send_all(digits.pictures[:20])
    once(s)
    await eventually(lambda: s.counts(s.edge).rejected == len(bad))
    assert s.counts(s.edge).lost == 0
    await eventually(lambda: len(s.letters) == len(bad))


async def test_a_bare_jpeg_of_qos_0_is_answered(s: Site, digits: Digits) -> None:
    await s.run_edge(digits.small)
    out = io.BytesIO()
    Image.open(io.BytesIO(digits.pictures[7])).resize((64, 64)).convert("RGB").save(out, format="JPEG")
    await s.publish(out.getvalue(), qos=0)
    await eventually(lambda: len(s.results) == 1)
    assert next(iter(s.results.values())).camera == s.service


@pytest.mark.slow
async def test_sigterm_drains_what_was_taken_and_exits_with_0(s: Site, digits: Digits) -> None:
    cloud = s.start("cloud", s.cloud, digits.big)
    edge = s.start_script("edge", s.edge, SLOW_SMALL)
    await s.running(s.cloud, s.edge)
    sending = asyncio.create_task(s.send(digits.pictures[:100], fps=500))
    await eventually(lambda: len(s.results) > 5)
    assert await edge.terminate() == 0, edge.log.read_text()
    await sending
    await eventually(lambda: s.infos[s.edge].status == "completed", 30)
    # what was taken was answered; what still stood in its queue is known as skipped
    await eventually(lambda: s.counts(s.edge).inference_number == len(s.results) > 5, 30)
    assert s.counts(s.edge).lost == 0
    assert set(s.copies.values()) == {1}
    assert await cloud.terminate() == 0
    await eventually(lambda: s.infos[s.cloud].status == "completed", 30)
    assert b"Traceback" not in edge.log.read_bytes() + cloud.log.read_bytes()


@pytest.mark.slow
async def test_kill_9_loses_no_frame_and_the_next_worker_answers_what_was_inside(s: Site, digits: Digits) -> None:
    edge = await s.run_script("edge", SLOW_SMALL)
    sending = asyncio.create_task(s.send(digits.pictures[:100], fps=500))
    await eventually(lambda: len(s.results) > 5)
    edge.kill()
    await sending
    assert len(s.results) < 100
    await s.run_script("edge", SLOW_SMALL)
    await s.answered()
    await eventually(lambda: s.counts(s.edge).inference_number >= 100, 30)
    assert s.counts(s.edge).lost == 0


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


async def test_a_plain_msgpack_reader_reads_what_an_edge_worker_sends_up(s: Site, digits: Digits) -> None:
    requests: Inbox[Frame] = Inbox()
    await s.bus.subscribe(topics.REQUEST.filter(ns="default", service=s.service), requests)
    await s.run_edge(digits.small, **ALL_HARD, DEADLINE_MS="500")
    await s.send_all(digits.pictures[:1])
    read = msgpack.unpackb(bytes(requests.deliveries[0].packet.payload))
    assert read["id"].hex() in s.sent
    assert (read["service"], read["worker"], read["camera"]) == (s.service, s.edge, s.service)
    assert 0 < read["deadlineMs"] <= 500
    assert read["edge"]["label"] in set("0123456789")
    assert read["data"] == digits.pictures[0]


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


@pytest.mark.slow
async def test_a_worker_answers_a_stream_that_changes_its_size_in_the_pixels_of_each_frame(s: Site) -> None:
    async def show(viewer: Viewer) -> None:
        for number in range(1000):
            await viewer.picture(thing(*SIZES[number // 3 % len(SIZES)]))
            await asyncio.sleep(0.05)

    model = write_spotter(s.folder / "spotter.onnx")
    async with MjpegCamera(show) as camera:
        source = {"SOURCE": json.dumps({"url": f"{camera.url()}#yard"}), VARIABLE: "loopback"}
        s.start("edge", s.edge, model, MODEL_SPEC=json.dumps(SPOTTER), **source, **EDGE_ONLY)
        await eventually(lambda: len(s.results) >= 3 * len(SIZES), 60)
        results = list(s.results.values())
    seen = set()
    for result in results:
        boxes = result.prediction.boxes
        assert boxes
        size = min(SIZES, key=lambda size: abs(size[0] // 2 - boxes[0].x2) + abs(size[1] * 3 // 4 - boxes[0].y2))
        assert_sees_the_thing(result, *size)
        seen.add(size)
    assert len(seen) == len(SIZES)


@pytest.mark.parametrize(
    "limit",
    [pytest.param({}, id="without age", marks=pytest.mark.slow), pytest.param({"maxAgeMs": 300}, id="with age")],
)
async def test_frames_of_a_camera_at_qos_1_that_a_slow_model_does_not_answer_are_counted(
    s: Site, digits: Digits, limit: dict[str, int]
) -> None:
    count = 160
    await s.run_script("edge", SLOW_SMALL, SOURCE=json.dumps({"cameras": [s.service], **limit}))
    await s.send(digits.pictures[:count])
    await eventually(lambda: s.counts(s.edge).inference_number + s.counts(s.edge).skipped == count, 60)
    assert set(s.copies.values()) == {1}
    counts = s.counts(s.edge)
    assert (counts.inference_number, counts.lost, counts.rejected) == (len(s.results), 0, 0)
    assert (counts.skipped > count / 2) if limit else (counts.skipped == 0)
