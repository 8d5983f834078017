"""Whatever workers answer, whoever asks for hard samples gets those that he asked for, in bounded memory and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec.inspect import type_info

from halimede import topics
from halimede.api.jointinference import KeepHardSamples
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.message import Delivery
from halimede.errors import HalimedeError
from halimede.hard_samples import client
from halimede.hard_samples.client import KeptSamples
from halimede.hard_samples.store import entry
from halimede.messages import KeptReply, KeptRequest
from tests.unit.hard_samples.samples import sample
from tests.waiting import patience

DATA = b"picture"
SAMPLE = sample(1, DATA)
ID = SAMPLE.id
TRUE = KeptReply(worker="e", service="digits", node="edge0", sample=SAMPLE, data=DATA)


@asynccontextmanager
async def told(replies: Callable[[KeptRequest], list[KeptReply]]) -> AsyncIterator[KeptSamples]:
    """Ask over a bus on which a worker answers with anything at all."""
    broker = MemoryBroker()
    async with MemoryBus("asker", broker) as bus, MemoryBus("worker", broker) as worker:
        await asyncio.gather(bus.wait_connected(5), worker.wait_connected(5))

        async def asked(delivery: Delivery[KeptRequest]) -> None:
            to = topics.KEPT_REPLY.at(client=delivery.names["client"])
            for reply in replies(delivery.body):
                await worker.publish(to, reply, correlation=delivery.packet.correlation)

        await worker.subscribe(topics.KEPT_REQUEST.filter(), asked)
        kept = KeptSamples(bus)
        await kept.start()
        yield kept


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "QUIET_S", 0.05)
    monkeypatch.setattr(client, "LONGEST_S", 1.0)


@pytest.mark.parametrize(
    "changes", [{"sample": None}, {"data": b"another"}, {"sample": sample(2, DATA)}, {"sample": None, "data": b""}]
)
async def test_what_is_not_the_sample_that_was_asked_for_is_an_error(changes: dict[str, Any]) -> None:
    async with told(lambda _: [msgspec.structs.replace(TRUE, **changes)]) as kept:
        with pytest.raises(HalimedeError, match=f"worker e on edge0: what it sent is not hard sample {ID}"):
            await kept.sample(ID)
    async with told(lambda _: [TRUE]) as kept:
        assert (await kept.sample(ID)).data == DATA


async def test_a_worker_counts_once_and_those_who_were_not_asked_not_at_all() -> None:
    stranger = msgspec.structs.replace(TRUE, service="other")
    async with told(lambda _: [stranger, TRUE, TRUE]) as kept:
        assert await kept.pages(KeptRequest(service="digits")) == [TRUE]


async def test_answers_to_one_question_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_BYTES", 10_000)
    large = [msgspec.structs.replace(TRUE, worker=f"e{i}", data=bytes(3000)) for i in range(20)]
    async with told(lambda _: large) as kept:
        assert len(await kept.pages(KeptRequest())) == 2


async def test_all_pages_of_a_worker_are_read_and_one_that_goes_back_is_an_error() -> None:
    pages = {9: ([8, 7], 7), 7: ([6], 6), 6: ([], 4), 4: ([2], 0)}
    asked: list[int] = []

    def page(before: int) -> KeptReply:
        numbers, following = pages[before]
        entries = [entry(sample(number, DATA), number) for number in numbers]
        return KeptReply(worker="e", service="digits", node="edge0", entries=entries, next=following)

    def answer(request: KeptRequest) -> list[KeptReply]:
        asked.append(request.before)
        return [page(request.before)]

    async with told(answer) as kept:
        found = [each.number async for each in kept.entries(page(9), KeptRequest(before=9))]
    assert (found, asked) == ([8, 7, 6, 2], [7, 6, 4])
    pages[6] = ([], 6)
    async with told(answer) as kept:
        with pytest.raises(HalimedeError, match="its pages have no end"):
            [each async for each in kept.entries(page(9), KeptRequest(before=9))]


@pytest.mark.parametrize("step", [1, -1])
async def test_pages_without_an_end_are_an_error(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_SAMPLES", 20)
    one = entry(SAMPLE, 1)

    def page(wanted: KeptRequest) -> list[KeptReply]:
        return [KeptReply(worker="e", node="edge0", entries=[one], next=(wanted.before or 1000) + step)]

    async with told(page) as kept, asyncio.timeout(patience(10)):
        (first,) = await kept.pages(KeptRequest())
        with pytest.raises(HalimedeError, match="worker e on edge0: its pages have no end"):
            async for _ in kept.entries(first, KeptRequest()):
                pass


async def test_a_store_as_full_as_a_service_may_ask_for_is_listed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {field.name: field.type.type for field in type_info(KeepHardSamples).fields}  # type: ignore[attr-defined]
    one, most = entry(SAMPLE, 1), limits["max_samples"].le
    page = KeptReply(worker="e", node="edge0", entries=[one] * ((most - 1) // 9), next=10)
    following = [msgspec.structs.replace(page, next=number) for number in range(9, 1, -1)]
    following.append(msgspec.structs.replace(page, entries=[one], next=0))

    async def answer(_: KeptSamples, wanted: KeptRequest) -> KeptReply:
        return following[10 - wanted.before]

    monkeypatch.setattr(KeptSamples, "_first_reply", answer)  # a million entries over a bus would take minutes
    kept = KeptSamples(MemoryBus("asker", MemoryBroker()))
    count = 0
    async for _ in kept.entries(page, KeptRequest()):
        count += 1
    assert count == most
