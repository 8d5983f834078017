"""Clocks that are days apart, and one that jumps: deadlines are monotonic, and no order comes from the wall clock."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.frames import new_id, pack
from halimede.messages import Frame, Result, WorkerInfo
from tests.faults.control import ROOT, SERVICES, Control, control

pytestmark = pytest.mark.slow

DAY = 86_400
CLOCK = Path(__file__).parent / "clock"


def shifted(seconds: int) -> dict[str, str]:
    """The environment of a process whose wall clock is off."""
    return {"PYTHONPATH": f"{CLOCK}:{ROOT}", "HALIMEDE_TEST_CLOCK": str(seconds)}


def off(stamp: str) -> int:
    """How many days a timestamp is off, in whole days."""
    return round((datetime.fromisoformat(stamp) - datetime.now(UTC)) / timedelta(days=1))


def digits(plane: Control, *, threshold: str, edge: int, cloud: int) -> dict[str, Any]:
    """A service of real workers whose clocks are off by so many seconds."""
    mining = {"name": "Margin", "parameters": [{"key": "threshold_margin", "value": threshold}]}
    return plane.real_service(
        edge=shifted(edge), cloud=shifted(cloud),
        source={"cameras": ["cam0"]}, deadlineMs=20_000, hardExampleMining=mining,
    )  # fmt: skip


class Consumer:
    """Sends frames, and keeps results and when workers say that they began."""

    def __init__(self, plane: Control, pictures: list[bytes]) -> None:
        self.plane, self.pictures = plane, pictures
        self.results: dict[str, Result] = {}
        self.began: dict[str, str] = {}

    async def listen(self) -> None:
        await self.plane.operator.subscribe(topics.RESULT.filter(), self._on_result)
        await self.plane.operator.subscribe(topics.WORKER_INFO.filter(), self._on_info)

    async def _on_result(self, delivery: Delivery[Result]) -> None:
        self.results[delivery.body.id] = delivery.body

    async def _on_info(self, delivery: Delivery[WorkerInfo]) -> None:
        if delivery.body.task_info:
            self.began[delivery.body.name] = delivery.body.task_info.start_time

    async def answers(self, count: int) -> list[Result]:
        """Send frames at a calm pace and return their results."""
        sent = []
        for number in range(count):
            frame = Frame(id=new_id(), sequence=number, encoding="png", data=memoryview(self.pictures[number]))
            sent.append(frame.id.hex())
            await self.plane.operator.publish(topics.CAMERA_FRAME.at(ns="default", camera="cam0"), pack(frame))
            await asyncio.sleep(0.02)
        await self.plane.until(lambda: set(sent) <= set(self.results))
        return [self.results[id_] for id_ in sent]


async def uid_and_generation(plane: Control, name: str) -> tuple[str, int, dict[str, Any]]:
    found = (await plane.ask("get", plural=SERVICES, namespace="default", name=name)).object
    assert found
    return found["metadata"]["uid"], found["metadata"]["generation"], found


async def test_fault_20_a_service_lives_its_life_on_clocks_that_are_days_apart(tmp_path: Path) -> None:
    async with control(tmp_path) as plane:
        consumer = Consumer(plane, plane.trained())
        await consumer.listen()
        plane.gm_process(**shifted(DAY))
        plane.lc_process(**shifted(-DAY))
        await plane.apply(*plane.real_models(), digits(plane, threshold="0.19", edge=DAY, cloud=-DAY))
        await plane.running("digits")
        await plane.until(lambda: len(consumer.began) == 2)
        assert {name: off(began) for name, began in consumer.began.items()} == {
            "digits-edge-edge0": 1, "digits-cloud-edge0": -1,
        }  # fmt: skip
        uid, generation, body = await uid_and_generation(plane, "digits")
        assert off(body["metadata"]["creationTimestamp"]) == 1, "GM's clock is not off"

        results = await consumer.answers(60)
        assert {result.by for result in results} == {"edge", "cloud"}
        assert not [result for result in results if result.degraded], "a deadline came from the wall clock"
        assert all(0 <= result.total_ms < 20_000 for result in results)

        before = plane.workers("digits-edge")
        await plane.apply(digits(plane, threshold="0", edge=-DAY, cloud=DAY))
        await plane.running("digits", generation=2)
        await plane.until(lambda: plane.workers("digits-edge") not in ({}, before))
        assert await uid_and_generation(plane, "digits") >= (uid, generation + 1)
        assert {result.by for result in await consumer.answers(20)} == {"edge"}

        await plane.delete("digits")
        await plane.gone("digits")


async def test_fault_20_an_edit_under_an_earlier_clock_is_the_later_generation(tmp_path: Path) -> None:
    async with control(tmp_path) as plane:
        lc = plane.lc_process()
        gm = plane.gm_process(**shifted(DAY))
        await plane.apply(*plane.models(), plane.service("helmet"))
        await plane.running("helmet")
        await plane.apply(plane.service("helmet", "--second"))
        await plane.running("helmet", generation=2)
        second = plane.workers()
        created = (await uid_and_generation(plane, "helmet"))[2]["metadata"]["creationTimestamp"]

        # the clock falls back by two days, of GM and of the node
        assert await gm.stop() == 0
        lc.kill()
        plane.gm_process(**shifted(-DAY))
        plane.lc_process(**shifted(-DAY))
        await plane.apply(plane.service("helmet", "--third"))
        await plane.running("helmet", generation=3)
        assert not plane.workers().items() & second.items()
        _, generation, body = await uid_and_generation(plane, "helmet")
        assert (generation, body["metadata"]["creationTimestamp"]) == (3, created)
        await plane.delete("helmet")
        await plane.gone("helmet")


async def test_fault_20_a_gm_whose_store_is_gone_and_whose_clock_is_behind_is_followed_again(tmp_path: Path) -> None:
    async with control(tmp_path) as plane:
        plane.lc_process()
        gm = plane.gm_process(**shifted(DAY))
        await plane.apply(*plane.models(), plane.service("helmet"))
        await plane.running("helmet")
        before = plane.workers()
        epoch = (await plane.ask("version")).value["epoch"]

        assert await gm.stop() == 0
        shutil.rmtree(plane.home / "gm")
        plane.gm_process(**shifted(-DAY))
        await plane.until(lambda: plane.events("EpochRaised"))
        assert (await plane.ask("version")).value["epoch"] > epoch
        assert plane.workers() == before, "a lost store deletes nothing that runs"
        await plane.apply(*plane.models(), plane.service("another"))
        await plane.running("another")
