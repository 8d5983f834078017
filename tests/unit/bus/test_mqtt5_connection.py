"""One connection of the lean client, with a broker at the other end that does what the test says."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import sys
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.bus.message import Announcement, Packet
from halimede.bus.mqtt import MqttSettings
from halimede.bus.mqtt5 import encoder, keepalive
from halimede.bus.mqtt5.buffers import SendBuffer
from halimede.bus.mqtt5.connect import connect
from halimede.bus.mqtt5.connection import Mqtt5Transport
from halimede.bus.settings import Client
from halimede.bus.transport import Ended
from halimede.errors import DisconnectedError, NotAllowedError
from halimede.messages import Frame
from halimede.topics import REQUEST
from tests.inbox import Packets
from tests.properties import examples
from tests.scripted import (
    CONNECT,
    DISCONNECT,
    HOST,
    PATIENCE,
    PINGREQ,
    PUBACK,
    PUBLISH,
    SUBSCRIBE,
    Scripted,
    accepted,
    connack,
    dialled,
    linked,
    loopback,
    message,
    packet,
    puback,
)
from tests.simulated import eventually

T = TypeVar("T")

MIB = 1024 * 1024
PONG = packet(0xD0)
#: seconds in which what must not come would come
QUIET_S = 0.1
SMALL = Packet("t", b"x")
EMPTY = Frame(id=bytes(16), encoding="raw", data=memoryview(b""))


async def within(answer: Awaitable[T]) -> T:
    async with asyncio.timeout(PATIENCE):
        return await answer


async def over(link: Mqtt5Transport) -> str:
    """Wait for the end of a link; return the reason."""
    return (await within(asyncio.shield(link.ended))).reason


def failures() -> list[dict[str, Any]]:
    """Return a list of what the loop is told of failed callbacks from now on."""
    contexts: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))
    return contexts


# --- the clock -----------------------------------------------------------------------------------------------------


async def test_a_silent_broker_is_pinged_and_left_when_it_does_not_answer() -> None:
    async with linked(keepalive_s=1) as (link, peer, _):
        for _ in range(2):
            await peer.takes(PINGREQ)
            peer.say(PONG)
        await peer.takes(PINGREQ)
        assert await over(link) == "no answer to a ping"


@pytest.mark.parametrize("ours", [600, 15])
async def test_a_broker_that_wants_a_shorter_keepalive_is_pinged_within_that(ours: int) -> None:
    async with linked(connack(properties=b"\x13\0\1"), keepalive_s=ours) as (link, peer, _):
        loop, pauses = asyncio.get_running_loop(), []
        for _ in range(4):
            began = loop.time()
            await peer.takes(PINGREQ)
            pauses.append(loop.time() - began)
            peer.say(PONG)
        # a broker waits for one and a half times its own keepalive; the first pause is ours, and a busy machine may
        # prolong one of the others
        assert min(pauses[1:]) < 1.5
        assert not link.ended.done()


async def test_a_broker_that_answers_pings_but_acknowledges_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepalive, "UNANSWERED_S", 0.3)
    async with linked(keepalive_s=2) as (link, peer, _):
        await asyncio.sleep(0.4)  # nothing to be answered, nothing missed
        answer = link.publish(SMALL)
        await peer.takes(PUBLISH)
        assert await over(link) == "no acknowledgement for 0.3 s"
        with pytest.raises(DisconnectedError, match="connection was lost"):
            await answer


async def test_asking_on_does_not_keep_a_broker_that_acknowledges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepalive, "UNANSWERED_S", 0.3)
    async with linked(keepalive_s=1) as (link, _, __):
        while not link.ended.done() and len(link._answers) < 30:
            link.publish(SMALL)
            await asyncio.sleep(0.05)
        assert link.ended.done()
        assert await over(link) == "no acknowledgement for 0.3 s"


async def test_a_broker_that_sends_but_takes_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or acknowledgements of what it sends would heap up here for ever."""
    monkeypatch.setattr(keepalive, "UNANSWERED_S", 0.3)
    async with linked(buffer=4096, keepalive_s=1) as (link, peer, came):
        link.publish(Packet("t", bytes(16 * MIB), qos=0)).cancel()
        for number in itertools.count(1):
            peer.say(message("t", b"x", number))
            await asyncio.sleep(0.01)
            if link.ended.done():
                break
        assert await over(link) == "no acknowledgement for 0.3 s"
        assert came


async def test_a_broker_behind_a_slow_line_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system holds for it goes on leaving; our ping, and the answer to the message, wait behind that."""
    monkeypatch.setattr(keepalive, "UNANSWERED_S", 1.0)
    async with linked(buffer=4096, limit=32 * 1024, keepalive_s=1) as (link, peer, _):
        answer = link.publish(Packet("t", bytes(MIB)))
        taken, size = 0, MIB + 10  # with its head
        while taken < size:
            taken += len(await peer.reader.readexactly(min(16 * 1024, size - taken)))
            await asyncio.sleep(0.03)
        peer.say(puback(1))
        assert await within(answer) == 0


# --- out -----------------------------------------------------------------------------------------------------------


@examples(25)
@given(st.lists(st.integers(0, 20_000) | st.integers(0, 3), max_size=300), st.integers(1, 60_000))
def test_all_that_is_put_leaves_in_order_whatever_the_socket_takes_at_a_time(sizes: list[int], taken: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, contextlib.closing(asyncio.new_event_loop()) as loop:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
        ours.setblocking(False)
        theirs.setblocking(False)
        failures: list[str] = []
        out, came = SendBuffer(ours, loop, keepalive.KeepAlive(0, 10), failures.append), bytearray()
        parts = [bytes([number % 251]) * size for number, size in enumerate(sizes) if size]
        for number, part in enumerate(parts):
            out.put(memoryview(part) if number % 2 else part)
        while out:
            out.flush()
            if out.blocked:
                came += theirs.recv(taken)
            assert len(came) <= out.sent_bytes <= out.put_bytes
        assert not failures
        while len(came) < out.put_bytes:
            came += theirs.recv(taken)
        assert came == b"".join(parts)
        assert out.sent_bytes == out.put_bytes == len(came)
        out.close()
        assert not out.put(b"more")


async def test_a_message_at_qos_0_is_answered_once_it_has_left() -> None:
    async with linked(buffer=4096) as (link, peer, _):
        small = link.publish(replace(SMALL, qos=0))
        assert not small.done()
        large = link.publish(Packet("t", bytes(16 * MIB), qos=0))
        behind = link.publish(replace(SMALL, qos=0))
        await eventually(small.done)
        await asyncio.sleep(QUIET_S)
        assert not large.done()
        assert not behind.done()
        for _ in range(3):
            await peer.takes(PUBLISH)
        assert await within(asyncio.gather(small, large, behind)) == [0, 0, 0]


async def test_what_has_not_left_when_the_connection_ends_is_told_so() -> None:
    async with linked(buffer=4096) as (link, peer, _):
        answers = [link.publish(Packet("t", bytes(16 * MIB), qos=qos)) for qos in (0, 1)]
        await asyncio.sleep(QUIET_S)
        peer.writer.transport.abort()
        for answer in answers:
            with pytest.raises(DisconnectedError, match="lost"):
                await answer
        for late in (link.publish(SMALL), link.publish(replace(SMALL, qos=0)), link.subscribe("t", 1)):
            with pytest.raises(DisconnectedError, match="lost"):
                await late


# --- answers -------------------------------------------------------------------------------------------------------


async def test_identifiers_begin_again_and_skip_those_that_wait_for_an_answer() -> None:
    async with linked() as (link, peer, _):

        async def drain() -> None:
            while await peer.reader.read(MIB):
                pass

        answers = [link.publish(SMALL) for _ in range(65_535)]
        with pytest.raises(DisconnectedError, match="none of 65535 packets"):
            link.publish(SMALL)
        draining = asyncio.create_task(drain())
        peer.say(puback(40_000), puback(7, 0x10), puback(7), puback(0))
        assert await within(asyncio.gather(answers[39_999], answers[6])) == [0, 0x10]
        # those two alone are free; the lower one comes first after the last
        link.publish(replace(SMALL, payload=b"again"))
        link.subscribe("t", 1)
        assert {7, 40_000} <= set(link._answers)
        with pytest.raises(DisconnectedError):
            link.unsubscribe("t")
        draining.cancel()


@pytest.mark.parametrize(("body", "reason"), [(b"", 0), (b"\x10", 0x10), (b"\x97\0", 0x97)])
async def test_an_acknowledgement_has_its_reason_in_each_of_its_forms(body: bytes, reason: int) -> None:
    async with linked() as (link, peer, _):
        answer = link.publish(SMALL)
        await peer.takes(PUBLISH)
        peer.say(packet(PUBACK, b"\0\1" + body))
        assert await within(answer) == reason


async def test_a_publish_that_nobody_waits_for_any_more_keeps_its_slot_until_it_is_answered() -> None:
    async with linked(window=1) as (link, peer, _):
        assert link.slots.take()
        link.publish_in_slot(SMALL, 6).cancel()
        assert (link.slots.take(), link.owed) == (False, 6)
        await peer.takes(PUBLISH)
        peer.say(puback(1))
        await eventually(lambda: link.slots.free)
        assert link.owed == 0


async def test_the_answer_to_a_subscription_frees_no_slot_of_a_publish() -> None:
    async with linked(window=1) as (link, peer, _):
        assert link.slots.take()
        answer = link.subscribe("t", 1)
        await peer.takes(SUBSCRIBE)
        peer.say(packet(0x90, b"\0\1\0\1"))
        assert await answer == 1
        assert (link.slots.free, link.owed) == (0, 0)


async def test_a_receive_maximum_of_one_is_kept_to(client: Client) -> None:
    async with accepted(client, b"\x21\0\1") as (bus, peer):
        sending = [asyncio.create_task(bus.send(SMALL, PATIENCE)) for _ in range(3)]
        for _ in range(3):
            body = await peer.takes(PUBLISH)
            assert await peer.silent(QUIET_S)
            peer.say(puback(int.from_bytes(body[3:5])))
        assert await asyncio.gather(*sending) == [0, 0, 0]


async def test_nothing_is_published_before_the_birth_is_acknowledged(client: Client) -> None:
    birth = Announcement(Packet("birth", b"here"))
    async with dialled(client, lambda: birth) as (bus, peer, _):
        peer.say(connack(properties=b"\x21\0\1"))
        body = await peer.takes(PUBLISH)
        assert body.endswith(b"here")
        assert not bus.connected
        assert bus.post(SMALL) is None
        with pytest.raises(DisconnectedError):
            await bus.send(SMALL, PATIENCE)
        peer.say(puback(int.from_bytes(body[7:9])))
        await bus.wait_connected(PATIENCE)
        sending = asyncio.create_task(bus.send(SMALL, PATIENCE))
        assert (await peer.takes_message()).endswith(b"x")
        assert await sending == 0


async def test_messages_are_acknowledged_when_that_is_asked_for_and_not_before() -> None:
    async with linked() as (link, peer, came):
        peer.say(message("a", b"1", 11), message("b", b"2"), message("c", bytes(100_000), 12, first=0x3A))
        await eventually(lambda: len(came) == 3)
        (one, first, key), (two, none, zero), (three, later, last) = came
        assert (key, zero, last, none) == (11, 0, 12, None)
        assert (one.payload, two.qos, three.duplicate, len(three.payload)) == (b"1", 0, True, 100_000)
        assert await peer.silent(QUIET_S)
        assert later()
        assert first()
        assert [await peer.take() for _ in range(2)] == [(PUBACK, b"\0\x0c"), (PUBACK, b"\0\x0b")]
        link.abort("over")
        assert not first()


async def test_what_follows_a_message_that_was_not_taken_does_not_wait_here_for_ever() -> None:
    """A broker sends it again, or to somebody else, once the connection is gone; before that it does not know."""
    contexts = failures()
    async with linked() as (link, peer, _):

        def fail(*_: object) -> None:
            raise RuntimeError("a defect")

        link._deliver = fail
        peer.say(message("t", b"1", 1), message("t", b"2", 2), message("t", b"3", 3))
        assert await over(link) == "a message was not accepted: RuntimeError"
    assert [str(context["exception"]) for context in contexts] == ["a defect"]


async def test_a_view_that_its_owner_releases_too_early_does_not_stand_in_the_way_for_ever() -> None:
    contexts = failures()
    async with linked() as (link, _, __):
        tail = memoryview(bytes(10))
        answer = link.publish(Packet("t", b"x", tail=tail))
        tail.release()
        assert "released memoryview" in await over(link)
        with pytest.raises(DisconnectedError, match="released memoryview"):
            await answer
    assert len(contexts) == 1


async def test_a_body_ends_with_the_bytes_of_a_view_whatever_its_shape() -> None:
    pixels = memoryview(bytes(range(240))).cast("B", (4, 20, 3))
    async with accepted("lean") as (bus, peer):
        sent = bus.publish_now(REQUEST.at(ns="n", service="s"), EMPTY, tail=pixels)
        assert (await peer.takes_message()).endswith(b"\xc4\xf0" + bytes(range(240)))
        assert sent is not None
        assert await sent == 0


# --- beginning and end ---------------------------------------------------------------------------------------------

ENDS = {
    packet(0xE0, b"\x8e"): ("the broker said: Session taken over", True),
    packet(0xE0, b"\x8b\x06\x1f\0\x03bye"): ("the broker said: Server shutting down (bye)", False),
    packet(0xE0, b"\xf3"): ("the broker said: reason 0xf3", False),
    packet(0xE0): ("the broker said: Normal disconnection", False),
}


@pytest.mark.parametrize("said", ENDS, ids=bytes.hex)
async def test_the_end_of_a_connection_has_the_brokers_reason(said: bytes) -> None:
    async with linked() as (link, peer, _):
        answer = link.subscribe("t", 1)
        peer.say(message("t", b"x"), said, message("t", b"behind it, to no effect"))
        reason, taken_over = ENDS[said]
        assert await over(link) == reason
        assert link.ended.result() == Ended(reason, taken_over=taken_over, explained=True)
        with pytest.raises(DisconnectedError, match="lost"):
            await answer


async def refused(word: bytes) -> DisconnectedError:
    async with Scripted() as broker:
        settings = MqttSettings(HOST, broker.port, client="lean")
        connecting = asyncio.create_task(connect(loopback(settings), settings, "me", None, lambda *_: None))
        peer = await broker.peer()
        await peer.takes(CONNECT)
        peer.say(word)
        with pytest.raises(DisconnectedError) as caught:
            await connecting
        assert await peer.reader.read() in {b"", b"\xe0\x02\x82\0"}
        return caught.value


@pytest.mark.parametrize(
    ("word", "name", "barred"),
    [
        (connack(0x85), "Client identifier not valid", True),
        (connack(0x86), "Bad user name or password", True),
        (connack(0x87), "Not authorized", True),
        (connack(0x8A), "Banned", True),
        (connack(0x8C), "Bad authentication method", True),
        (connack(0x88, b"\x1f\0\x04full"), "Server unavailable (full)", False),
        (connack(0x89), "Server busy", False),
        (connack(0x80), "Unspecified error", False),
        # a broker that knows no MQTT v5
        (packet(0x20, b"\0\1"), "Unsupported protocol version", False),
    ],
)
async def test_a_refused_client_is_told_why_and_is_barred_if_trying_again_does_not_help(
    word: bytes, name: str, barred: bool
) -> None:
    error = await refused(word)
    assert isinstance(error, NotAllowedError) is barred
    assert str(error) == f"the broker refused the connection: {name}"


async def test_a_peer_that_accepts_and_says_nothing_is_left_in_time_and_so_it_is_when_nobody_waits() -> None:
    async with Scripted() as broker:
        plain = MqttSettings(HOST, broker.port, client="lean", connect_timeout_s=0.2)
        for settings_, says in (
            (plain, "does not answer"),
            (replace(plain, secure=True), "no TLS handshake within 0.2 s"),
        ):
            with pytest.raises((DisconnectedError, TimeoutError), match=says):
                await connect(loopback(settings_), settings_, "me", None, lambda *_: None)
            assert await (await broker.peer()).reader.read()
            patient = replace(settings_, connect_timeout_s=60)
            connecting = asyncio.create_task(connect(loopback(patient), patient, "me", None, lambda *_: None))
            peer = await broker.peer()
            assert await peer.reader.read(1)
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting
            await peer.reader.read()


async def test_a_handshake_waits_for_a_silent_peer_without_trying_again(monkeypatch: pytest.MonkeyPatch) -> None:
    handshake, tries = ssl.SSLSocket.do_handshake, 0

    def do_handshake(sock: ssl.SSLSocket) -> None:
        nonlocal tries
        tries += 1
        handshake(sock)

    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", do_handshake)
    async with Scripted() as broker:
        secure = MqttSettings(HOST, broker.port, client="lean", connect_timeout_s=0.2, secure=True)
        with pytest.raises(TimeoutError, match="no TLS handshake"):
            await connect(loopback(secure), secure, "me", None, lambda *_: None)
    assert tries == 1


async def test_what_the_broker_grants_is_known() -> None:
    properties = b"\x21\0\x09\x27\0\1\0\0\x25\0\x2a\0"
    async with linked(connack(properties=properties, resumed=True), session_s=60, window=50) as (link, _, __):
        assert link.resumed
        assert link.max_packet == 65_536
        assert (link.grants.receive_maximum, link.grants.retain, link.grants.shared) == (9, False, False)
        assert [link.slots.take() for _ in range(10)] == [True] * 9 + [False]


@pytest.mark.parametrize("keep", [False, True])
async def test_a_close_leaves_behind_what_waits_and_says_whether_the_session_is_to_stay(keep: bool) -> None:
    async with linked(session_s=60) as (link, peer, _):
        link.publish(SMALL)
        closing = asyncio.create_task(link.close(keep=keep))
        await peer.takes(PUBLISH)
        assert await peer.take() == (DISCONNECT, b"\x04\0" if keep else b"\x04\x05\x11\0\0\0\0")
        peer.writer.close()
        await closing
        assert link.ended.done()


@pytest.mark.parametrize(("filter_", "options"), [("t", 0x01), ("$share/g/t", 0x21)])
async def test_subscribing_and_birth_leave_before_anything_else(client: Client, filter_: str, options: int) -> None:
    birth = Packet("birth", b"here", retain=True)
    async with dialled(client, lambda: Announcement(birth)) as (bus, peer, _):
        await bus.listen(filter_, 1, Packets(), 10)
        peer.say(connack())
        assert (await peer.takes(SUBSCRIBE))[3:] == encoder.long(filter_) + bytes((options,))
        assert (await peer.takes(PUBLISH)).endswith(b"here")
        peer.say(packet(0x90, b"\0\1\0\1"), puback(2))
        await bus.wait_connected(PATIENCE)


async def test_a_message_before_the_welcome_or_a_second_welcome_ends_the_connection() -> None:
    assert "at the wrong time" in str(await refused(message("t", b"x")))
    async with linked() as (link, peer, _):
        peer.say(connack())
        assert "a ConnAck at the wrong time" in await over(link)
        assert await peer.take() == (DISCONNECT, b"\x82\0")


def send_buffer(sock: Any) -> SendBuffer:
    return SendBuffer(sock, asyncio.get_running_loop(), keepalive.KeepAlive(0, 10), lambda _: None)


async def test_many_bytes_are_sent_at_once_and_few_with_those_that_follow() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        out = send_buffer(ours)
        out.put(bytes(8191))
        assert out.sent_bytes == 0
        await asyncio.sleep(0)
        assert out.sent_bytes == 8191
        out.put(bytes(4096), bytes(4096))
        assert out.sent_bytes == 8191 + 8192
        out.close()


class Socket:
    """Takes all bytes, and gives pings' answers without end; counts the calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def send(self, part: bytes) -> int:
        self.calls.append(1)
        return len(part)

    def sendmsg(self, parts: Iterable[bytes]) -> int:
        sizes = [len(part) for part in parts]
        self.calls.append(len(sizes))
        return sum(sizes)

    def recv_into(self, free: memoryview) -> int:
        self.calls.append(1)
        free[:] = PONG * (len(free) // len(PONG))
        return len(free)


@pytest.mark.parametrize(
    ("before", "unacked", "progress"), [(40, 50, True), (50, 50, False), (60, 50, False), (40, 0, False), (98, 1, True)]
)
async def test_a_peer_makes_progress_while_it_receives_more_and_lacks_some(
    monkeypatch: pytest.MonkeyPatch, before: int, unacked: int, progress: bool
) -> None:
    out = send_buffer(Socket())
    out.arrived_bytes, out.sent_bytes, out.put_bytes = before, 100, 100

    def ioctl(_: object, __: int, number: bytearray) -> None:
        assert len(number) == 4
        number[:] = unacked.to_bytes(4, sys.byteorder)

    monkeypatch.setattr("halimede.bus.mqtt5.buffers.fcntl.ioctl", ioctl)
    assert out.has_progress() is progress
    assert out.arrived_bytes == 100 - unacked


async def test_so_many_parts_are_sent_in_one_call() -> None:
    sock = Socket()
    out = send_buffer(sock)
    out.put(*[b"x"] * 513)
    out.flush()
    assert sock.calls == [256, 256, 1]


async def test_so_much_is_read_before_other_tasks_run() -> None:
    async with linked() as (link, _, __):
        ours, sock = link._sock, Socket()
        link._sock = sock  # type: ignore[assignment]
        link._readable()
        link._sock = ours
        assert len(sock.calls) == 16


@pytest.mark.parametrize(("size", "parts"), [(4095, 2), (4096, 3)])
async def test_a_payload_that_is_not_small_is_not_copied(size: int, parts: int) -> None:
    async with linked() as (link, _, __):
        payload, calls = bytes(size), list[tuple[object, ...]]()
        link._out.put = lambda *parts, sent=None: calls.append(parts) or True  # type: ignore[method-assign]
        link.publish(Packet("t", payload, tail=b"tail"))
        assert len(calls[0]) == parts
        assert (calls[0][1] is payload) == (parts == 3)


@pytest.mark.parametrize("session_s", [0, 60])
@pytest.mark.parametrize(
    ("client", "keepalive_s", "announced_s"),
    [("lean", 15, 15), ("lean", 1, 1), ("paho", 15, 10), ("paho", 4, 2), ("paho", 1, 1)],
)
async def test_a_client_says_when_it_counts_as_dead_what_it_takes_and_how_long_its_session_lives(
    client: Client, keepalive_s: int, announced_s: int, session_s: int
) -> None:
    """paho announces two thirds: a broker may wait longer than it should."""
    async with dialled(client, keepalive_s=keepalive_s, session_s=session_s, receive_maximum=7) as (_, __, body):
        assert body[:10] == b"\0\4MQTT\5" + bytes((0 if session_s else 2, 0, announced_s))
        for kind, value in ((0x11, session_s.to_bytes(4)), (0x21, b"\0\7"), (0x27, (16_842_752).to_bytes(4))):
            assert bytes((kind,)) + value in body[10:]


@pytest.mark.parametrize(("limit", "most"), [(b"", 268_435_455), (b"\x27\0\1\0\0", 65_536)])
async def test_messages_leave_without_waiting_for_answers_up_to_the_brokers_size(
    client: Client, limit: bytes, most: int
) -> None:
    async with accepted(client, limit) as (bus, peer):
        assert bus.max_packet == most
        for number in range(3):
            assert bus.post(replace(SMALL, payload=bytes((number,))))
        assert [(await peer.takes(PUBLISH))[-1] for _ in range(3)] == [0, 1, 2]
