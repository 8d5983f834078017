"""A worker with a detector: the crops of what it finds are samples, and a frame has one result of all its crops."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede import topics
from halimede.api.base import convert
from halimede.api.jointinference import Detector, KeepHardSamples
from halimede.api.model import ModelSpec
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.frames import new_frame, pack
from halimede.frames.encodings import decode
from halimede.hard_samples import FOLDER
from halimede.hard_samples.store import HardSampleStore
from halimede.inference import Array, Model
from halimede.messages import Box, Frame, KeptRequest, Prediction, Result
from halimede.pipeline.crops import CropDetector, CropOutbox, FrameResponder, combine_answers, crop_of
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.responders import Origin, ResultResponder, result_outbox
from halimede.pipeline.workers import EdgeWorker
from halimede.stats.ledger import Ledger
from halimede.tracing import TraceBuffer
from halimede.tracing.steps import CROPS
from halimede.worker.errors import WorkerError
from halimede.worker.settings import DetectorSettings
from tests.graphs import FLOAT, write_graph
from tests.simulated import eventually, simulated
from tests.unit.worker.world import BREAKS_BOTH, BREAKS_SMALL, EASY, HARD, NS, Big, World, world

#: the values of ``world`` begin at 10: a pixel above 5 is a part of a thing
DETECTION = {"task": "detection", "boxes": {"decode": "db", "threshold": 0.02, "unclip": 0.0}}


@pytest.fixture(autouse=True)
def _no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open the detector without a trial in a child process, whose time is not simulated."""

    async def passes(*_: object) -> None:
        return

    monkeypatch.setattr("halimede.worker.model_reload._try", passes)


def detector(folder: Path, **boxes: Any) -> DetectorSettings:
    """Return a detector of all that is not black: its map of probabilities is the picture itself."""
    size: list[Any] = ["n", 1, "h", "w"]
    path = write_graph(
        folder / "map.onnx", [("Identity", ["x"], ["y"], {})], {"x": (FLOAT, size)}, {"y": (FLOAT, size)}
    )
    steps = [{"op": "grayscale"}, {"op": "normalize"}, {"op": "layout", "order": "chw"}]
    body = {"url": str(path), "format": "onnx", "labels": ["thing"], "preprocess": steps, "postprocess": DETECTION}
    limits = {"name": "finder", "minScore": 0.0, **boxes}
    return DetectorSettings(str(path), convert(body, ModelSpec, "spec"), convert(limits, Detector, "detector"))


def page(values: Sequence[int]) -> np.ndarray:
    """Return a black picture with a square of 6 x 6 pixels of each value, in a row."""
    picture = np.zeros((10, 10 * max(1, len(values)), 3), np.uint8)
    for number, value in enumerate(values):
        picture[2:8, 10 * number + 2 : 10 * number + 8] = value
    return picture


async def show(w: World, values: Sequence[int], **options: Any) -> str:
    frame = new_frame(page(values), **options)
    await w.camera.publish(topics.CAMERA_FRAME.at(ns=NS, camera="cam0"), pack(frame))
    return frame.id.hex()


def labels(prediction: Prediction | None) -> list[int | str]:
    assert prediction is not None
    return [box.label for box in prediction.boxes or ()]


@simulated
async def test_only_hard_crops_go_up_and_the_frame_has_one_result_of_all(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("cloud", "c0"), w.worker("edge", "e0", detector=detector(tmp_path)):
        result = await w.answer(await show(w, [EASY, HARD, EASY, HARD]))
        assert labels(result.prediction) == ["small", "big", "small", "big"]
        assert labels(result.edge) == ["small"] * 4
        assert [(box.x1, box.y1, box.x2, box.y2) for box in (result.prediction.boxes or ())][1] == (12, 2, 18, 8)
        assert (result.by, result.hard, result.degraded, result.reason) == ("cloud", True, False, "")
        easy = await w.answer(await show(w, [EASY]))
        assert (easy.by, easy.hard, easy.edge, labels(easy.prediction)) == ("edge", False, None, ["small"])
        await eventually(lambda: w.info("e0").inference_number == 5)
        info = w.info("e0")
        assert (info.hard_example_number, info.cloud_inference_number, info.edge_inference_number) == (2, 2, 3)
        assert (info.upload_cloud_ratio, info.lost, info.degraded) == (0.4, 0, 0)
        assert w.info("c0").served == 2
    assert set(w.copies.values()) == {1}


@simulated
async def test_a_frame_without_boxes_is_answered_empty_and_counts_as_one_sample(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e0", detector=detector(tmp_path)):
        result = await w.answer(await show(w, []))
        assert (result.by, result.hard, result.degraded, result.prediction.boxes) == ("edge", False, False, [])
        await eventually(lambda: w.info("e0").inference_number == 1)
        assert (w.info("e0").hard_example_number, w.info("e0").lost) == (0, 0)


@simulated
async def test_without_a_cloud_all_crops_are_answered_by_the_edge(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e0", detector=detector(tmp_path)):
        result = await w.answer(await show(w, [EASY, HARD, HARD]))
        assert labels(result.prediction) == ["small"] * 3
        assert (result.by, result.hard, result.degraded, result.reason) == ("edge", True, True, "no-cloud")
        await eventually(lambda: w.info("e0").inference_number == 3)
        assert (w.info("e0").degraded, w.info("e0").hard_example_number) == (2, 2)


class Refusing(Big):
    """Fails on pictures of a few values."""

    def predict(self, data: Any) -> dict[str, Any]:
        if int(np.asarray(data).flat[0]) in range(HARD + 2, HARD + 5):
            raise RuntimeError("too plain for the big model")
        return super().predict(data)


@simulated
async def test_crops_that_the_cloud_does_not_answer_keep_the_small_models_answer(tmp_path: Path) -> None:
    edge = {"detector": detector(tmp_path)}
    async with world(tmp_path) as w, w.worker("cloud", "c0", Refusing), w.worker("edge", "e0", **edge):
        result = await w.answer(await show(w, [EASY, HARD, HARD + 3]))
        assert labels(result.prediction) == ["small", "big", "small"]
        assert (result.by, result.degraded, result.reason) == ("cloud", True, "error")
        await eventually(lambda: w.info("e0").inference_number == 3)
        assert (w.info("e0").degraded, w.info("e0").cloud_inference_number) == (1, 1)


@simulated
async def test_a_deadline_in_the_middle_of_a_frame_leaves_the_small_models_answers(tmp_path: Path) -> None:
    requests: list[object] = []

    async def never_answer(delivery: object) -> None:
        requests.append(delivery)

    async with world(tmp_path) as w, w.worker("edge", "e0", detector=detector(tmp_path), deadline_s=3.0):
        await w.camera.subscribe(topics.REQUEST.filter(group="x", ns=NS, service="helmet"), never_answer)
        result = await w.answer(await show(w, [EASY, HARD, HARD]))
        assert labels(result.prediction) == ["small"] * 3
        assert (result.by, result.degraded, result.reason) == ("edge", True, "deadline")
        assert result.total_ms == pytest.approx(3000, abs=500)
        assert len(requests) == 2


@simulated
async def test_a_budget_counts_crops(tmp_path: Path) -> None:
    options: dict[str, Any] = {"target_upload_ratio": 0.2, "detector": detector(tmp_path)}
    async with world(tmp_path) as w, w.worker("cloud", "c0"), w.worker("edge", "e0", **options):
        for number in range(30):
            await w.answer(await show(w, [HARD if (number + at) % 2 else EASY for at in range(10)]))
        await eventually(lambda: w.info("e0").inference_number == 300)
        info = w.info("e0")
        assert info.upload_cloud_ratio == pytest.approx(0.2, abs=0.05)
        assert info.withheld + info.cloud_inference_number == info.hard_example_number
        assert info.degraded == 0
        held_back = [result for result in w.results.values() if result.by == "edge"]
        assert {(result.degraded, result.reason) for result in held_back} <= {(False, "budget"), (False, "")}


@simulated
async def test_audits_are_of_crops(tmp_path: Path) -> None:
    options: dict[str, Any] = {"audit_share": 1.0, "detector": detector(tmp_path)}
    async with world(tmp_path) as w, w.worker("cloud", "c0"), w.worker("edge", "e0", **options):
        result = await w.answer(await show(w, [EASY] * 5))
        assert (result.by, result.audit, labels(result.prediction)) == ("edge", True, ["small"] * 5)
        await eventually(lambda: w.info("e0").audited == 5)


@simulated
async def test_crops_that_a_model_fails_on_go_up_and_a_box_without_any_answer_stays(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("cloud", "c0"), w.worker("edge", "e0", detector=detector(tmp_path)):
        result = await w.answer(await show(w, [EASY, BREAKS_SMALL, BREAKS_BOTH]))
        assert labels(result.prediction) == ["small", "big", "thing"]
        assert (result.by, result.degraded, result.reason) == ("cloud", True, "error")
        await eventually(lambda: w.info("e0").inference_number == 3)
        assert w.info("e0").model_errors == 2


@simulated
async def test_a_detector_that_fails_on_a_frame_is_a_model_failure(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.worker("edge", "e0", detector=detector(tmp_path)):
        frame = new_frame(np.full((4, 4, 3), 700.0, np.float32))  # values that are no probabilities
        await w.camera.publish(topics.CAMERA_FRAME.at(ns=NS, camera="cam0"), pack(frame))
        result = await w.answer(frame.id.hex())
        assert (result.by, result.degraded, result.reason, result.prediction) == ("edge", True, "error", Prediction())
        assert labels((await w.answer(await show(w, [EASY]))).prediction) == ["small"]
        await eventually(lambda: w.info("e0").inference_number == 2)
        assert w.info("e0").lost == 0


@simulated
async def test_a_worker_that_is_killed_with_crops_in_the_cloud_has_its_frame_answered_once(tmp_path: Path) -> None:
    broker = MemoryBroker()
    async with world(tmp_path, broker) as w:
        await w.camera.subscribe(topics.REQUEST.filter(group="x", ns=NS, service="helmet"), _ignore)
        async with w.worker("edge", "e0", detector=detector(tmp_path), deadline_s=600.0, grace_s=2.0):
            sent = await show(w, [EASY, HARD, HARD])
            await asyncio.sleep(5)
            assert not w.results
            w.buses[f"worker.{NS}.e0"].cut()
        async with w.worker("edge", "e0", detector=detector(tmp_path), deadline_s=1.0):
            assert labels((await w.answer(sent)).prediction) == ["small"] * 3
            await eventually(lambda: w.info("e0").inference_number == 3)
            assert w.info("e0").lost == 0
    assert w.copies == {sent: 1}


@simulated
async def test_a_worker_that_stops_answers_the_crops_that_the_cloud_has(tmp_path: Path) -> None:
    options: dict[str, Any] = {"deadline_s": 600.0, "grace_s": 3.0, "detector": detector(tmp_path)}
    async with world(tmp_path) as w, w.worker("edge", "e0", **options) as stop:
        await w.camera.subscribe(topics.REQUEST.filter(group="x", ns=NS, service="helmet"), _ignore)
        sent = await show(w, [EASY] + [HARD] * 99)
        await asyncio.sleep(1)
        stop.set()
        result = await w.answer(sent)
        assert (result.degraded, result.reason, labels(result.prediction)) == (True, "deadline", ["small"] * 100)
    assert w.status("e0") == "completed"
    assert (w.info("e0").inference_number, w.info("e0").lost) == (100, 0)


@simulated
async def test_the_trace_of_a_frame_counts_its_crops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[Any, ...]] = []
    done = TraceBuffer.done
    monkeypatch.setattr(TraceBuffer, "done", lambda self, record: (steps.extend(record.steps), done(self, record)))
    async with world(tmp_path) as w, w.worker("cloud", "c0"), w.worker("edge", "e0", detector=detector(tmp_path)):
        await w.answer(await show(w, [EASY, HARD, HARD]))
        await eventually(lambda: w.info("e0").inference_number == 3)
    assert [step[3:] for step in steps if step[0] is CROPS] == [(3, 2, 2)]


@simulated
async def test_hard_samples_that_are_kept_are_crops(tmp_path: Path) -> None:
    options: dict[str, Any] = {"keep": KeepHardSamples(max_samples=10), "detector": detector(tmp_path)}
    async with world(tmp_path) as w, w.worker("cloud", "c0"), w.worker("edge", "e0", **options):
        await w.answer(await show(w, [EASY, HARD, HARD]))
    store = HardSampleStore(tmp_path / "e0" / FOLDER, 10**8, 10)
    stored = store.page(KeptRequest()).entries
    assert [(sample.label, sample.edge_label, sample.by) for sample in stored] == [("big", "small", "cloud")] * 2


@simulated
async def test_a_model_whose_crops_have_no_label_is_refused(tmp_path: Path) -> None:
    spec = convert({"url": "/none", "format": "python", "postprocess": {"task": "embedding"}}, ModelSpec, "spec")
    async with world(tmp_path) as w:
        with pytest.raises(WorkerError, match="use a model of task classification or text"):
            async with w.worker("edge", "e0", detector=detector(tmp_path), model=spec):
                pass
        assert w.status("e0") == "failed"


@simulated
async def test_the_best_boxes_are_cropped_and_ids_of_crops_differ(tmp_path: Path) -> None:
    requests: list[bytes] = []

    async def note(delivery: Any) -> None:
        requests.append(delivery.body.id)

    async with world(tmp_path) as w, w.worker("edge", "e0", detector=detector(tmp_path, maxBoxes=3), deadline_s=1.0):
        await w.camera.subscribe(topics.REQUEST.filter(group="x", ns=NS, service="helmet"), note)
        result = await w.answer(await show(w, [HARD, HARD + 9, HARD + 6, HARD + 3]))
        assert [box.x1 for box in result.prediction.boxes or ()] == [12, 22, 32]
    assert len(set(requests)) == 3


@simulated
async def test_the_picture_of_a_frame_is_released_while_its_crops_wait_for_the_cloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures: list[weakref.ref[np.ndarray]] = []

    def watched(frame: Frame) -> np.ndarray:
        picture = decode(frame)
        pictures.append(weakref.ref(picture))
        return picture

    monkeypatch.setattr("halimede.pipeline.crops.decode", watched)
    async with world(tmp_path) as w, w.worker("edge", "e0", detector=detector(tmp_path), deadline_s=60.0, grace_s=0.5):
        requests: list[object] = []

        async def never_answer(delivery: object) -> None:
            requests.append(delivery)

        await w.camera.subscribe(topics.REQUEST.filter(group="x", ns=NS, service="helmet"), never_answer)
        await show(w, [HARD, HARD], encoding="png")
        await eventually(lambda: len(requests) == 2)
        assert not w.results
        assert [picture() is None for picture in pictures] == [True]


async def _ignore(_: object) -> None:
    return


def test_texts_of_crops_become_lines_with_corners_clockwise_from_the_top_left():
    boxes = [Box(1, 2, 31, 12, 0.9, "text"), Box(40, 12, 10, 2, 0.8, "text")]
    answer = combine_answers(boxes, [Prediction(label="AB1", score=0.7), Prediction()], "text")
    first, second = answer.lines or ()
    assert (first.text, first.score, second.text, second.score) == ("AB1", 0.7, "", None)
    assert [(point.x, point.y) for point in first.corners or ()] == [(1, 2), (31, 2), (31, 12), (1, 12)]
    assert [(point.x, point.y) for point in second.corners or ()] == [(10, 2), (40, 2), (40, 12), (10, 12)]
    assert answer.boxes is None
    assert combine_answers([], [], "text").lines == []


class Finder(Model):
    """Finds the same boxes in each picture."""

    labels = ("thing",)

    def __init__(self, *boxes: Box) -> None:
        self._boxes = list(boxes)

    def prepare(self, image: Array) -> Array:
        return image

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        return [Prediction(boxes=list(self._boxes)) for _ in batch]

    def close(self) -> None:
        return


class Sizes(Finder):
    """Answers the height and width of a picture as its label."""

    def predict(self, batch: Sequence[Array]) -> list[Prediction]:
        return [Prediction(label="x".join(map(str, picture.shape[:2])), score=1.0) for picture in batch]


async def cropped(
    folder: Path,
    picture: np.ndarray,
    *boxes: Box,
    finder: Model | None = None,
    small: Model | None = None,
    **limits: Any,
) -> list[Box]:
    """Return the answer of a worker without a cloud whose detector finds these boxes."""
    answers: list[Result] = []

    async def take(delivery: Any) -> None:
        answers.append(delivery.body)

    async with MemoryBus("b", MemoryBroker()) as bus, ModelThread() as thread, ModelThread() as finding:
        await bus.subscribe(topics.RESULT.filter(), take)
        with Ledger(folder, "u-1") as ledger:
            origin, address = Origin("s", "e0", "node-e0"), topics.RESULT.at(ns=NS, service="s")
            outbox, spec = CropOutbox(), convert({"name": "finder", **limits}, Detector, "detector")
            crops = ResultResponder(origin, outbox, address, ledger)
            frames = FrameResponder(
                origin,
                result_outbox(bus),
                address,
                ledger,
                trace_buffer=TraceBuffer(),
                crops=crops,
                task="classification",
            )
            cropping = CropDetector(
                ModelSlot(LoadedModel(finder or Finder(*boxes), finding)), spec, "classification", crops, outbox
            )
            worker = EdgeWorker(
                ModelSlot(LoadedModel(small or Sizes(), thread)), frames, ledger, thread, detector=cropping
            )
            running = asyncio.create_task(worker.run())
            await asyncio.sleep(0)
            await worker.intake.offer(pack(new_frame(picture)), "cam0")
            await eventually(lambda: bool(answers))
            assert ledger.open == 0
            running.cancel()
            await asyncio.wait([running])
    return answers[0].prediction.boxes or []


def box(x1: float, y1: float, x2: float, y2: float, score: float = 0.9) -> Box:
    return Box(x1, y1, x2, y2, score, "thing")


async def test_boxes_over_the_edge_are_cut_and_those_outside_or_unsure_are_dropped(tmp_path: Path) -> None:
    boxes = [box(-5, -5, 10, 8), box(90, 30, 500, 500), box(1e30, 0, 1e31, 9), box(0, 0, 9, 9, score=0.1)]
    answer = await cropped(tmp_path, np.zeros((40, 100, 3), np.uint8), *boxes)
    assert [(part.label, part.x1) for part in answer] == [("8x10", -5), ("10x10", 90)]


async def test_boxes_without_an_area_are_dropped_and_crops_may_be_one_pixel(tmp_path: Path) -> None:
    boxes = [box(5, 5, 5, 5), box(5, 5, 9, 5), box(5, 5, 6, 6), box(9, 8, 7, 6)]
    answer = await cropped(tmp_path, np.zeros((40, 100), np.uint8), *boxes)
    assert [part.label for part in answer] == ["1x1", "2x2"]


async def test_a_margin_is_added_on_each_side_and_only_within_the_frame(tmp_path: Path) -> None:
    answer = await cropped(
        tmp_path, np.zeros((40, 100, 3), np.uint8), box(10, 10, 30, 20), box(0, 0, 10, 10), margin=0.5
    )
    assert [(part.label, part.x1, part.x2) for part in answer] == [("20x40", 10, 30), ("15x15", 0, 10)]


async def test_of_ten_thousand_boxes_the_best_are_cropped(tmp_path: Path) -> None:
    boxes = [box(x % 90, 0, x % 90 + 5, 5, score=0.3 + x / 20_000) for x in range(10_000)]
    answer = await cropped(tmp_path, np.zeros((40, 100, 3), np.uint8), *boxes, maxBoxes=5)
    assert [round(part.x1) for part in answer] == [x % 90 for x in range(9995, 10_000)]


async def test_a_detector_whose_boxes_are_the_whole_frame_takes_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halimede.pipeline.crops.CROP_BYTES", 30_000)
    batches: list[int] = []

    class Counted(Sizes):
        def predict(self, batch: Sequence[Array]) -> list[Prediction]:
            batches.append(len(batch))
            return super().predict(batch)

    whole = [box(0, 0, 100, 40)] * 256
    answer = await cropped(tmp_path, np.zeros((40, 100, 3), np.uint8), *whole, small=Counted(), maxBoxes=256)
    assert max(batches) <= 2  # of 12,000 bytes each
    assert [part.label for part in answer] == ["40x100"] * 256


async def test_a_detector_that_gives_no_boxes_is_an_error_that_names_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await cropped(tmp_path, np.zeros((40, 100, 3), np.uint8), finder=Sizes()) == []
    assert "the detector gives no boxes: set spec.postprocess.task of its Model to detection" in capsys.readouterr().out


def test_a_crop_of_whole_rows_does_not_keep_the_picture_in_memory():
    picture = np.zeros((40, 100, 3), np.uint8)
    for corners in [(0, 8, 100, 16), (8, 0, 16, 40)]:
        crop = crop_of(new_frame(picture), 0, picture, corners)
        assert not np.shares_memory(np.frombuffer(crop.data, np.uint8), picture)
