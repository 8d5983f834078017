"""What a bus does for its callers whatever moves its packets: queues, deadlines, hooks, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from halimede import topics
from halimede.bus import Delivery, Packet, message
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.message import check_reason
from halimede.bus.rpc import RpcClient, RpcServer, new_ticket
from halimede.errors import DisconnectedError, RefusedError
from halimede.messages import ApiReply, DeadLetter, Presence, Sync
from tests.inbox import Inbox
from tests.worlds import connected

pytestmark = pytest.mark.simulated

SYNC, PRESENCE = topics.SYNC.at(node="n"), topics.PRESENCE.at(node="n")
REQUEST, REPLY = topics.API_REQUEST.at(client="me"), topics.API_REPLY.at(client="me")


async def ignore(_: Delivery[Any]) -> None: ...


async def no_reply(_: Delivery[Any]) -> ApiReply | None:
    return None


@pytest.mark.parametrize(
    ("subscribe", "topic", "most"),
    [
        (lambda bus: bus.subscribe(topics.SYNC.filter(), ignore), SYNC.text, 1000),
        (lambda bus: RpcServer(bus, topics.API_REQUEST.filter(), topics.API_REPLY, no_reply).start(), REQUEST.text, 32),
        (lambda bus: RpcClient(bus, REPLY).start(), REPLY.text, 1000),
    ],
    ids=["subscription", "server", "client"],
)
async def test_so_many_messages_wait_for_a_handler(
    subscribe: Callable[[MemoryBus], Awaitable[None]], topic: str, most: int
) -> None:
    broker = MemoryBroker()
    async with connected(MemoryBus("me", broker)) as bus:
        await subscribe(bus)
        for _ in range(most + 3):
            broker.route(Packet(topic, b'{"epoch":1}', qos=0))
        await asyncio.sleep(1)
        assert bus.stats.dropped == 3


@pytest.mark.parametrize(
    "publish",
    [
        lambda bus: bus.send(Packet("t", b"x")),
        lambda bus: bus.publish(SYNC, Sync(epoch=1)),
        lambda bus: bus.clear(PRESENCE),
    ],
    ids=["send", "publish", "clear"],
)
async def test_an_acknowledgement_is_waited_for_ten_seconds(publish: Callable[[MemoryBus], Awaitable[object]]) -> None:
    broker, loop = MemoryBroker(), asyncio.get_running_loop()
    async with connected(MemoryBus("me", broker)) as bus:
        broker.faults.delay_s = (100.0, 100.0)
        began = loop.time()
        with pytest.raises(DisconnectedError, match="no acknowledgement within 10 s"):
            await publish(bus)
        assert loop.time() - began == 10


async def test_a_message_is_published_as_its_topic_says_unless_the_caller_does() -> None:
    packets = list[Packet]()

    class Recording(MemoryBus):
        async def send(self, packet: Packet, timeout_s: float = 10.0) -> int:
            packets.append(packet)
            return 0

    bus, body = Recording("me", MemoryBroker()), Presence(node="n", epoch=1, online=True)
    assert await bus.publish(PRESENCE, body)
    await bus.publish(SYNC, Sync(epoch=1), qos=0, reply_to=REPLY, correlation=b"c", expiry_s=7, properties={"a": "b"})
    await bus.clear(PRESENCE)
    _, chosen, clearing = packets
    assert [(packet.qos, packet.retain) for packet in packets] == [(1, True), (0, False), (1, True)]
    assert (chosen.response_topic, chosen.correlation) == (REPLY.text, b"c")
    assert (chosen.expiry_s, chosen.properties) == (7, (("a", "b"),))
    assert clearing == Packet(PRESENCE.text, b"", 1, retain=True)


async def test_hooks_of_a_connection_that_fail_are_logged_and_stop_no_other() -> None:
    calls, bus = list[str](), MemoryBus("me", MemoryBroker())

    async def fail(error: Exception | None, name: str) -> None:
        calls.append(name)
        if error:
            raise error

    for name, error in (("cut", DisconnectedError("cut")), ("defect", ValueError("defect")), ("fine", None)):
        bus.on_connect(partial(fail, error, name))
    with capture_logs() as logs:
        async with connected(bus):
            await asyncio.sleep(1)
    assert calls == ["cut", "defect", "fine"]
    events = [(entry["event"], entry["log_level"]) for entry in logs if "hook" in entry["event"]]
    assert events == [("connect hook interrupted", "warning"), ("connect hook failed", "error")]


@pytest.mark.parametrize("now", [False, True], ids=["handler", "plain handler"])
async def test_the_newest_ten_dead_letters_without_a_connection_are_published_on_the_next(now: bool) -> None:
    broker, inbox = MemoryBroker(), Inbox[DeadLetter]()

    async def write(bus: MemoryBus, name: object) -> None:
        if now:
            bus._dead_letter_now(Packet(f"t/{name}", b""), "bad")
        else:
            await bus.dead_letter(Packet(f"t/{name}", b""), "bad")

    async with connected(MemoryBus("gm", broker)) as gm, MemoryBus("me", broker) as bus:
        await gm.subscribe(topics.DEAD_LETTER.filter(), inbox)
        bus.cut()
        for number in range(12):
            await write(bus, number)
            await asyncio.sleep(0.2)
        assert inbox.deliveries == []
        bus.heal()
        await bus.wait_connected(10)
        await asyncio.sleep(1)
        assert inbox.read(lambda body: body.topic) == [f"t/{number}" for number in range(2, 12)]
        await write(bus, "now")
        await asyncio.sleep(1)
        assert inbox.read(lambda body: body.topic)[10:] == ["t/now"]


@pytest.mark.parametrize("accepted", [False, True])
async def test_a_message_of_names_that_are_not_accepted_is_not_decoded(accepted: bool) -> None:
    names_asked, inbox = list[str](), Inbox[Sync]()

    async def accepts(names: Any) -> bool:
        names_asked.append(names["node"])
        return accepted

    async with connected(MemoryBus("me", MemoryBroker())) as bus:
        await bus.subscribe(topics.SYNC.filter(), inbox, accepts=accepts)
        for payload in (b"nonsense", b'{"epoch":1}', b""):
            await bus.send(Packet(SYNC.text, payload))
        await asyncio.sleep(1)
        assert names_asked == ["n"] * 3
        assert (inbox.read(lambda sync: sync.epoch), bus.stats.rejected) == (([1], 2) if accepted else ([], 0))


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (0x00, ""),
        (0x10, ""),
        (0x7F, ""),
        (0x80, "unspecified error"),
        (0x87, "not authorised"),
        (0x91, "identifier in use"),
        (0xFF, "refused"),
    ],
)
def test_a_reason_code_of_a_failure_is_an_error_that_says_why_and_others_are_returned(reason: int, text: str) -> None:
    with pytest.raises(RefusedError, match=f"t: .*{text}") if text else nullcontext():
        assert check_reason("t", reason) == reason


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [(0x97, "", "Quota exceeded"), (0x05, "", "reason 0x05"), (0x97, "full", "Quota exceeded (full)")],
)
def test_a_reason_has_the_name_of_the_standard_and_the_brokers_text(code: int, text: str, expected: str) -> None:
    assert message.name(code, text) == expected


async def test_a_retained_message_that_is_cleared_is_no_unreadable_one() -> None:
    async with connected(MemoryBus("me", MemoryBroker())) as bus:
        await bus.subscribe(topics.PRESENCE.filter(), ignore)
        await bus.clear(PRESENCE)
        await asyncio.sleep(1)
        assert bus.stats.rejected == 0


def test_a_ticket_is_long_enough_to_be_guessed_by_nobody() -> None:
    assert len(new_ticket()) == 16
    assert new_ticket() != new_ticket()
