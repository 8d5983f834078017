"""Edge and cloud workers as processes, ONNX models of real digits, a real Mosquitto between them."""

from __future__ import annotations

import asyncio
import io
import json
import signal
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from PIL import Image

from examples.digits import data
from halimede import topics
from halimede.bus import Delivery
from halimede.frames import encode_image, new_frame, new_id, pack
from halimede.messages import Frame, Result
from halimede.models.address_policy import VARIABLE
from halimede.worker.session_names import FILE
from services.broker import MosquittoProcess
from tests.cameras import MjpegCamera, Viewer
from tests.graphs import write_spotter
from tests.integration.workers import Site, site, train
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = pytest.mark.timeout(180)

SLOW_BIG = """
    import time
    from halimede.worker import run_cloud

    class Big:
        def predict(self, data):
            time.sleep(0.2)
            return {"label": "slow", "probabilities": [0.9, 0.1]}

    run_cloud(Big)
"""
SLOW_SMALL = """
    import time
    from halimede.worker import run_edge

    class Small:
        def predict(self, data):
            time.sleep(0.05)
            return {"label": "small", "probabilities": [0.9, 0.1]}

    run_edge(Small)
"""

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


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    return train(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def pictures(models: tuple[Path, Path, Any]) -> list[bytes]:
    return [data.to_png(image) for image in models[2].test_x]


def once(s: Site) -> None:
    assert set(s.results) == set(s.sent)
    assert set(s.copies.values()) == {1}


@pytest.mark.slow
async def test_every_sample_is_answered_exactly_once_and_the_cloud_makes_answers_better(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, models: Any, pictures: list[bytes]
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        s.start("cloud", f"{unique}-c", models[1])
        s.start("edge", f"{unique}-e", models[0])
        await s.running(f"{unique}-c", f"{unique}-e")
        await s.send(pictures[:400], fps=100)
        await s.answered()
        once(s)
        truth = models[2].test_y
        hard = s.by("cloud")
        assert 30 < len(hard) < 200
        small_right = sum(r.edge is not None and r.edge.label == str(truth[s.sent[r.id]]) for r in hard)
        big_right = sum(r.label == str(truth[s.sent[r.id]]) for r in hard)
        assert big_right > small_right
        await eventually(lambda: s.counts(f"{unique}-e").inference_number == 400)
        counts = s.counts(f"{unique}-e")
        assert counts.cloud_inference_number == len(hard)
        assert counts.hard_example_number == len(hard) + counts.degraded
        assert (counts.lost, counts.rejected, counts.late) == (0, 0, 0)
        assert counts.degraded == 0
        await eventually(lambda: s.counts(f"{unique}-c").served == len(hard))


@pytest.mark.slow
async def test_a_cloud_killed_midway_costs_no_sample_its_answer(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, models: Any, pictures: list[bytes]
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        first = s.start("cloud", f"{unique}-c0", models[1])
        s.start("cloud", f"{unique}-c1", models[1])
        s.start("edge", f"{unique}-e", models[0], HEM_NAME="CloudOnly", HEM_PARAMETERS="")
        await s.running(f"{unique}-c0", f"{unique}-c1", f"{unique}-e")
        sending = asyncio.create_task(s.send(pictures[:300]))
        await eventually(lambda: len(s.results) > 100)
        first.kill()
        await sending
        await s.answered()
        once(s)
        # what the dead one had went to the other one under the same id: nothing waited for its deadline in vain
        assert set(s.reasons()) <= {"window-full", "shed"}
        assert {r.worker for r in s.by("cloud")} == {f"{unique}-c0", f"{unique}-c1"}


@pytest.mark.slow
async def test_without_a_cloud_the_edge_answers_and_recovers_when_one_appears(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, models: Any, pictures: list[bytes]
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        s.start("edge", f"{unique}-e", models[0], HEM_NAME="CloudOnly", HEM_PARAMETERS="")
        await s.running(f"{unique}-e")
        await s.send(pictures[:50])
        await s.answered()
        once(s)
        assert set(s.reasons()) == {"no-cloud", "circuit-open"}
        assert sum(s.reasons().values()) == 50
        s.start("cloud", f"{unique}-c", models[1])
        await s.running(f"{unique}-c")
        await s.send(pictures[50:100], fps=50)
        await s.answered()
        once(s)
        assert len(s.by("cloud")) == 50
        await eventually(lambda: s.counts(f"{unique}-e").degraded == 50)


@pytest.mark.slow
async def test_a_slow_cloud_sheds_and_the_edge_keeps_its_pace(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, models: Any, pictures: list[bytes]
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        s.start_script("cloud", f"{unique}-c", SLOW_BIG)
        s.start("edge", f"{unique}-e", models[0], HEM_NAME="CloudOnly", HEM_PARAMETERS="", DEADLINE_MS="1500")
        await s.running(f"{unique}-c", f"{unique}-e")
        await s.send(pictures[:300], fps=100)
        await s.answered()
        once(s)
        # of 300 in 3 seconds, some 20; a machine on which they take five times as long lets it answer as many more
        assert 5 <= len(s.by("cloud")) <= 150
        assert set(s.reasons()) <= {"shed", "window-full", "deadline", "circuit-open", "too-slow"}
        kept_back = sum(s.reasons()[reason] for reason in ("shed", "window-full", "too-slow"))
        assert kept_back > s.reasons()["deadline"]


async def test_bad_frames_are_rejected_counted_dead_lettered_and_the_stream_goes_on(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, models: Any, pictures: list[bytes]
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        s.start("edge", f"{unique}-e", models[0])
        await s.running(f"{unique}-e")
        no_picture = new_frame(np.zeros((2, 2, 2, 2), np.uint8))
        bad = [b"", b"garbage", pictures[0][:40], msgpack.packb({"v": 1}), pack(no_picture)]
        for payload in bad:
            await s.publish(payload)
        await s.send(pictures[:20])
        await s.answered()
        once(s)
        await eventually(lambda: s.counts(f"{unique}-e").rejected == len(bad))
        assert s.counts(f"{unique}-e").lost == 0
        await eventually(lambda: len(s.letters) == len(bad))


async def test_a_bare_jpeg_of_qos_0_is_answered(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, models: Any, pictures: list[bytes]
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        s.start("edge", f"{unique}-e", models[0])
        await s.running(f"{unique}-e")
        out = io.BytesIO()
        Image.open(io.BytesIO(pictures[7])).resize((64, 64)).convert("RGB").save(out, format="JPEG")
        await s.publish(out.getvalue(), qos=0)
        await eventually(lambda: len(s.results) == 1)
        assert next(iter(s.results.values())).camera == unique


@pytest.mark.slow
async def test_sigterm_drains_what_was_taken_and_exits_with_0(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, models: Any, pictures: list[bytes]
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        cloud = s.start("cloud", f"{unique}-c", models[1])
        edge = s.start_script("edge", f"{unique}-e", SLOW_SMALL)
        await s.running(f"{unique}-c", f"{unique}-e")
        sending = asyncio.create_task(s.send(pictures[:100], fps=500))
        await eventually(lambda: len(s.results) > 5)
        assert await edge.terminate() == 0, edge.log.read_text()
        await sending
        await eventually(lambda: s.infos[f"{unique}-e"].status == "completed", 30)
        await eventually(lambda: s.counts(f"{unique}-e").inference_number == len(s.results), 30)
        counts = s.counts(f"{unique}-e")
        # what was taken was answered; what still stood in its queue is known as skipped
        assert counts.lost == 0
        assert counts.inference_number == len(s.results) > 5
        assert set(s.copies.values()) == {1}
        assert await cloud.terminate() == 0
        await eventually(lambda: s.infos[f"{unique}-c"].status == "completed", 30)
        assert b"Traceback" not in edge.log.read_bytes() + cloud.log.read_bytes()


@pytest.mark.slow
async def test_kill_9_loses_no_frame_and_the_next_worker_answers_what_was_inside(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, pictures: list[bytes]
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        edge = s.start_script("edge", f"{unique}-e", SLOW_SMALL)
        await s.running(f"{unique}-e")
        sending = asyncio.create_task(s.send(pictures[:100], fps=500))
        await eventually(lambda: len(s.results) > 5)
        edge.kill()
        await sending
        assert len(s.results) < 100
        s.start_script("edge", f"{unique}-e", SLOW_SMALL)
        await s.running(f"{unique}-e")
        await s.answered()
        await eventually(lambda: s.counts(f"{unique}-e").inference_number >= 100, 30)
        assert s.counts(f"{unique}-e").lost == 0


@pytest.mark.slow
async def test_a_model_that_hangs_does_not_keep_a_worker_from_its_end(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, pictures: list[bytes]
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        edge = s.start_script("edge", f"{unique}-e", SLOW_SMALL.replace("0.05", "3600"), GRACE_S="1")
        await s.running(f"{unique}-e")
        await s.send(pictures[:3])

        async def all_inside() -> bool:
            return await s.metric(f"{unique}-e", "queued_frames") == 3

        await eventually(all_inside, 30)
        assert await edge.terminate() == 0
        s.start_script("edge", f"{unique}-e", SLOW_SMALL)
        await s.answered()
        await eventually(lambda: s.counts(f"{unique}-e").inference_number == 3, 30)
        assert s.counts(f"{unique}-e").lost == 0


@pytest.mark.slow
async def test_a_users_estimators_run_on_both_sides_in_a_few_lines(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, pictures: list[bytes]
) -> None:
    small = """
        from halimede.worker import run_edge

        class Small:
            def load(self, model_url):
                self.name = model_url
            def predict(self, data):
                return [0.5, 0.5]

        run_edge(Small)
    """
    async with site(mosquitto, unique, tmp_path) as s:
        s.start_script("edge", f"{unique}-e", small, MODEL_SPEC="")
        module = tmp_path / "own"
        module.mkdir()
        code = "class Big:\n    def predict(self, data):\n        return str(data.shape)\n"
        (module / "detector.py").write_text(code)
        s.start(
            "cloud", f"{unique}-c", "", ESTIMATOR="detector:Big", MODEL_SPEC="",
            PYTHONPATH=f"{s.environment('cloud', 'x', '')['PYTHONPATH']}:{module}",
        )  # fmt: skip
        await s.running(f"{unique}-e", f"{unique}-c")
        await s.send(pictures[:5])
        await s.answered()
        assert {(r.by, r.label) for r in s.results.values()} == {("cloud", "(8, 8)")}


async def test_a_plain_msgpack_reader_reads_what_an_edge_worker_sends_up(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, models: Any, pictures: list[bytes]
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        seen: list[bytes] = []

        async def spy(delivery: Delivery[Frame]) -> None:
            seen.append(bytes(delivery.packet.payload))

        await s.bus.subscribe(topics.REQUEST.filter(ns="default", service=unique), spy)
        s.start("edge", f"{unique}-e", models[0], HEM_NAME="CloudOnly", HEM_PARAMETERS="", DEADLINE_MS="500")
        await s.running(f"{unique}-e")
        await s.send(pictures[:1])
        await s.answered()
        read = msgpack.unpackb(seen[0])
        assert read["id"].hex() in s.sent
        assert (read["service"], read["worker"], read["camera"]) == (unique, f"{unique}-e", unique)
        assert 0 < read["deadlineMs"] <= 500
        assert read["edge"]["label"] in set("0123456789")
        assert read["data"] == pictures[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "changes", "said"),
    [
        ("edge", {"HEM_NAME": "Margn"}, "HardExampleMiningUnknown"),
        ("edge", {"SOURCE": '{"url": "gopher://x"}'}, "SourceInvalid"),
        ("cloud", {"MODEL_URL": "/nowhere.onnx"}, "ModelInvalid"),
        ("cloud", {"GRACE_S": "long"}, "GRACE_S"),
        ("cloud", {"HALIMEDE_BROKER": "ftp://x"}, "HALIMEDE_BROKER"),
    ],
)
async def test_a_mistake_ends_the_worker_with_one_line_and_code_2(
    *,
    mosquitto: MosquittoProcess,
    unique: str,
    tmp_path: Path,
    models: Any,
    role: str,
    changes: dict[str, str],
    said: str,
) -> None:
    async with site(mosquitto, unique, tmp_path) as s:
        worker = s.start(role, f"{unique}-w", models[0], HALIMEDE_LOG_LEVEL="ERROR", **changes)
        assert await asyncio.to_thread(worker.process.wait, patience(30)) == 2
        (line,) = worker.log.read_text().splitlines()
        assert line.startswith(f"halimede {role} worker: ")
        assert said in line
        if said[0].isupper() and "_" not in said:
            await eventually(lambda: f"{unique}-w" in s.infos and s.infos[f"{unique}-w"].status == "failed")
            assert s.infos[f"{unique}-w"].reason == said


@pytest.mark.slow
async def test_an_upgraded_worker_answers_the_frames_that_its_hung_predecessor_had(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, models: Any, pictures: list[bytes]
) -> None:
    """The predecessor's session has the client id of earlier versions, which is not a secret."""
    name = f"{unique}-e"
    async with site(mosquitto, unique, tmp_path) as s:
        former = s.start("edge", name, models[0], HEM_NAME="CloudOnly", HEM_PARAMETERS="")
        await s.running(name)
        former.process.send_signal(signal.SIGSTOP)
        await s.send(pictures[:60], fps=200)
        former.kill()
        (tmp_path / name / FILE).unlink()  # earlier versions recorded nothing
        s.start("edge", name, models[0], HEM_NAME="CloudOnly", HEM_PARAMETERS="", SESSION_KEY="0f" * 16)
        await s.running(name)
        await s.send(pictures[60:80], fps=50)
        await s.answered()
        assert s.counts(name).lost == 0


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


async def test_frames_of_a_camera_that_changes_its_size_have_boxes_in_their_own_pixels(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    model = write_spotter(tmp_path / "spotter.onnx")
    async with site(mosquitto, unique, tmp_path) as s:
        s.start("edge", f"{unique}-e", model, MODEL_SPEC=json.dumps(SPOTTER), HEM_NAME="EdgeOnly", HEM_PARAMETERS="")
        await s.running(f"{unique}-e")
        sizes = {}
        for size in SIZES * 3:
            frame = Frame(id=new_id(), encoding="jpeg", data=memoryview(thing(*size)))
            sizes[frame.id.hex()] = size
            await s.publish(pack(frame))
        await eventually(lambda: s.results.keys() >= sizes.keys(), 60)
    for name, size in sizes.items():
        assert_sees_the_thing(s.results[name], *size)


async def test_a_worker_answers_a_stream_that_changes_its_size_in_the_pixels_of_each_frame(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    async def show(viewer: Viewer) -> None:
        for number in range(1000):
            await viewer.picture(thing(*SIZES[number // 3 % len(SIZES)]))
            await asyncio.sleep(0.05)

    model = write_spotter(tmp_path / "spotter.onnx")
    async with site(mosquitto, unique, tmp_path) as s, MjpegCamera(show) as camera:
        source = {"SOURCE": json.dumps({"url": f"{camera.url()}#yard"}), VARIABLE: "loopback"}
        rule = {"HEM_NAME": "EdgeOnly", "HEM_PARAMETERS": ""}
        s.start("edge", f"{unique}-e", model, MODEL_SPEC=json.dumps(SPOTTER), **source, **rule)
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


@pytest.mark.parametrize("limit", [{}, {"maxAgeMs": 300}], ids=["without age", "with age"])
async def test_frames_of_a_camera_at_qos_1_that_a_slow_model_does_not_answer_are_counted(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, pictures: list[bytes], limit: dict[str, int]
) -> None:
    count = 160
    async with site(mosquitto, unique, tmp_path) as s:
        name, source = f"{unique}-e", {"cameras": [unique], **limit}
        s.start_script("edge", name, SLOW_SMALL, SOURCE=json.dumps(source))
        await s.running(name)
        await s.send(pictures[:count])
        await eventually(lambda: s.counts(name).inference_number + s.counts(name).skipped == count, 60)
        assert set(s.copies.values()) == {1}
        counts = s.counts(name)
        assert (counts.inference_number, counts.lost, counts.rejected) == (len(s.results), 0, 0)
        assert (counts.skipped > count / 2) if limit else (counts.skipped == 0)
