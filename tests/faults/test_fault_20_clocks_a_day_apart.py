"""Clocks that are days apart, and one that jumps: deadlines are monotonic, and no order comes from the wall clock."""

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from halimede import topics
from halimede.frames import new_id, pack
from halimede.messages import Frame, Result, WorkerInfo
from tests.faults.control import ROOT, Control
from tests.inbox import Inbox

pytestmark = pytest.mark.slow

DAY = 86_400
CLOCK = Path(__file__).parent / "clock"


def shifted(seconds: int) -> dict[str, str]:
    """The environment of a process whose wall clock is off."""
    return {"PYTHONPATH": f"{CLOCK}:{ROOT}", "HALIMEDE_TEST_CLOCK": str(seconds)}


def off(stamp: str) -> int:
    return round((datetime.fromisoformat(stamp) - datetime.now(UTC)) / timedelta(days=1))


def digits(plane: Control, *, threshold: str, edge: int, cloud: int) -> dict[str, Any]:
    """A service of real workers whose clocks are off by so many seconds."""
    mining = {"name": "Margin", "parameters": [{"key": "threshold_margin", "value": threshold}]}
    return plane.real_service(
        edge=shifted(edge), cloud=shifted(cloud),
        source={"cameras": ["cam0"]}, deadlineMs=20_000, hardExampleMining=mining,
    )  # fmt: skip


async def answers(plane: Control, results: Inbox[Result], pictures: list[bytes]) -> list[Result]:
    """Send frames at a calm pace and return their results."""
    sent = []
    for number, picture in enumerate(pictures):
        frame = Frame(id=new_id(), sequence=number, encoding="png", data=memoryview(picture))
        sent.append(frame.id.hex())
        await plane.operator.publish(topics.CAMERA_FRAME.at(ns="default", camera="cam0"), pack(frame))
        await asyncio.sleep(0.02)
    await plane.until(lambda: set(sent) <= set(results.read(lambda result: result.id)))
    return [result for result in results.bodies if result.id in sent]


async def test_fault_20_a_service_lives_its_life_on_clocks_that_are_days_apart(plane: Control) -> None:
    pictures, results, infos = plane.trained(), Inbox[Result](), Inbox[WorkerInfo]()
    await plane.operator.subscribe(topics.RESULT.filter(), results)
    await plane.operator.subscribe(topics.WORKER_INFO.filter(), infos)
    plane.gm_process(**shifted(DAY))
    plane.lc_process(**shifted(-DAY))
    await plane.apply(*plane.real_models(), digits(plane, threshold="0.19", edge=DAY, cloud=-DAY))
    await plane.running("digits")

    def began() -> dict[str, int]:
        return {info.name: off(info.task_info.start_time) for info in infos.bodies if info.task_info}

    await plane.until(lambda: began() == {"digits-edge-edge0": 1, "digits-cloud-edge0": -1})
    first = (await plane.stored("digits"))["metadata"]
    assert off(first["creationTimestamp"]) == 1, "GM's clock is not off"

    answered = await answers(plane, results, pictures[:60])
    assert {result.by for result in answered} == {"edge", "cloud"}
    assert not [result for result in answered if result.degraded], "a deadline came from the wall clock"
    assert all(0 <= result.total_ms < 20_000 for result in answered)

    before = plane.workers("digits-edge")
    await plane.apply(digits(plane, threshold="0", edge=-DAY, cloud=DAY))
    await plane.running("digits", generation=2)
    await plane.until(lambda: plane.workers("digits-edge") not in ({}, before))
    second = (await plane.stored("digits"))["metadata"]
    assert (second["uid"], second["generation"]) == (first["uid"], first["generation"] + 1)
    assert {result.by for result in await answers(plane, results, pictures[:20])} == {"edge"}

    await plane.delete("digits")
    await plane.gone("digits")


async def test_fault_20_an_edit_under_an_earlier_clock_is_the_later_generation(plane: Control) -> None:
    lc = plane.lc_process()
    gm = plane.gm_process(**shifted(DAY))
    await plane.start_services("helmet")
    await plane.apply(plane.service("helmet", "--second"))
    await plane.running("helmet", generation=2)
    second = plane.workers()
    created = (await plane.stored("helmet"))["metadata"]["creationTimestamp"]

    # the clock falls back by two days, of GM and of the node
    assert await gm.stop() == 0
    lc.kill()
    plane.gm_process(**shifted(-DAY))
    plane.lc_process(**shifted(-DAY))
    await plane.apply(plane.service("helmet", "--third"))
    await plane.running("helmet", generation=3)
    assert not plane.workers().items() & second.items()
    third = (await plane.stored("helmet"))["metadata"]
    assert (third["generation"], third["creationTimestamp"]) == (3, created)
    await plane.delete("helmet")
    await plane.gone("helmet")


async def test_fault_20_a_gm_whose_store_is_gone_and_whose_clock_is_behind_is_followed_again(plane: Control) -> None:
    plane.lc_process()
    gm = plane.gm_process(**shifted(DAY))
    await plane.start_services("helmet")
    before = plane.workers()
    epoch = await plane.epoch()

    assert await gm.stop() == 0
    shutil.rmtree(plane.home / "gm")
    plane.gm_process(**shifted(-DAY))
    await plane.until(lambda: plane.events("EpochRaised"))
    assert await plane.epoch() > epoch
    assert plane.workers() == before, "a lost store deletes nothing that runs"
    await plane.start_services("another")
