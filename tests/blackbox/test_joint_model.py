"""``JointModel``: one model to its user, in this process or with the workers of a service over a broker."""

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

from halimede import JointModel
from halimede.errors import HalimedeError
from halimede.joint_model import Answer, NoAnswerError
from services.broker import MosquittoProcess
from tests.blackbox.models import EASY, HARD, POISON, Estimator, big, onnx_spec, small, write_desired
from tests.blackbox.world import SERVICE, World
from tests.waiting import eventually, patience, wait_for

RULE: dict[str, Any] = {"parameters": {"threshold_margin": 0.2}}
ALONE: dict[str, Any] = {"mining": "EdgeOnly"}


def picture(value: int) -> np.ndarray:
    return np.full((4, 4), value, np.uint8)


@pytest.fixture(params=["estimators", "ONNX"])
def model(request: pytest.FixtureRequest, onnx_file: Path) -> Iterator[JointModel]:
    """Return a small and a big model, in this process."""
    if request.param == "estimators":
        made = JointModel(small(), big(), **RULE)
    else:
        spec = onnx_spec("small", "other")
        form = {name: spec[name] for name in ("labels", "preprocess", "postprocess")}
        made = JointModel(onnx_file, onnx_file, **RULE, **form)
    with made:
        yield made


def test_easy_samples_are_the_small_models_and_hard_ones_the_big_ones(model: JointModel) -> None:
    easy, hard = model.predict(picture(EASY)), model.predict(picture(HARD))
    assert (easy.label, easy.by, easy.tier, easy.hard, easy.degraded, easy.reason) == (
        "small", "edge", "edge", False, False, "easy",
    )  # fmt: skip
    assert (hard.by, hard.tier, hard.hard, hard.degraded, hard.reason) == ("cloud", "cloud", True, False, "hard")
    assert hard.edge is not None
    assert hard.edge.label == "small"
    assert hard.ms >= hard.offload_ms > 0
    assert easy.id != hard.id


def test_many_threads_and_a_loop_get_each_their_own_answers(model: JointModel) -> None:
    values = [(EASY, HARD)[number % 2] for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda value: model.predict(picture(value)), values))

    async def in_a_loop() -> list[Any]:
        return await asyncio.gather(*(model.apredict(picture(value)) for value in values))

    for found in (answers, asyncio.run(in_a_loop()), model.predict_batch([picture(value) for value in values])):
        assert [answer.by for answer in found] == ["edge" if value == EASY else "cloud" for value in values]
        assert not any(answer.degraded for answer in found)
        assert len({answer.id for answer in found}) == len(values)


def test_tiers_between_are_asked_in_turn() -> None:
    gate = Estimator("gate", sure_below=200)
    with JointModel(small(), big(), tiers=[gate], **RULE) as model:
        answers = model.predict_batch([picture(EASY), picture(HARD), picture(230)])
    assert [(answer.by, answer.label) for answer in answers] == [("edge", "small"), ("cloud", "gate"), ("cloud", "big")]


def test_what_the_small_model_fails_on_is_the_big_ones_and_the_error_is_told_where_both_fail() -> None:
    with JointModel(small(fails_at={POISON, 99}), big(fails_at={99}), **RULE) as model:
        saved = model.predict(picture(POISON))
        assert (saved.by, saved.label, saved.edge) == ("cloud", "big", None)
        fine, failed, last = model.predict_batch([picture(EASY), picture(99), picture(HARD)], return_errors=True)
        assert isinstance(failed, NoAnswerError)
        assert "this picture breaks the model" in str(failed)
        assert [getattr(answer, "by", "") for answer in (fine, last)] == ["edge", "cloud"]
        with pytest.raises(NoAnswerError):
            model.predict(picture(99))


def test_each_of_two_samples_that_fail_together_is_told_its_own_error() -> None:
    with JointModel(small(fails_at={POISON, 99}), **ALONE) as model:
        first, second = model.predict_batch([picture(99), picture(POISON)], return_errors=True)
    assert str(first).endswith("this picture breaks the model: 99")
    assert str(second).endswith(f"this picture breaks the model: {POISON}")


def test_a_call_ends_at_its_timeout_and_others_go_on() -> None:
    held = small()
    with JointModel(held, **ALONE) as model:
        model.predict(picture(EASY))
        with held.held():
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                model.predict(picture(EASY), timeout_s=0.2)
            assert 0.15 < time.monotonic() - began < 5
        assert model.predict(picture(EASY)).by == "edge"


def test_a_big_model_that_takes_too_long_is_not_waited_for() -> None:
    slow = big()
    with JointModel(small(), slow, deadline_ms=2000, **RULE) as model:
        assert model.predict(picture(HARD)).by == "cloud"
        with slow.held():
            answer = model.predict(picture(HARD))
        assert (answer.by, answer.degraded, answer.reason, answer.label) == ("edge", True, "deadline", "small")
        assert answer.detail
        assert answer.ms < 10_000  # the big model is held for longer


def test_what_is_under_way_is_answered_before_it_closes() -> None:
    held = small()
    entered: list[int] = []
    model = JointModel(held, **ALONE).open()
    model.predict(picture(EASY))

    def ask(number: int) -> Answer:
        entered.append(number)
        return model.predict(picture(EASY))

    with ThreadPoolExecutor(6) as pool:
        with held.held():
            asked = [pool.submit(ask, number) for number in range(5)]
            wait_for(lambda: len(held.calls) >= 2 and len(entered) >= 5)
            time.sleep(1)  # the last one has begun, and is on its way in
            closing = threading.Thread(target=model.close)
            closing.start()
            time.sleep(0.1)
            assert closing.is_alive()
        assert [future.result(patience(20)).label for future in asked] == ["small"] * 5
        closing.join(20)
    with pytest.raises(HalimedeError, match="this JointModel is closed"):
        model.predict(picture(EASY))


def test_audits_change_no_answer() -> None:
    cloud = big()
    with JointModel(small(), cloud, audit_share=1.0, **ALONE) as model:
        answers = model.predict_batch([picture(EASY)] * 5)
        assert {(answer.by, answer.label, answer.audit, answer.hard) for answer in answers} == {
            ("edge", "small", True, False)
        }
        wait_for(lambda: cloud.calls)


def test_a_budget_keeps_samples_at_the_small_model() -> None:
    with JointModel(small(), big(), mining="CloudOnly", target_upload_ratio=0.25) as model:
        answers = [model.predict(picture(EASY)) for _ in range(60)]
    up = [answer for answer in answers if answer.by == "cloud"]
    assert 5 <= len(up) <= 25
    assert {answer.reason for answer in answers if answer.by == "edge"} == {"budget"}


@pytest.mark.parametrize("broker", ["mosquitto"], indirect=True)
async def test_with_a_broker_the_workers_of_a_service_are_asked(
    world: World, mosquitto: MosquittoProcess, onnx_file: Path
) -> None:
    file = world.folder / "big.json"
    write_desired(file, onnx_file, "v1", spec=onnx_spec("big", "other"))
    options: dict[str, Any] = {"namespace": world.namespace, "broker": mosquitto.url, "deadline_ms": 10_000, **RULE}
    async with JointModel.connect(SERVICE, edge=small(), **options) as model:
        first, second = await model.apredict(picture(HARD)), await model.apredict(picture(HARD))
        assert {(answer.by, answer.degraded) for answer in (first, second)} == {("edge", True)}
        assert (first.reason, second.reason) == ("no-cloud", "circuit-open")
        async with world.worker("cloud", "c0", MODEL_FILE=str(file), MODEL_SPEC=""):

            async def asked() -> bool:
                return (await model.apredict(picture(HARD))).by == "cloud"

            await eventually(asked)
            answers = await model.apredict_batch([picture(value) for value in (EASY, HARD) * 20])
            assert [answer.by for answer in answers] == ["edge", "cloud"] * 20
            assert {(a.worker, a.model, a.label) for a in answers if a.by == "cloud"} == {("c0", "v1", "big")}
        await eventually(lambda: "c0" not in world.loads)
        answer = await model.apredict(picture(HARD))
        assert (answer.by, answer.degraded) == ("edge", True)
        assert answer.reason in {"no-cloud", "circuit-open"}
    assert not world.results
    with pytest.raises(HalimedeError, match="closed"):
        await model.apredict(picture(EASY))
