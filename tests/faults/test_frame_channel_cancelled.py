"""Ten thousand requests that are cancelled in flight leave nothing: no permit, no future, no memory. Either client."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections import Counter
from typing import get_args

import pytest

from halimede import topics
from halimede.bus import Bus, Delivery
from halimede.bus.mqtt import MqttSettings
from halimede.bus.settings import Client
from halimede.messages import Frame, Reply
from halimede.offload import OffloadClient
from halimede.offload.channel import inference
from halimede.offload.client import PendingRequest
from halimede.offload.errors import OffloadError
from halimede.worker.main import connect_to
from services.broker import MosquittoProcess
from tests.simulated import eventually
from tests.unit.frames.clouds import NS, SERVICE, ScriptedCloud, answering, frame
from tests.waiting import patience

pytestmark = pytest.mark.slow

REQUESTS, AT_A_TIME = 10_000, 250
WINDOW = 64
#: so fast that a slot will be free in time for each request that waits
SERVICE_MS = 0.001
PATIENCE = 30.0
#: requests after which as many correlations are remembered as ever will be; after that not one in four may leave
#: anything at all: one block of memory that Python has given out
FIRST, LEFT = 5_000, REQUESTS // 4


def living() -> Counter[str]:
    """What anybody may still wait for, and what is known of requests."""
    gc.collect()
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        found["futures"] += isinstance(each, asyncio.Future) and not each.done()
        found["asks"] += isinstance(each, PendingRequest)
    return found


class Cloud(ScriptedCloud):
    """Answers nothing until it is told to, and every seventh late."""

    answers = False
    last = b""

    async def take(self, delivery: Delivery[Frame]) -> None:
        self.last = delivery.body.id
        del self.seen[:], self.deliveries[:]
        await super().take(delivery)

    @classmethod
    def on(cls, bus: object) -> Cloud:
        async def script(delivery: Delivery[Frame]) -> Reply | None:
            return await answering()(delivery) if made.answers or random.random() < 1 / 7 else None

        made = cls(bus, "c0", script)  # type: ignore[arg-type]
        return made


async def cancelled_in_flight(offload: OffloadClient, cloud: Cloud, requests: int) -> Counter[str]:
    """Ask, and give each request up at another moment; return what became of them."""
    outcomes: Counter[str] = Counter()
    chance = random.Random(5)
    for _ in range(requests // AT_A_TIME):
        await cloud.advertise(AT_A_TIME, SERVICE_MS)
        asking = [asyncio.create_task(offload.ask(frame(), PATIENCE)) for _ in range(AT_A_TIME)]
        for _ in range(5):
            await asyncio.sleep(chance.random() * 0.004)
            for task in chance.sample(asking, AT_A_TIME // 4):
                task.cancel()
        for task in asking:
            task.cancel()
        for outcome in await asyncio.gather(*asking, return_exceptions=True):
            outcomes[type(outcome).__name__] += 1
    return outcomes


async def quiet(asker: Bus, cloud: Cloud) -> None:
    """Wait until everything is acknowledged, and what had left for the cloud is done there: a last one comes last."""
    last = frame()
    await asker.publish(topics.REQUEST_TO.at(ns=NS, service=SERVICE, worker="c0"), last)
    await eventually(lambda: asker.owed == 0 and cloud.last == last.id, PATIENCE)
    await asyncio.sleep(0.3)  # the last replies arrive, and are nobody's


@pytest.mark.parametrize("client", get_args(Client))
async def test_requests_cancelled_in_flight_leave_nothing(mosquitto: MosquittoProcess, client: Client) -> None:
    connect = connect_to(MqttSettings("127.0.0.1", mosquitto.port, client=client, window=WINDOW))
    async with connect("worker.default.cloud") as far, connect("worker.default.edge") as near:
        for bus in (far, near):
            await bus.wait_connected(patience(PATIENCE))
        cloud = Cloud.on(far)
        await cloud.start(advertise=None)
        await cloud.advertise(AT_A_TIME, SERVICE_MS)
        offload = OffloadClient(near, inference(NS, SERVICE, "edge"), window=WINDOW, waiters=AT_A_TIME)
        await offload.start()
        await eventually(offload.credits_left, PATIENCE)
        await cancelled_in_flight(offload, cloud, FIRST)
        await quiet(near, cloud)
        before, blocks = living(), sys.getallocatedblocks()
        outcomes = await cancelled_in_flight(offload, cloud, REQUESTS)
        await quiet(near, cloud)
        after = living()
        assert sys.getallocatedblocks() - blocks < LEFT
        assert outcomes["CancelledError"] > REQUESTS / 2
        assert set(outcomes) <= {"CancelledError", "Reply", OffloadError.__name__}, outcomes
        assert after["asks"] == 0
        assert abs(after["futures"] - before["futures"]) <= 10
        # and every place, of the window and of those who wait for one, is there
        cloud.answers = True
        await cloud.advertise(AT_A_TIME, SERVICE_MS)
        await eventually(lambda: offload.credits_left().get("c0") == AT_A_TIME, PATIENCE)
        replies = await asyncio.gather(*(offload.ask(frame(), PATIENCE) for _ in range(AT_A_TIME)))
        assert len(replies) == AT_A_TIME
