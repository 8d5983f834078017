"""An edge script and a cloud script over a real broker: who answers what, in what time, and how it is counted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.compat.sedna.common.class_factory import ClassFactory, ClassType
from halimede.compat.sedna.core.joint_inference import BigModelService, JointInference
from halimede.compat.sedna.serving import worker_arguments
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.messages import WorkerInfo
from halimede.worker.bootstrap import serve
from halimede.worker.main import connect_to
from services.broker import MosquittoProcess
from tests.ports import free_port
from tests.simulated import eventually
from tests.waiting import patience

SURE, UNSURE = np.zeros((2, 2), np.uint8), np.ones((2, 2), np.uint8)
#: what the edge's model answers for each
CLEAR, VAGUE = [0.9, 0.1], [0.55, 0.45]
#: what the cloud's model answers for UNSURE
SAID = {"sum": 8.0, "type": "ndarray"}
MARGIN = {"method": "Margin", "param": {"threshold_margin": "0.3"}}


class Small:
    """Sure of what is dark."""

    path = ""

    def load(self, model_path: str) -> None:
        self.path = model_path

    def predict(self, data: Any, **_: Any) -> Any:
        return CLEAR if float(np.sum(data)) == 0 else VAGUE


class Big:
    """Says what it was asked."""

    def predict(self, data: Any, fail: bool = False, **arguments: Any) -> Any:
        if fail:
            raise RuntimeError("too much")
        if isinstance(data, np.ndarray):
            data += 1  # Sedna's users may write into what they get
        return {"sum": float(np.sum(data)), "type": type(data).__name__, **arguments}


class World:
    def __init__(self, broker: MosquittoProcess, service: str) -> None:
        self.broker, self.service = broker, service
        self.infos: dict[str, WorkerInfo] = {}

    def environment(self, name: str, folder: Path) -> dict[str, str]:
        return {
            "SERVICE_NAME": self.service, "WORKER_NAME": f"{self.service}-{name}", "NODE_NAME": "node",
            "HALIMEDE_BROKER": self.broker.url, "HALIMEDE_STATE": str(folder / name), "LC_PERIOD": "0.05",
            "HALIMEDE_HTTP": "off", "SERVICE_UID": "u-1",
        }  # fmt: skip

    def info(self, name: str) -> Any:
        return self.infos.get(f"{self.service}-{name}")


@pytest.fixture(autouse=True)
def _own_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halimede.log.configure", lambda **_: None)
    for name in ("SERVICE_NAME", "HALIMEDE_BROKER", "HEM_NAME", "MINING_MODE", "MODEL_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def world(mosquitto: MosquittoProcess, unique: str) -> AsyncIterator[World]:
    made = World(mosquitto, unique)

    async def heard(delivery: Delivery[WorkerInfo]) -> None:
        made.infos[delivery.body.name] = delivery.body

    async with MqttBus(f"lc-{unique}", MqttSettings.from_url(mosquitto.url)) as bus:
        await bus.wait_connected(patience(5))
        await bus.subscribe(topics.WORKER_INFO.filter(), heard)
        yield made


@contextlib.asynccontextmanager
async def cloud(world: World, folder: Path) -> AsyncIterator[None]:
    """Run a BigModelService as ``start`` does, within the test's process."""
    service = BigModelService(estimator=Big)
    estimator, _, prepare = worker_arguments(service)
    settings, job = prepare(world.environment("cloud", folder), True)
    stop = asyncio.Event()
    connect = connect_to(MqttSettings.from_url(settings.broker))
    running = asyncio.create_task(serve(settings, connect, stop, estimator, job))
    await eventually(lambda: world.info("cloud") is not None and world.info("cloud").status == "running", 10)
    try:
        yield
    finally:
        stop.set()
        await running


@contextlib.asynccontextmanager
async def edge(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch, hem: Any = MARGIN, **changes: str
) -> AsyncIterator[JointInference]:
    for name, value in {**world.environment("edge", folder), "DEADLINE_MS": "10000", **changes}.items():
        monkeypatch.setenv(name, value)
    service = await asyncio.to_thread(JointInference, Small, hem)
    try:
        yield service
    finally:
        await asyncio.to_thread(service.close)


async def test_easy_samples_stay_hard_ones_go_up_and_both_are_counted(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cloud(world, tmp_path), edge(world, tmp_path, monkeypatch, MODEL_URL="/a/model") as service:
        ask = service.inference
        assert service.estimator.path == "/a/model"
        assert await asyncio.to_thread(ask, SURE) == [False, CLEAR, CLEAR, None]
        assert await asyncio.to_thread(ask, UNSURE) == [True, SAID, VAGUE, SAID]
        assert UNSURE.sum() == 4
        said = {"sum": 3.0, "type": "list", "size": 3}
        assert await asyncio.to_thread(ask, [1, 2], size=3) == [True, said, VAGUE, said]
        assert await asyncio.to_thread(ask, UNSURE, fail=True) == [True, VAGUE, VAGUE, None]
        with pytest.raises(InvalidFieldError, match="data"):
            await asyncio.to_thread(lambda: JointInference._ask(service, object(), None, {}, {}, {}))
        await eventually(lambda: world.info("edge").task_info.inference_number == 4, 5)
        counts = world.info("edge").task_info
        assert (counts.hard_example_number, counts.cloud_inference_number, counts.degraded) == (3, 2, 1)
        assert counts.upload_cloud_ratio == 0.75
        assert counts.offload_latency is not None
        assert world.info("edge").status == "running"
    await eventually(lambda: world.info("edge").status == "completed", 5)


async def test_post_processing_is_a_callable_here_or_an_alias_on_both_sides(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @ClassFactory.register(ClassType.CALLBACK, alias="deal")
    def deal(answer: Any) -> Any:
        return answer if isinstance(answer, list) else {"dealt": answer["sum"]}

    async with cloud(world, tmp_path), edge(world, tmp_path, monkeypatch) as service:
        for process in (deal, "deal"):
            _, final, raw, _ = await asyncio.to_thread(service.inference, UNSURE, post_process=process)
            assert (final, raw) == ({"dealt": 8.0}, VAGUE)
        with pytest.raises(ValueError, match="use one of deal"):
            service.inference(SURE, post_process="unknown")


async def test_mining_first_asks_the_edge_only_for_what_the_cloud_does_not_answer(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @ClassFactory.register(ClassType.HEM, alias="Bright")
    class Bright:
        def __call__(self, data: Any) -> bool:
            return bool(data.sum() > 0)

    named = {"HEM_NAME": "Bright", "MINING_MODE": "mining-then-inference"}  # as the service's spec says it
    async with edge(world, tmp_path, monkeypatch, None, **named) as service:
        assert await asyncio.to_thread(service.inference, UNSURE) == [True, VAGUE, VAGUE, None]
        async with cloud(world, tmp_path):

            async def answer_of_cloud() -> Any:
                answer = await asyncio.to_thread(service.inference, UNSURE)
                return answer if answer[3] is not None else None

            # the edge learns in a moment that somebody is there
            assert await eventually(answer_of_cloud, 10, every_s=0.05) == [True, SAID, None, SAID]
        assert service.inference(SURE) == [False, CLEAR, CLEAR, None]
        with pytest.raises(InvalidFieldError, match="mining_mode"):
            service.inference(SURE, mining_mode="self-made")


async def test_without_a_cloud_or_a_broker_the_edge_answers_at_once(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with edge(world, tmp_path, monkeypatch, DEADLINE_MS="60000") as service:
        began = time.monotonic()
        for _ in range(5):
            assert service.inference(UNSURE) == [True, VAGUE, VAGUE, None]
        assert time.monotonic() - began < 30  # not one deadline
    away = {"HALIMEDE_BROKER": f"127.0.0.1:{free_port()}", "DEADLINE_MS": "200"}
    async with edge(world, tmp_path, monkeypatch, **away) as service:
        assert service.inference(UNSURE)[1] == VAGUE


async def test_a_mistake_is_raised_and_told_to_the_local_controller(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidFieldError, match="did you mean Margin"):
        async with edge(world, tmp_path, monkeypatch, {"method": "Margn"}):
            pass
    await eventually(lambda: world.info("edge") is not None and world.info("edge").status == "failed", 5)
    assert world.info("edge").reason == "HardExampleMiningUnknown"


def test_a_script_of_no_service_answers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    service = JointInference(Small(), MARGIN)
    assert service.inference(UNSURE) == [True, VAGUE, VAGUE, None]
    assert service.inference(SURE)[0] is False
    assert JointInference(Small).inference(UNSURE)[0] is False
    service = JointInference(estimator=Small, hard_example_mining={"method": "CloudOnly"}, cloud=BigModelService(Big()))
    assert service.inference(SURE)[1] == {"sum": 4.0, "type": "ndarray"}
    monkeypatch.setenv("HALIMEDE_BROKER", "127.0.0.1")
    with pytest.raises(HalimedeError, match="SERVICE_NAME"):
        JointInference(Small, MARGIN)
