"""A worker with a detector: the crops of what it finds are samples, and a frame has one result of all its crops."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import asdict

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
from halimede.pipeline.crops import (
    CropAnswer,
    CropDetector,
    CropIntake,
    CropOutbox,
    FrameResponder,
    combine_answers,
    combine_results,
    crop_of,
)
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
from tests.simulated import eventually
from tests.unit.worker.world import BREAKS_BOTH, BREAKS_SMALL, EASY, HARD, NS, Big, World, world

pytestmark = pytest.mark.simulated

PAGE = np.zeros((40, 100, 3), np.uint8)
#: the values of ``world`` begin at 10: a pixel above 5 is a part of a thing
DETECTION = {"task": "detection", "boxes": {"decode": "db", "threshold": 0.02, "unclip": 0.0}}


@pytest.fixture(autouse=True)
def _no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open the detector without a trial in a child process, whose time is not simulated."""

    async def passes(*_: object) -> None:
        return

    monkeypatch.setattr("halimede.worker.model_reload._require_trial", passes)


def detector(folder: Path, **boxes: Any) -> DetectorSettings:
    """Return a detector of all that is not black: its map of probabilities is the picture itself."""
    size: list[Any] = ["n", 1, "h", "w"]
    ports = {"x": (FLOAT, size)}, {"y": (FLOAT, size)}
    path = write_graph(folder / "map.onnx", [("Identity", ["x"], ["y"], {})], *ports)
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
    return await w.show(new_frame(page(values), **options))


def labels(prediction: Prediction | None) -> list[int | str]:
    return [box.label for box in prediction.boxes or ()]


async def test_only_hard_crops_go_up_and_the_frame_has_one_result_of_all(w: World) -> None:
    async with w.worker("cloud", "c0"), w.worker("edge", "e0", detector=detector(w.folder)):
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


class Refusing(Big):
    """Fails on pictures of a few values."""

    def predict(self, data: Any) -> dict[str, Any]:
        if int(np.asarray(data).flat[0]) in range(HARD + 2, HARD + 5):
            raise RuntimeError("too plain for the big model")
        return super().predict(data)


ANSWERED: dict[str, tuple[list[int], list[str], Any, dict[str, Any], dict[str, int]]] = {
    "no box: answered empty, and one sample": (
        [], [], None, {"by": "edge", "hard": False, "degraded": False},
        {"inference_number": 1, "hard_example_number": 0, "lost": 0},
    ),
    "no cloud: all are the edge's": (
        [EASY, HARD, HARD], ["small"] * 3, None, {"by": "edge", "hard": True, "degraded": True, "reason": "no-cloud"},
        {"inference_number": 3, "degraded": 2, "hard_example_number": 2},
    ),
    "the cloud fails: the small model's answer stays": (
        [EASY, HARD, HARD + 3], ["small", "big", "small"], Refusing,
        {"by": "cloud", "degraded": True, "reason": "error"},
        {"inference_number": 3, "degraded": 1, "cloud_inference_number": 1},
    ),
    "the small model fails: up, and a box without any answer stays": (
        [EASY, BREAKS_SMALL, BREAKS_BOTH], ["small", "big", "thing"], Big,
        {"by": "cloud", "degraded": True, "reason": "error"}, {"inference_number": 3, "model_errors": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("values", "answers", "cloud", "fields", "counts"), ANSWERED.values(), ids=ANSWERED)
async def test_a_crop_has_the_best_answer_that_there_is_and_counts_as_a_sample(
    w: World, *, values: list[int], answers: list[str], cloud: Any, fields: Any, counts: Any
) -> None:
    cloud_worker = w.worker("cloud", "c0", cloud) if cloud else contextlib.nullcontext()
    async with cloud_worker, w.worker("edge", "e0", detector=detector(w.folder)):
        result = await w.answer(await show(w, values))
        assert [box.label for box in result.prediction.boxes] == answers
        assert {name: getattr(result, name) for name in fields} == fields
        await eventually(lambda: counts.items() <= asdict(w.info("e0")).items(), shown=lambda: w.info("e0"))


async def test_a_deadline_in_the_middle_of_a_frame_leaves_the_small_models_answers(w: World) -> None:
    async with w.worker("edge", "e0", detector=detector(w.folder), deadline_s=3.0):
        requests = await w.silent_cloud()
        result = await w.answer(await show(w, [EASY, HARD, HARD]))
        assert labels(result.prediction) == ["small"] * 3
        assert (result.by, result.degraded, result.reason) == ("edge", True, "deadline")
        assert result.total_ms == pytest.approx(3000, abs=500)
        assert len(requests) == 2


async def test_a_detector_that_fails_on_a_frame_is_a_model_failure(w: World) -> None:
    async with w.worker("edge", "e0", detector=detector(w.folder)):
        frame = new_frame(np.full((4, 4, 3), 700.0, np.float32))  # values that are no probabilities
        result = await w.answer(await w.show(frame))
        assert (result.by, result.degraded, result.reason, result.prediction) == ("edge", True, "error", Prediction())
        assert labels((await w.answer(await show(w, [EASY]))).prediction) == ["small"]
        await eventually(lambda: w.info("e0").inference_number == 2)
        assert w.info("e0").lost == 0


async def test_a_worker_that_is_killed_with_crops_in_the_cloud_has_its_frame_answered_once(tmp_path: Path) -> None:
    broker = MemoryBroker()
    async with world(tmp_path, broker) as w:
        await w.silent_cloud()
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


async def test_a_worker_that_stops_answers_the_crops_that_the_cloud_has(w: World) -> None:
    async with w.worker("edge", "e0", detector=detector(w.folder), deadline_s=600.0, grace_s=3.0) as stop:
        await w.silent_cloud()
        sent = await show(w, [EASY] + [HARD] * 99)
        await asyncio.sleep(1)
        stop.set()
        result = await w.answer(sent)
        assert (result.degraded, result.reason, labels(result.prediction)) == (True, "deadline", ["small"] * 100)
    assert w.status("e0") == "completed"
    assert (w.info("e0").inference_number, w.info("e0").lost) == (100, 0)


async def test_audits_are_of_crops(w: World) -> None:
    async with w.worker("cloud", "c0"), w.worker("edge", "e0", audit_share=1.0, detector=detector(w.folder)):
        result = await w.answer(await show(w, [EASY] * 5))
        assert (result.by, result.audit, labels(result.prediction)) == ("edge", True, ["small"] * 5)
        await eventually(lambda: w.info("e0").audited == 5)


async def test_the_trace_of_a_frame_counts_its_crops(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[Any, ...]] = []
    finish = TraceBuffer.finish
    monkeypatch.setattr(TraceBuffer, "finish", lambda self, record: (steps.extend(record.steps), finish(self, record)))
    async with w.worker("cloud", "c0"), w.worker("edge", "e0", detector=detector(w.folder)):
        await w.answer(await show(w, [EASY, HARD, HARD]))
        await eventually(lambda: w.info("e0").inference_number == 3)
    assert [step[3:] for step in steps if step[0] is CROPS] == [(3, 2, 2)]


async def test_hard_samples_that_are_kept_are_crops(tmp_path: Path) -> None:
    options: dict[str, Any] = {"keep": KeepHardSamples(max_samples=10), "detector": detector(tmp_path)}
    async with world(tmp_path) as w, w.worker("cloud", "c0"), w.worker("edge", "e0", **options):
        await w.answer(await show(w, [EASY, HARD, HARD]))
    store = HardSampleStore(tmp_path / "e0" / FOLDER, 10**8, 10)
    stored = store.page(KeptRequest()).entries
    assert [(sample.label, sample.edge_label, sample.by) for sample in stored] == [("big", "small", "cloud")] * 2


async def test_a_model_whose_crops_have_no_label_is_refused(w: World, tmp_path: Path) -> None:
    spec = convert({"url": "/none", "format": "python", "postprocess": {"task": "embedding"}}, ModelSpec, "spec")
    with pytest.raises(WorkerError, match="use a model of task classification or text"):
        async with w.worker("edge", "e0", detector=detector(tmp_path), model=spec):
            pass
    assert w.status("e0") == "failed"


async def test_the_best_boxes_are_cropped_and_ids_of_crops_differ(w: World) -> None:
    async with w.worker("edge", "e0", detector=detector(w.folder, maxBoxes=3), deadline_s=1.0):
        requests = await w.silent_cloud()
        result = await w.answer(await show(w, [HARD, HARD + 9, HARD + 6, HARD + 3]))
        assert [box.x1 for box in result.prediction.boxes or ()] == [12, 22, 32]
    assert len({request.id for request in requests}) == 3


async def test_the_picture_of_a_frame_is_released_while_its_crops_wait_for_the_cloud(
    w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures: list[weakref.ref[np.ndarray]] = []

    def watched(frame: Frame) -> np.ndarray:
        picture = decode(frame)
        pictures.append(weakref.ref(picture))
        return picture

    monkeypatch.setattr("halimede.pipeline.crops.decode", watched)
    async with w.worker("edge", "e0", detector=detector(w.folder), deadline_s=60.0, grace_s=0.5):
        requests = await w.silent_cloud()
        await show(w, [HARD, HARD], encoding="png")
        await eventually(lambda: len(requests) == 2)
        assert not w.results
        # the thread that decoded it lets it go a moment later
        await eventually(lambda: [picture() is None for picture in pictures] == [True])


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
    *boxes: Box,
    picture: np.ndarray = PAGE,
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
            frames = FrameResponder(crops, result_outbox(bus), TraceBuffer(), "classification", sizes=False)
            found_by = ModelSlot(LoadedModel(finder or Finder(*boxes), finding))
            cropping = CropDetector(found_by, spec, "classification", crops, outbox)
            slot = ModelSlot(LoadedModel(small or Sizes(), thread))
            worker = EdgeWorker(slot, frames, ledger, thread, detector=cropping)
            running = asyncio.create_task(worker.run())
            await asyncio.sleep(0)
            await worker.intake.offer(pack(new_frame(picture)), "cam0")
            await eventually(lambda: bool(answers))
            assert ledger.open == 0
            for pipeline in (worker.frames, worker.pipeline):
                assert (pipeline.inside, pipeline.delegated, pipeline.preparing) == (0, 0, 0)
            running.cancel()
            await asyncio.wait([running])
    return answers[0].prediction.boxes or []


def box(x1: float, y1: float, x2: float, y2: float, score: float = 0.9) -> Box:
    return Box(x1, y1, x2, y2, score, "thing")


@pytest.mark.parametrize(
    ("boxes", "limits", "crops"),
    [
        ([(-5, -5, 10, 8), (90, 30, 500, 500), (1e30, 0, 1e31, 9)], {}, [("8x10", -5, 10), ("10x10", 90, 500)]),
        ([(0, 0, 9, 9, 0.49), (0, 0, 4, 4, 0.5)], {"minScore": 0.5}, [("4x4", 0, 4)]),
        (
            [(5, 5, 5, 5), (5, 5, 9, 5), (5, 5, 6, 6), (9, 8, 7, 6)],
            {"picture": PAGE[..., 0]},
            [("1x1", 5, 6), ("2x2", 9, 7)],
        ),
        ([(10, 10, 30, 20), (0, 0, 10, 10), (-9, 0, -1, 9)], {"margin": 0.5}, [("20x40", 10, 30), ("15x15", 0, 10)]),
    ],
    ids=[
        "over the edge: cut, and outside: dropped",
        "unsure: dropped",
        "without an area: dropped, one pixel: cropped, in grey",
        "a margin is added on each side within the frame",
    ],
)
async def test_boxes_are_cropped_as_far_as_they_are_in_the_frame(
    tmp_path: Path, boxes: list[Any], limits: dict[str, Any], crops: list[tuple[str, float, float]]
) -> None:
    answer = await cropped(tmp_path, *[box(*corners) for corners in boxes], **limits)
    assert [(part.label, part.x1, part.x2) for part in answer] == crops


@pytest.mark.parametrize(
    ("picture", "outside"),
    [(np.zeros((40, 100), np.uint8), box(1e30, 0, 1e31, 9)), (np.zeros(400, np.uint8), box(0, 0, 9, 9))],
)
async def test_a_frame_without_anything_to_crop_is_answered_empty(
    tmp_path: Path, picture: np.ndarray, outside: Box
) -> None:
    assert await cropped(tmp_path, outside, picture=picture) == []


def test_the_result_of_a_frame_is_that_of_all_crops() -> None:
    def crop(number: int, **fields: Any) -> CropAnswer:
        prediction = Prediction(label=f"label{number}", score=number / 10)
        values = {"by": "edge", "prediction": prediction, "worker": "e0", "model": "v1", "tier": "edge", **fields}
        return CropAnswer(box(number, 0, number + 1, 1), Result(id=str(number), service="s", **values), lambda _: None)

    frame = Result(id="f", service="s", by="edge", prediction=Prediction(), worker="e0", edge_ms=10.0, camera="cam0")
    easy = crop(1, hardness=0.2, cut=0.5, edge_ms=3.0)
    medium = crop(2, hard=True, hardness=0.7, cut=0.6, edge_ms=5.0, reason="audited", worker="e9")
    alone = combine_results(frame, [easy, medium], "classification")
    assert [part.label for part in alone.prediction.boxes or ()] == ["label1", "label2"]
    assert (alone.by, alone.worker, alone.model, alone.edge, alone.camera) == ("edge", "e0", "v1", None, "cam0")
    flags = (alone.hard, alone.degraded, alone.reason, alone.audit, alone.mixed)
    assert flags == (True, False, "audited", False, False)
    assert (alone.hardness, alone.cut, alone.edge_ms, alone.offload_ms) == (0.7, 0.6, 15.0, 0.0)
    cloud = crop(
        3, by="cloud", hard=True, worker="c0", model="v9", tier="cloud", edge=Prediction(label="small"),
        offload_ms=40.0, audit=True, mixed=True,
    )  # fmt: skip
    late = crop(4, hard=True, degraded=True, reason="deadline", hardness=-1.0, offload_ms=7.0)
    whole = combine_results(frame, [easy, medium, cloud, late], "classification")
    assert [part.label for part in whole.edge.boxes or ()] == ["label1", "label2", "small", "label4"]  # type: ignore[union-attr]
    assert (whole.by, whole.worker, whole.model, whole.tier) == ("cloud", "c0", "v9", "cloud")
    assert (whole.degraded, whole.reason, whole.audit, whole.mixed) == (True, "deadline", True, True)
    assert (whole.hardness, whole.offload_ms) == (0.7, 40.0)


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
    answer = await cropped(tmp_path, *whole, small=Counted(), maxBoxes=256)
    assert max(batches) <= 2  # of 12,000 bytes each
    assert [part.label for part in answer] == ["40x100"] * 256


async def test_a_detector_that_gives_no_boxes_is_an_error_that_names_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await cropped(tmp_path, finder=Sizes()) == []
    assert "the detector gives no boxes: set spec.postprocess.task of its Model to detection" in capsys.readouterr().out


def test_a_crop_of_whole_rows_does_not_keep_the_picture_in_memory():
    for corners in [(0, 8, 100, 16), (8, 0, 16, 40)]:
        crop = crop_of(new_frame(PAGE), 0, PAGE, corners)
        assert not np.shares_memory(np.frombuffer(crop.data, np.uint8), PAGE)


async def test_64_crops_of_64_mebibytes_may_be_without_an_answer() -> None:
    def crop(number: int, mebibytes: float) -> Any:
        nbytes = int(mebibytes * 1024 * 1024)
        return SimpleNamespace(id=number.to_bytes(2), data=SimpleNamespace(nbytes=nbytes))

    async with asyncio.timeout(1):
        intake = CropIntake(cast("Any", None), cast("Any", None), None)
        admitted = [await intake.admit(crop(number, 1), 0.0) for number in range(64)]
        waiting = asyncio.create_task(intake.admit(crop(64, 0), 0.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        for sample in admitted:
            intake.leave(sample)
        intake.leave(await waiting)
        first = await intake.admit(crop(0, 40), 0.0)
        await intake.admit(crop(1, 24), 0.0)
        waiting = asyncio.create_task(intake.admit(crop(2, 2**-20), 0.0))
        await asyncio.sleep(0)
        assert not waiting.done()
        intake.leave(first)
        await waiting


async def test_a_crop_is_a_sample_that_is_never_too_late_and_runs_with_the_others_of_its_frame() -> None:
    body = crop_of(new_frame(np.zeros((4, 4), np.uint8)), 7, np.zeros((4, 4), np.uint8), (0, 0, 2, 2))
    for escalation, is_mined in ((None, False), (cast("Any", SimpleNamespace()), True)):
        intake = CropIntake(cast("Any", None), cast("Any", None), escalation)
        sample = await intake.admit(body, 9.0)
        assert (sample.mined, sample.size, sample.pixels, sample.until) == (is_mined, 4, 4, 9.0)
    outbox = CropOutbox()
    assert (outbox.immediate, outbox.waiting, await outbox.drain(0)) == (True, 0, True)


def test_the_id_of_a_crop_follows_from_its_frame_and_its_number() -> None:
    picture = np.zeros((4, 4), np.uint8)
    frame = new_frame(picture)
    frame.id = bytes(16)
    ids = [crop_of(frame, number, picture, (0, 0, 1, 1)).id for number in (0, 1, 258)]
    assert ids == [
        hashlib.blake2b(bytes(16) + number, digest_size=16).digest() for number in (b"\0\0", b"\0\1", b"\1\2")
    ]


@pytest.mark.parametrize("task", ["text", "classification"])
def test_each_box_has_an_answer(task: Any) -> None:
    with pytest.raises(ValueError, match=r"zip\(\)"):
        combine_answers([box(0, 0, 1, 1)], [], task)
    unsure = combine_answers([box(0, 0, 1, 1)], [Prediction(label="a")], task)
    assert [part.score for part in unsure.boxes or ()] == ([] if task == "text" else [0.9])


async def test_a_budget_counts_crops(w: World) -> None:
    async with w.worker("cloud", "c0"), w.worker("edge", "e0", target_upload_ratio=0.2, detector=detector(w.folder)):
        for number in range(30):
            await w.answer(await show(w, [HARD if (number + at) % 2 else EASY for at in range(10)]))
        await eventually(lambda: w.info("e0").inference_number == 300)
        info = w.info("e0")
        assert info.upload_cloud_ratio == pytest.approx(0.2, abs=0.05)
        assert info.withheld + info.cloud_inference_number == info.hard_example_number
        assert info.degraded == 0
        held_back = [result for result in w.results.values() if result.by == "edge"]
        assert {(result.degraded, result.reason) for result in held_back} <= {(False, "budget"), (False, "")}
