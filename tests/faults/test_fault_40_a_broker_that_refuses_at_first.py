"""A broker whose access rules come 3 s after its port: whoever was refused meanwhile is heard, and hears, soon after.

A component whose subscription stays refused is a problem of `halimede status`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.errors import BusError
from halimede.frames import new_id, pack
from halimede.messages import Frame, Result
from tests.faults.control import CONVERGES, PATIENCE, Control, control, readiness
from tests.refusing_broker import RefusingBroker
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: seconds for which the broker refuses everything
REFUSES_S = 3.0
FPS = 25
#: seconds until a service runs whose workers have to be started
RUNNING_S = 90.0
#: the client id of the cloud worker
WORKER = "worker.default.digits-cloud-cloud0"
#: when the table shows `halimede status`: seconds after the fault
SHOWN_S = (1, 5, 15)


@dataclass
class Load:
    """Frames of one camera, each repeated until the broker accepts it, and their answers. Times are of the loop."""

    plane: Control
    pictures: list[bytes]
    sent: dict[str, float] = field(default_factory=dict)
    tries: int = 0
    answers: dict[str, tuple[float, str]] = field(default_factory=dict)

    async def on_result(self, delivery: Delivery[Result]) -> None:
        self.answers.setdefault(delivery.body.id, (now(), delivery.body.by))

    async def publish(self, bus: MqttBus) -> None:
        """Publish until cancelled."""
        address, number, due = topics.CAMERA_FRAME.at(ns="default", camera="cam0"), 0, now()
        while True:
            picture = self.pictures[number % len(self.pictures)]
            frame = Frame(id=new_id(), camera="cam0", sequence=number, encoding="png", data=memoryview(picture))
            while True:
                self.tries += 1
                with contextlib.suppress(BusError):
                    if await bus.publish(address, pack(frame)):
                        break
                await asyncio.sleep(0.2)
            self.sent[frame.id.hex()] = now()
            number += 1
            due = max(due + 1 / FPS, now() - 1)
            await asyncio.sleep(due - now())

    def first_from_cloud(self, since: float) -> float:
        """Seconds from ``since`` until the cloud answered a frame that was sent after it."""
        return min(
            (at - since for id_, (at, by) in self.answers.items() if by == "cloud" and self.sent.get(id_, 0) > since),
            default=math.inf,
        )

    async def unnamed(self) -> int:
        """Return accepted frames without an answer that no counter of the service has."""
        lost = next((int(m.value) for m in self.plane.statuses["digits"].metrics if m.key == "lost"), 0)
        return len(self.sent.keys() - self.answers.keys()) - lost


def now() -> float:
    return asyncio.get_running_loop().time()


def service(plane: Control) -> dict[str, Any]:
    """Return a service whose every frame is for the cloud worker, which is on another node."""
    body = plane.real_service(edge={}, cloud={}, source={"cameras": ["cam0"]}, hardExampleMining={"name": "CloudOnly"})
    body["spec"]["cloudWorker"]["template"]["spec"]["nodeName"] = "cloud0"
    return body


@contextlib.asynccontextmanager
async def behind(folder: Path) -> AsyncIterator[tuple[Control, RefusingBroker, Load]]:
    """Run GM and two LCs that wait for a broker; its port is not open yet."""
    async with control(folder) as plane, RefusingBroker(plane.broker.port) as front:
        load = Load(plane, plane.trained())
        await plane.operator.subscribe(topics.RESULT.filter(), load.on_result)
        front.close()
        plane.gm_process(port=front.port)
        for node in ("edge0", "cloud0"):
            plane.lc_process(node, home=folder / node, port=front.port)
        await eventually(lambda: front.attempts >= 6, PATIENCE)
        yield plane, front, load


@contextlib.asynccontextmanager
async def loaded(front: RefusingBroker, load: Load) -> AsyncIterator[None]:
    """Publish frames during the block; it ends when all are answered or named."""
    async with MqttBus("camera", load.plane.settings(front.port)) as bus:
        await bus.wait_connected(patience(PATIENCE))
        task = asyncio.create_task(load.publish(bus))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
    with contextlib.suppress(AssertionError):
        await eventually(lambda: load.sent.keys() <= load.answers.keys(), PATIENCE)


async def statuses(plane: Control, since: float) -> list[str]:
    """Return what `halimede status` prints at some times after ``since``."""
    table = []
    for at in SHOWN_S:
        await asyncio.sleep(since + at - now())
        ended = await plane.halimede("status")
        text = ended.stdout.partition("To do\n")[2] or ended.stdout
        table.append(f"at {at} s: exit {ended.returncode}: {'; '.join(line.strip() for line in text.splitlines())}")
    return table


async def test_fault_40_after_a_cold_start_everyone_hears_everything(tmp_path: Path) -> None:
    async with behind(tmp_path) as (plane, front, _):
        opened = now()
        front.open(REFUSES_S)
        await plane.apply(*plane.real_models(), service(plane))
        applied_s = now() - opened
        await plane.running("digits", within_s=RUNNING_S)
        print(f"cold start: applied after {applied_s:.1f} s, Running after {now() - opened:.1f} s, {front.connects}")
        assert front.refused, "nobody came while the broker refused"
        assert applied_s < patience(CONVERGES)
        await plane.status_is_well()
        await plane.delete("digits")
        await plane.gone("digits")


async def test_fault_40_after_a_restart_of_the_broker_everyone_hears_everything(tmp_path: Path) -> None:
    async with behind(tmp_path) as (plane, front, load):
        front.open()
        await plane.apply(*plane.real_models(), service(plane))
        await plane.running("digits", within_s=RUNNING_S)
        async with loaded(front, load):
            await eventually(lambda: load.first_from_cloud(0) < math.inf, PATIENCE)
            front.close()
            await plane.broker.restart()
            restarted = now()
            front.open(REFUSES_S)
            table = await statuses(plane, restarted)
            await eventually(lambda: load.first_from_cloud(restarted) < math.inf, PATIENCE)
        cloud_s = load.first_from_cloud(restarted)
        unnamed = await load.unnamed()
        print(f"sent {load.tries}, acknowledged {len(load.sent)}, answered {len(load.answers)}, unnamed {unnamed}")
        print(f"the cloud answers again after {cloud_s:.1f} s; {front.connects}", *table, sep="\n")
        assert front.refused
        assert unnamed == 0
        assert cloud_s < patience(CONVERGES)
        await plane.status_is_well()
        await plane.delete("digits")
        await plane.gone("digits")


async def test_fault_40_components_that_stay_refused_are_problems_of_status_until_they_are_not(tmp_path: Path) -> None:
    insert, letters = topics.INSERT.filter(node="edge0").text, topics.DEAD_LETTER.filter().text
    birth = topics.PRESENCE.at(node="cloud0").text
    refused = {("lc.edge0", insert), ("lc.cloud0", birth), ("halimede-gm", letters)}
    async with behind(tmp_path) as (plane, front, _):
        front.open()
        await plane.apply(*plane.real_models(), service(plane))
        await plane.running("digits", within_s=RUNNING_S)
        await plane.status_is_well()

        def is_refused(client: str, topic: str) -> bool:
            return (client, topic) in refused or (client == WORKER and "/request" in topic)

        front.refuses = is_refused
        front.close()
        front.open()
        began = now()
        for name, words in {
            "gm": ("gm: the broker refuses its subscription", letters),
            "LC": ("node/edge0: the broker refuses its subscription", insert),
            "LC without a birth": ("node/cloud0: the broker refuses its subscription or birth", birth),
            "worker": ("Degraded: SubscriptionRefused: cloud worker on node cloud0", "/request"),
        }.items():
            await status_names(plane, *words)
            print(f"{name}: named after {now() - began:.1f} s")
        doctor = await plane.halimede("doctor")
        assert doctor.returncode == 1
        assert letters in doctor.stdout
        ready, checks = await readiness((await plane.node()).http)
        assert (ready, insert in checks["granted"]) == (503, True)

        front.refuses = lambda *_: False
        front.close()
        front.open()
        await plane.status_is_well()
        assert (await readiness((await plane.node()).http))[0] == 200


async def status_names(plane: Control, *words: str) -> None:
    """Wait until `halimede status` ends with 1 and has all words in one of its lines."""

    def is_named(text: str) -> bool:
        return any(all(word in line for word in words) for line in text.splitlines())

    await plane.status(1, is_named, CONVERGES)
