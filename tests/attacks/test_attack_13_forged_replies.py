"""Attack 13: forged and replayed correlation data. Nothing is believed but an answer to what was asked, by whom it was.

The attacker here may publish to an edge worker's reply topic, which access rules keep to cloud workers, and even reads
its requests. What names a request is 128 bits of the system's own randomness.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from halimede import topics
from halimede.bus import Delivery, Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.mqtt import MqttBus
from halimede.bus.rpc import RpcClient
from halimede.frames import new_id
from halimede.messages import ApiReply, ApiRequest, Frame, Load, Prediction, Reply
from halimede.offload import OffloadClient
from halimede.offload.channel import inference
from halimede.offload.errors import OffloadError
from services.broker import MosquittoProcess
from tests.digits import ALL_HARD, Digits
from tests.integration.workers import Site
from tests.simulated import eventually, simulate
from tests.unit.frames.clouds import NS, SERVICE, frame
from tests.waiting import patience

pytestmark = pytest.mark.timeout(180)

FORGED = Prediction(label="forged", score=1.0)


class Cloud:
    """A cloud worker in the test's hands: it gets requests and answers when it is told to."""

    def __init__(self, s: Site, name: str) -> None:
        self.s, self.name = s, name
        self.names = {"ns": "default", "service": s.service}
        self.reply_to = topics.REPLY.at(**self.names, worker=f"{s.service}-e")
        self.requests: list[Delivery[Frame]] = []

    async def start(self) -> None:
        async def take(delivery: Delivery[Frame]) -> None:
            self.requests.append(delivery)

        await self.s.bus.subscribe(topics.REQUEST_TO.filter(**self.names, worker=self.name), take)
        await self.advertise()

    async def advertise(self) -> None:
        await self.s.bus.publish(topics.LOAD.at(**self.names, worker=self.name), Load(credits=50, service_ms=1.0))

    async def request(self, number: int) -> Delivery[Frame]:
        await eventually(lambda: len(self.requests) > number, 30)
        return self.requests[number]

    async def say(self, correlation: bytes, id_: bytes, worker: str, prediction: Prediction = FORGED) -> None:
        reply = Reply(id=id_, worker=worker, prediction=prediction)
        await self.s.bus.publish(self.reply_to, reply, correlation=correlation)


async def test_attack_13_forged_and_replayed_replies_are_dropped_and_counted(s: Site, digits: Digits) -> None:
    await s.run_edge(digits.small, **ALL_HARD, DEADLINE_MS="60000")
    cloud = Cloud(s, s.cloud)
    await cloud.start()
    await s.known(cloud.name)
    await s.send(digits.pictures[:2], fps=5)
    first, second = await cloud.request(0), await cloud.request(1)
    asked, id_, good = first.packet.correlation, first.body.id, Prediction(label="good")
    assert len(asked) == len(second.packet.correlation) == 16
    assert asked != second.packet.correlation

    for guess in (b"", b"guess", bytes(16), new_id(), asked[:-1], asked + b"\0", id_):
        await cloud.say(guess, id_, cloud.name)  # correlation data that nobody gave out
    await cloud.say(asked, new_id(), cloud.name)  # the right one, for another sample
    await cloud.say(asked, second.body.id, cloud.name)  # or for one that is under way as well
    await cloud.say(asked, id_, f"{s.service}-stranger")  # the right one, of a worker that was not asked
    await eventually(lambda: s.counts(s.edge).unasked == 10, 30)
    assert s.results == {}

    await cloud.say(asked, id_, cloud.name, good)
    await eventually(lambda: len(s.results) == 1, 30)
    for _ in range(3):
        await cloud.say(asked, id_, cloud.name)  # replayed
    await cloud.say(second.packet.correlation, second.body.id, cloud.name, good)
    await s.answered()
    await eventually(lambda: s.counts(s.edge).cloud_inference_number == 2, 30)
    await asyncio.sleep(0.5)
    assert {(result.by, result.label) for result in s.results.values()} == {("cloud", "good")}
    assert set(s.copies.values()) == {1}
    counts = s.counts(s.edge)
    assert (counts.unasked, counts.late, counts.cloud_inference_number) == (10, 0, 2)


async def test_attack_13_what_nobody_waits_for_reaches_no_client_of_the_api(
    mosquitto: MosquittoProcess, unique: str
) -> None:
    async with MqttBus(unique, mosquitto.url) as bus, MqttBus(f"gm-{unique}", mosquitto.url) as gm:
        own = topics.API_REPLY.at(client=unique)
        asking = RpcClient(bus, own)
        await asking.start()
        seen: list[bytes] = []

        async def answer(delivery: Delivery[ApiRequest]) -> None:
            seen.append(delivery.packet.correlation)
            for forged in (b"", bytes(16), new_id(), seen[0][::-1], *seen[:-1]):
                await gm.publish(own, ApiReply(outcome="forged"), correlation=forged)
            await gm.reply(delivery, topics.API_REPLY, ApiReply(outcome="good"))
            await gm.reply(delivery, topics.API_REPLY, ApiReply(outcome="replayed"))

        await gm.subscribe(topics.API_REQUEST.filter(client=unique), answer)
        await bus.wait_connected(patience(10))
        await gm.wait_connected(patience(10))
        for _ in range(2):
            reply = await asking.ask(topics.API_REQUEST.at(client=unique), ApiRequest(op="version"), timeout_s=30)
            assert reply.body.outcome == "good"
        await eventually(lambda: asking.late == 2 * 4 + 1 + 2, 30)
        assert len(set(seen)) == 2
        assert {len(correlation) for correlation in seen} == {16}


def correlations(seed: int, count: int = 50) -> list[bytes]:
    """Return the correlation data of some requests, by a process whose own random numbers are known."""
    random.seed(seed)
    given: list[bytes] = []

    async def ask() -> None:
        broker = MemoryBroker()
        async with MemoryBus("edge", broker) as bus, MemoryBus("cloud", broker) as cloud:

            async def take(packet: Packet) -> None:
                given.append(packet.correlation)

            await cloud.listen(topics.REQUEST.filter(ns=NS, service=SERVICE).text, 1, take, 1000)
            await cloud.wait_connected(1)
            await bus.wait_connected(1)
            client = OffloadClient(bus, inference(NS, SERVICE, "edge"), window=count, waiters=count)
            await client.start()
            answers = (client.ask(frame(), 1.0) for _ in range(count))
            results = await asyncio.gather(*answers, return_exceptions=True)
            assert all(isinstance(result, OffloadError) for result in results)

    simulate(ask())
    return given


def test_attack_13_correlation_data_are_128_bits_that_no_seed_repeats() -> None:
    first, second = correlations(1), correlations(1)
    assert len(first) == len(second) == 50
    assert len({*first, *second}) == 100
    assert {len(correlation) for correlation in first + second} == {16}
    # each bit is there, and not: 100 draws miss one with a chance of 2 ** -92
    numbers = [int.from_bytes(correlation) for correlation in first + second]
    assert all(0 < sum(number >> bit & 1 for number in numbers) < 100 for bit in range(128))
