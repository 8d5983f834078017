"""``JointModel``: one model to its user, in this process or with the workers of a service over a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede import JointModel
from halimede.errors import HalimedeError
from services.broker import MosquittoProcess
from tests.blackbox.models import EASY, HARD, POISON, big, model_file, onnx_spec, small
from tests.blackbox.world import SERVICE, World
from tests.waiting import eventually, wait_for

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


def test_each_of_two_samples_that_fail_together_is_told_its_own_error() -> None:
    with JointModel(small(fails_at={POISON, 99}), **ALONE) as model:
        first, second = model.predict_batch([picture(99), picture(POISON)], return_errors=True)
    assert str(first).endswith("this picture breaks the model: 99")
    assert str(second).endswith(f"this picture breaks the model: {POISON}")


def test_audits_change_no_answer() -> None:
    cloud = big()
    with JointModel(small(), cloud, audit_share=1.0, **ALONE) as model:
        answers = model.predict_batch([picture(EASY)] * 5)
        assert {(answer.by, answer.label, answer.audit, answer.hard) for answer in answers} == {
            ("edge", "small", True, False)
        }
        wait_for(lambda: cloud.calls)


@pytest.mark.parametrize("broker", ["mosquitto"], indirect=True)
async def test_with_a_broker_the_workers_of_a_service_are_asked(
    world: World, mosquitto: MosquittoProcess, onnx_file: Path
) -> None:
    options: dict[str, Any] = {"namespace": world.namespace, "broker": mosquitto.url, "deadline_ms": 10_000, **RULE}
    async with JointModel.connect(SERVICE, edge=small(), **options) as model:
        first = await model.apredict(picture(HARD))
        assert (first.by, first.degraded, first.reason) == ("edge", True, "no-cloud")

        async def is_refused() -> bool:
            answer = await model.apredict(picture(HARD))
            return (answer.by, answer.degraded, answer.reason) == ("edge", True, "circuit-open")

        await eventually(is_refused)  # the circuit is open for a second, then for longer each time
        async with world.worker("cloud", "c0", **model_file(world.folder, onnx_file, "big")):

            async def asked() -> bool:
                return (await model.apredict(picture(HARD))).by == "cloud"

            await eventually(asked)
            answers = await model.apredict_batch([picture(value) for value in (EASY, HARD) * 20])
            assert [answer.by for answer in answers] == ["edge", "cloud"] * 20
            assert {(a.worker, a.model, a.label) for a in answers if a.by == "cloud"} == {("c0", "v-big", "big")}
        await eventually(lambda: "c0" not in world.loads)
        answer = await model.apredict(picture(HARD))
        assert (answer.by, answer.degraded) == ("edge", True)
        assert answer.reason in {"no-cloud", "circuit-open"}
    assert not world.results
    with pytest.raises(HalimedeError, match="closed"):
        await model.apredict(picture(EASY))
