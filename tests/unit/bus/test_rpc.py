"""Requests and replies: who is waited for how long, and what a server replies to whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

import pytest

from halimede import topics
from halimede.bus import Delivery, Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.rpc import RpcClient, RpcServer
from halimede.errors import InvalidFieldError, NoSubscriberError, RefusedError, TooLargeError
from halimede.messages import ApiReply, ApiRequest
from tests.inbox import Inbox
from tests.worlds import connected

pytestmark = pytest.mark.simulated

REQUESTS, REPLIES = topics.API_REQUEST, topics.API_REPLY


@asynccontextmanager
async def pair(max_packet: int = 100_000) -> AsyncIterator[tuple[RpcClient[ApiReply], MemoryBus]]:
    """A client whose requests go to another bus."""
    broker = MemoryBroker(max_packet=max_packet)
    async with connected(MemoryBus("me", broker)) as bus, connected(MemoryBus("server", broker)) as server:
        client = RpcClient(bus, REPLIES.at(client="me"))
        await client.start()
        yield client, server


async def gather(client: RpcClient[ApiReply], most: int) -> tuple[list[str], float]:
    """Return the replies to a request, and the seconds that they took."""
    began = asyncio.get_running_loop().time()
    replies = client.gather(
        REQUESTS.at(client="me"), ApiRequest(op="list"), first_s=2.0, quiet_s=0.5, longest_s=3.0, most=most
    )
    outcomes = [reply.body.outcome async for reply in replies]
    return outcomes, round(asyncio.get_running_loop().time() - began, 2)


@pytest.mark.parametrize(
    ("times", "most", "count", "seconds"),
    [
        ([], 10, 0, 2.0),
        ([1.9], 10, 1, 2.4),
        ([1.0, 1.4], 10, 2, 1.9),
        ([1.0, 1.6], 10, 1, 1.5),
        ([0.4 * number for number in range(1, 20)], 100, 7, 3.0),
        ([0.1, 0.2, 0.3], 2, 2, 0.2),
    ],
    ids=["none", "one", "two", "a late one", "ever more", "enough"],
)
async def test_replies_are_gathered_until_it_is_quiet_or_enough(
    times: list[float], most: int, count: int, seconds: float
) -> None:
    async with pair() as (client, server), asyncio.TaskGroup() as group:

        async def reply_at(delivery: Delivery[ApiRequest], time: float) -> None:
            await asyncio.sleep(time)
            await server.reply(delivery, REPLIES, ApiReply(outcome=str(time)))

        async def answer(delivery: Delivery[ApiRequest]) -> None:
            tasks.extend(group.create_task(reply_at(delivery, time)) for time in times)

        tasks: list[asyncio.Task[None]] = []
        await server.subscribe(REQUESTS.filter(), answer)
        assert await gather(client, most) == ([str(time) for time in times[:count]], seconds)
        for task in tasks:
            task.cancel()


async def test_replies_are_not_waited_for_where_nobody_listens() -> None:
    async with pair() as (client, _):
        with pytest.raises(NoSubscriberError):
            await gather(client, 1)
        with pytest.raises(NoSubscriberError):
            await client.ask(REQUESTS.at(client="me"), ApiRequest(op="list"), timeout_s=1)


async def test_a_request_expires_with_the_second_of_its_deadline_and_a_later_reply_is_counted() -> None:
    inbox = Inbox[ApiRequest]()
    async with pair() as (client, server):
        await server.subscribe(REQUESTS.filter(), inbox)
        for timeout_s in (0.5, 1.0, 2.0):
            with pytest.raises(TimeoutError):
                await client.ask(REQUESTS.at(client="me"), ApiRequest(op="version"), timeout_s=timeout_s)
        await server.reply(inbox.deliveries[-1], REPLIES, ApiReply())
        await asyncio.sleep(1)
        assert client.late == 1
    assert [delivery.packet.expiry_s for delivery in inbox.deliveries] == [1, 2, 3]


async def test_second_replies_and_those_that_are_not_accepted_are_passed_over() -> None:
    async with pair() as (client, server):

        async def answer(delivery: Delivery[ApiRequest]) -> None:
            for outcome in ("odd", "good", "good"):
                await server.reply(delivery, REPLIES, ApiReply(outcome=outcome))

        await server.subscribe(REQUESTS.filter(), answer)
        with client.expect_replies(accepts=lambda delivery: delivery.body.outcome == "good") as pending:
            assert await client.send(REQUESTS.at(client="me"), ApiRequest(op="list"), pending)
            await asyncio.sleep(0.1)
            assert (pending.queue.qsize(), client.late) == (1, 1)


@pytest.mark.parametrize("is_replaced", [True, False])
async def test_a_reply_that_is_too_large_is_replaced_or_a_failure(is_replaced: bool) -> None:
    def substitute(_: TooLargeError) -> ApiReply:
        return ApiReply(outcome="too large")

    async def answer(delivery: Delivery[ApiRequest]) -> ApiReply | None:
        return ApiReply(outcome="x" * 10_000) if delivery.body.op == "list" else None

    outcomes: list[str] = []
    async with pair(max_packet=5000) as (client, bus):
        too_large = substitute if is_replaced else None
        await RpcServer(bus, REQUESTS.filter(), REPLIES, answer, too_large=too_large).start()
        for op in ("list", "get"):
            with suppress(TimeoutError):
                reply = await client.ask(REQUESTS.at(client="me"), ApiRequest(op=op), timeout_s=1)
                outcomes.append(reply.body.outcome)
        assert (outcomes, bus.stats.failed_handlers) == ((["too large"], 0) if is_replaced else ([], 1))


async def test_a_reply_goes_to_the_client_that_the_topic_names_alone() -> None:
    inbox = Inbox[ApiRequest]()
    async with pair() as (client, bus):
        await RpcServer(bus, REQUESTS.filter(), REPLIES, inbox).start()
        with pytest.raises(TimeoutError):
            await client.ask(REQUESTS.at(client="another"), ApiRequest(op="list"), timeout_s=1)
        assert (inbox.deliveries, bus.stats.rejected) == ([], 1)


@pytest.mark.parametrize(
    "response",
    [
        "node/n/default/sedna/downstream/models/m1/delete",
        "",
        "sedna/api/reply/me/x",
        "sedna/api/reply/A B",
        "$SYS/broker",
    ],
)
async def test_a_request_with_a_hostile_response_topic_is_not_replied_to(response: str) -> None:
    packet = Packet(REQUESTS.at(client="me").text, b"", response_topic=response)
    request = Delivery(REQUESTS.at(client="me"), {"client": "me"}, ApiRequest(op="version"), packet)
    with pytest.raises(InvalidFieldError):
        await MemoryBus("server", MemoryBroker()).reply(request, REPLIES, ApiReply())


@pytest.mark.parametrize("optional", [True, False])
async def test_a_server_may_do_without_its_subscription_if_that_is_optional(optional: bool) -> None:
    class Refusing(MemoryBus):
        async def listen(self, *_: Any, **__: Any) -> None:
            raise RefusedError("requests", 0x87, "not authorised")

    bus = Refusing("server", MemoryBroker())
    server = RpcServer(bus, REQUESTS.filter(), REPLIES, Inbox[ApiRequest](), optional=optional)
    with nullcontext() if optional else pytest.raises(RefusedError):
        await server.start()
