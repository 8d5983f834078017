"""One model to its user, wherever he is: a script, an event loop, a web handler, several threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from halimede import JointModel
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.inference import Array
from halimede.joint_model import NoAnswerError, Rule, Tier
from tests import lite_files
from tests.digits import picture as png
from tests.graphs import write_weigher
from tests.programs import run_python
from tests.unit.worker.world import BREAKS_BOTH, BREAKS_SMALL, EASY, HARD, Big, Small
from tests.waiting import eventually, patience, wait_for

EDGE_ALONE: dict[str, Any] = {"mining": "EdgeOnly"}
MARGIN: dict[str, Any] = {"parameters": {"threshold_margin": 0.2}}


class Slow:
    def predict(self, data: Any) -> str:
        time.sleep(0.2)
        return "slow"


class Held:
    """Answers once its gate is open."""

    def __init__(self) -> None:
        self.asked, self.gate = threading.Event(), threading.Event()

    def predict(self, data: Any) -> str:
        self.asked.set()
        assert self.gate.wait(patience(20))
        return "held"


def picture(value: int) -> Array:
    return np.full((4, 4), value, np.uint8)


@pytest.fixture(scope="module")
def model() -> Iterator[JointModel]:
    with JointModel(Small, Big, **MARGIN) as made:
        yield made


def test_easy_samples_are_the_small_models_and_hard_ones_the_big_ones(model: JointModel) -> None:
    easy = model.predict(picture(EASY))
    assert (easy.label, easy.by, easy.tier, easy.hard, easy.degraded) == ("small", "edge", "edge", False, False)
    assert (easy.score, easy.probabilities, easy.reason) == (0.9, [0.9, 0.1], "easy")
    hard = model.predict(picture(HARD))
    assert (hard.label, hard.by, hard.hard, hard.degraded, hard.reason, hard.detail) == (
        "big", "cloud", True, False, "hard", "the mining rule found it hard",
    )  # fmt: skip
    assert hard.edge.label == "small"
    assert hard.hardness is not None
    assert hard.cut is not None
    assert hard.hardness >= hard.cut > (easy.hardness or 0)
    assert hard.ms >= hard.offload_ms > 0


def test_a_script_next_to_an_onnx_file_is_a_step_and_reads_the_outputs(tmp_path: Path) -> None:
    write_weigher(tmp_path / "small.onnx", 4)
    code = "def preprocess(image):\n    return image[:2, :2].reshape(4).astype('float32') / 255\n"
    code += "def postprocess(outputs, size):\n    return f'{size[0]} high'\n"
    (tmp_path / "both.py").write_text(code)
    step, reader = {"op": "script", "file": "both.py"}, {"script": {"file": "both.py"}}
    edge = Tier(model=tmp_path / "small.onnx", preprocess=[step], postprocess=reader, rule=Rule(mining="EdgeOnly"))
    with JointModel(edge, Big) as made:
        assert made.predict(picture(255)).label == "4 high"


def test_a_lite_file_is_a_model_like_an_onnx_file(tmp_path: Path) -> None:
    file = lite_files.write_weigher(tmp_path / "small.tflite")
    steps = [{"op": "scale", "factor": 1 / 255}, {"op": "layout", "order": "flat"}]
    with JointModel(file, Big, **EDGE_ALONE, labels=["dark", "bright"], preprocess=steps) as made:
        assert [made.predict(np.full((2, 2), value, np.uint8)).label for value in (5, 250)] == ["dark", "bright"]
    with pytest.raises(InvalidFieldError, match=r"no such file: give the path of an ONNX file, a \.tflite file"):
        JointModel(tmp_path, Big)


def test_all_forms_of_a_picture_are_the_same_sample(model: JointModel, tmp_path: Path) -> None:
    (tmp_path / "p.png").write_bytes(data := png(HARD, 4))
    image = Image.open(tmp_path / "p.png")
    forms: list[Any] = [image, tmp_path / "p.png", str(tmp_path / "p.png"), data, memoryview(data), image.convert("P")]
    assert [answer.by for answer in model.predict_batch(forms)] == ["cloud"] * len(forms)
    assert model.predict([0.5, 1.5]).by == "edge"


@pytest.mark.parametrize(
    ("sample", "what"),
    [
        (b"neither", r"x: '7 bytes' is not accepted: .*neither a JPEG"),
        ("nowhere.png", r"x: 'nowhere.png' is not accepted: it cannot be read: No such file"),
        (object(), r"give a NumPy array, a Pillow image"),
        (np.zeros((2, 0)), r"give a NumPy array, a Pillow image"),
        (np.zeros(3 * 2**20), r"over 16 MiB"),
        (np.zeros((1, 1, 1, 1, 1)), r"give a NumPy array"),
        (np.broadcast_to(np.uint8(0), (60_000,) * 3), r"over 16 MiB"),
        (np.zeros(70_000, np.uint8), r"x: 'uint8 \(70000,\)' .*axes of at most 65535"),
        (np.zeros(4, np.longdouble), r"x: .*make it one of uint8"),
        ("a\0b", r"it cannot be read: .*embedded null"),
        ("/dev/zero", r"it is no file"),
    ],
)
def test_what_is_no_sample_is_refused_by_its_name(model: JointModel, sample: Any, what: str) -> None:
    with pytest.raises(InvalidFieldError, match=what):
        model.predict(sample)


def test_one_bad_sample_costs_the_others_nothing(model: JointModel) -> None:
    samples: list[Any] = [picture(EASY), b"neither", picture(BREAKS_BOTH), picture(BREAKS_SMALL)]
    fine, refused, failed, saved = model.predict_batch(samples, return_errors=True)
    assert not isinstance(fine, Exception)
    assert fine.by == "edge"
    assert isinstance(refused, InvalidFieldError)
    assert refused.field == "xs[1]"
    assert isinstance(failed, NoAnswerError)
    assert "too bright for the small model" in str(failed)
    assert "too bright for the big model" in str(failed)
    assert not isinstance(saved, Exception)
    assert (saved.label, saved.by, saved.edge) == ("big", "cloud", None)
    with pytest.raises(InvalidFieldError, match=r"xs\[1\]"):
        model.predict_batch(samples)


async def test_event_loops_are_not_held_up(model: JointModel) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    ticking = asyncio.create_task(tick())
    answers = await model.apredict_batch([picture(HARD)] * 40)
    assert {answer.by for answer in answers} == {"cloud"}
    assert (await model.apredict(picture(EASY))).by == "edge"
    errors = await model.apredict_batch([b"neither", picture(EASY)], return_errors=True)
    assert isinstance(errors[0], InvalidFieldError)
    assert ticks
    ticking.cancel()
    # as in a notebook's cell: a loop runs in this thread, and the plain call works all the same
    assert model.predict(picture(HARD)).by == "cloud"


async def test_a_caller_that_goes_leaves_nothing_behind() -> None:
    blocked = Held()
    async with JointModel(blocked, **EDGE_ALONE) as model:
        task = asyncio.create_task(model.apredict(picture(1)))
        await eventually(blocked.asked.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            await model.apredict(picture(1), timeout_s=0.01)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(model.predict, picture(1), timeout_s=0.01)
        blocked.gate.set()
        assert (await model.apredict(picture(1))).label == "held"


def test_an_edge_alone_asks_nobody() -> None:
    with JointModel(Small) as model:
        answer = model.predict(picture(HARD))
        assert (answer.by, answer.degraded, answer.label) == ("edge", False, "small")


def test_a_big_model_that_takes_too_long_leaves_the_small_ones_answer() -> None:
    blocked = Held()
    with JointModel(Small, blocked, **MARGIN, deadline_ms=50) as model:
        answer = model.predict(picture(HARD))
        blocked.gate.set()
        assert (answer.label, answer.by, answer.degraded, answer.reason) == ("small", "edge", True, "deadline")
        assert answer.detail


class Middle:
    def predict(self, data: Any) -> dict[str, Any]:
        sure = int(np.asarray(data).flat[0]) == HARD
        return {"label": "middle", "probabilities": [0.95, 0.05] if sure else [0.5, 0.5]}


@pytest.mark.parametrize(
    ("middle", "tier"), [(Tier(model=Middle, name="site", rule=Rule(**MARGIN)), "site"), (Middle, "tier1")]
)
def test_a_chain_of_tiers_asks_one_after_the_other(middle: Any, tier: str) -> None:
    with JointModel(Small, Big, tiers=[middle], **MARGIN) as model:
        answers = model.predict_batch([picture(EASY), picture(HARD), picture(HARD + 10)])
    assert [(answer.label, answer.by, answer.tier) for answer in answers] == [
        ("small", "edge", "edge"), ("middle", "cloud", tier), ("big", "cloud", "cloud"),
    ]  # fmt: skip


def test_a_budget_is_held() -> None:
    with JointModel(Small, Big, **MARGIN, target_upload_ratio=0.1) as model:
        answers = model.predict_batch([picture(HARD)] * 400)
    asked = sum(answer.by == "cloud" for answer in answers) / 400
    assert asked <= 0.15
    assert {answer.by for answer in answers} == {"edge", "cloud"}
    held_back = [answer for answer in answers if answer.by == "edge"]  # all are equally hard
    assert {(answer.hard, answer.reason, answer.degraded) for answer in held_back} == {(True, "budget", False)}
    assert {answer.detail for answer in held_back} == {"the upload budget is spent"}


def test_a_fitted_classifier_of_scikit_learn_is_a_model() -> None:
    class Fitted:
        classes_ = np.array([3, 8])

        def get_params(self) -> dict[str, Any]:
            return {}

        def predict_proba(self, rows: Array) -> Array:
            assert rows.ndim == 2
            return np.array([[0.8, 0.2] if row[0] < 100 else [0.45, 0.55] for row in rows])

    class Labels(Fitted):
        predict_proba = None  # type: ignore[assignment]

        def __getattribute__(self, name: str) -> Any:
            if name == "predict_proba":
                raise AttributeError(name)
            return super().__getattribute__(name)

        def predict(self, rows: Array) -> Array:
            return np.array([8] * len(rows))

    with JointModel(Fitted(), Labels(), **MARGIN) as model:
        easy, hard = model.predict_batch([np.array([1.0, 2.0]), np.array([200.0, 2.0])])
    assert (easy.label, easy.score, easy.by) == ("3", 0.8, "edge")
    assert (hard.label, hard.score, hard.by) == ("8", None, "cloud")


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (lambda: JointModel("nowhere.onnx", Big), r"edge: .*there is no such file"),
        (lambda: JointModel(Small, 3), r"cloud: 3 is not accepted: give the path of an ONNX file"),
        (lambda: JointModel(Small, tiers=[Small]), r"cloud: None is not accepted: name the last tier"),
        (lambda: JointModel(Small, Big, target_upload_ratio=2), r"edge.targetUploadRatio"),
        (lambda: JointModel(Small, Big, fusion="mixture"), r"edge.fusion"),
        (lambda: JointModel(Small, Big, calibration="nowhere.json"), r"edge.calibration: .*no such file"),
        (lambda: JointModel(Small, Big, deadline_ms=0), r"deadline_ms: 0 is not accepted"),
        (lambda: JointModel(Small, Big, timeout_s=0), r"timeout_s: 0 is not accepted"),
        (lambda: JointModel(Small, Big, preprocess=[{"op": "fly"}]), r"edge.preprocess"),
        (lambda: JointModel(Small, Big, tiers=[Tier(model=Small, name="cloud")]), r"tiers\[0\].name"),
        (lambda: JointModel(Small, Big, mining="Nonsense"), r"^edge.hardExampleMining.name: 'Nonsense'"),
        (lambda: JointModel(Small, Big, parameters={"threshold_margin": "much"}), r"^edge.*threshold_margin: 'much'"),
        (lambda: JointModel(Small, Big, tiers="a.onnx"), r"tiers: 'a.onnx' is not accepted: give a list"),
        (lambda: JointModel(Small, Big, deadline_ms="soon"), r"deadline_ms: 'soon' is not accepted"),  # type: ignore[arg-type]
        (lambda: JointModel.from_file("nowhere.yaml"), r"^manifest: 'nowhere.yaml'"),
        (lambda: JointModel.connect("digits"), r"edge: None is not accepted: give the small model, or a manifest"),
        (lambda: JointModel.connect("Digits!", edge=Small), r"service: 'Digits!'"),
        (lambda: JointModel.connect("digits", edge=Small, broker="a b"), r"broker: 'a b'"),
    ],
)
def test_a_mistake_names_the_argument(made: Any, what: str) -> None:
    with pytest.raises(InvalidFieldError, match=what):
        made()


def test_a_mistake_that_only_opening_shows_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(HalimedeError, match=r"cloud model: .*is not an ONNX model"):
        JointModel(Small, tmp_path / "bad.onnx").open()


async def test_closing_tells_all_who_wait_and_cancels_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halimede.joint_model.background_loop.GRACE_S", 0.1)
    model = JointModel(Slow, **EDGE_ALONE)
    asked = [asyncio.create_task(model.apredict(picture(1))) for _ in range(80)]
    await asyncio.sleep(0.1)
    await model.aclose()
    said = await asyncio.gather(*asked, return_exceptions=True)
    errors = [each for each in said if isinstance(each, BaseException)]
    assert errors
    assert {str(each) for each in errors} == {"this JointModel is closed: make a new one"}


def test_a_model_that_hangs_does_not_keep_a_script_from_ending() -> None:
    script = """
import time
import halimede.joint_model.background_loop
from halimede import JointModel
halimede.joint_model.background_loop.FINAL_ERRORS_S = 0.1
class Hangs:
    def predict(self, data):
        time.sleep(1000)
try:
    JointModel(Hangs).predict([1.0], timeout_s=0.2)
except TimeoutError:
    print("too long")
"""
    done = run_python("-c", script, check=True)
    assert (done.stdout, done.stderr) == ("too long\n", "")


def test_it_opens_at_the_first_sample_and_never_again_once_closed() -> None:
    model = JointModel(Small, **EDGE_ALONE)
    assert model.predict(picture(EASY)).by == "edge"
    model.close()
    model.close()
    with pytest.raises(HalimedeError, match="this JointModel is closed"):
        model.predict(picture(EASY))


def test_what_is_under_way_is_answered_before_it_closes() -> None:
    before = set(threading.enumerate())
    blocked = Held()
    model = JointModel(blocked, **EDGE_ALONE)
    engine = model._open_engine()
    assert engine._edge
    assert engine._edge._worker
    assert engine._stop
    pipeline, stop = engine._edge._worker.pipeline, engine._stop
    with ThreadPoolExecutor(2) as pool:
        answers = pool.submit(model.predict_batch, [picture(1)] * 3)
        wait_for(lambda: pipeline.inside == 3)
        closing = pool.submit(model.close)
        wait_for(stop.is_set)
        blocked.gate.set()
        assert [answer.label for answer in answers.result()] == ["held"] * 3
        closing.result()
    assert not [t for t in threading.enumerate() if t.name == "joint-model" and t not in before]


def test_a_model_that_is_dropped_ends_its_thread() -> None:
    before = {thread for thread in threading.enumerate() if thread.name == "joint-model"}
    model = JointModel(Small, **EDGE_ALONE).open()
    (ours,) = {thread for thread in threading.enumerate() if thread.name == "joint-model"} - before
    del model
    ours.join(patience(5))
    assert not ours.is_alive()


def test_importing_halimede_stays_light_and_a_script_ends_by_itself() -> None:
    script = """
import sys, halimede
assert not {"numpy", "PIL", "onnxruntime", "halimede.joint_model"} & set(sys.modules)
class Small:
    def predict(self, data):
        return {"label": "a", "probabilities": [1.0, 0.0]}
model = halimede.JointModel(Small, Small)
print(model.predict([1.0]).label)
"""
    done = run_python("-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\n", "")
