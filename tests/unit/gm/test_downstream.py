"""What GM waits for after it has sent something to many nodes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

from halimede.api import Resource, parse
from halimede.bus import Bus
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.errors import DisconnectedError, HalimedeError, TooLargeError
from halimede.messages import Synced
from services.gm.downstream import FIRST_RESEND, LAST_RESEND, Attempt, Downstream
from tests.integration.gm_world import model
from tests.simulated import eventually, simulated


def resource(generation: int = 1) -> Resource[Any]:
    body = model("small")
    body["metadata"] |= {"uid": "u1", "generation": generation, "namespace": "default"}
    return parse(body)


def downstream(*online: str) -> Downstream:
    return Downstream(MemoryBus("gm", MemoryBroker()), 1, lambda node: node in online)


@simulated
async def test_the_last_node_that_is_there_ends_the_wait() -> None:
    down, small = downstream("a", "b"), resource()
    for node in ("a", "b", "away"):
        down.set_desired(node, small)
    assert not down.acknowledge("a", small.key, "u1", 1)
    assert down.acknowledge("b", small.key, "u1", 1)
    assert not down.acknowledge("b", small.key, "u1", 1), "once"
    assert not down.acknowledge("away", small.key, "u1", 1), "nobody waited for it"


@simulated
async def test_an_older_generation_or_another_uid_acknowledges_nothing() -> None:
    down, small = downstream("a"), resource(generation=2)
    down.set_desired("a", small)
    assert not down.acknowledge("a", small.key, "u1", 1)
    assert not down.acknowledge("a", small.key, "u0", 7)
    assert down.acknowledge("a", small.key, "u1", 2)


@simulated
async def test_a_node_that_leaves_or_lets_go_is_not_waited_for() -> None:
    down, small = downstream("a", "b", "c", "d"), resource()
    for node in ("a", "b", "c", "d"):
        down.set_desired(node, small)
    down.connection_changed("a")
    down.forget("b", small.key, "u1", 1)
    down.remove("c")
    assert down.acknowledge("d", small.key, "u1", 1)


@simulated
async def test_what_is_wanted_again_is_sent_once() -> None:
    down, small = downstream("a"), resource()
    for _ in range(3):
        down.set_desired("a", small)
    assert down.queue.waiting == 1
    assert down.acknowledge("a", small.key, "u1", 1)
    down.set_desired("a", small)
    assert down.reported_versions(small.key).keys() == {"a"}
    assert not down.acknowledge("a", small.key, "u1", 1), "it holds it: nothing was sent anew"


@simulated
async def test_what_a_node_forgot_is_awaited_again_after_its_sync() -> None:
    down, small = downstream("a"), resource()
    down.set_desired("a", small)
    down.acknowledge("a", small.key, "u1", 1)
    down.replace_reported("a", [])
    down.set_desired("a", small)
    assert down.acknowledge("a", small.key, "u1", 1)


@simulated
async def test_one_node_is_asked_for_without_a_walk_over_all() -> None:
    down, small = downstream("a"), resource()
    down.acknowledge("a", small.key, "u1", 1)
    assert down.may_hold(small.key, "a")
    assert not down.may_hold(small.key, "b")


def test_what_many_are_asked_for_at_once_is_repeated_later() -> None:
    alone, crowded = Attempt(0.0), Attempt(0.0)
    alone.schedule_next(10.0)
    crowded.schedule_next(10.0, patience=2.0)
    assert alone.due == 10.0 + FIRST_RESEND
    assert crowded.due == 10.0 + FIRST_RESEND + 2.0


class Slow:
    """A connection whose broker answers when a test says so."""

    connected = True

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[int]] = []
        self.error: HalimedeError | None = None

    def publish_now(self, *_: object, **__: object) -> asyncio.Future[int]:
        if self.error:
            raise self.error
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]


@contextlib.asynccontextmanager
async def sending(bus: Slow) -> AsyncIterator[Downstream]:
    down = Downstream(cast("Bus", bus), 1, lambda _: True)
    run = asyncio.create_task(down.queue.run())
    yield down
    run.cancel()


@simulated
async def test_no_node_waits_for_the_brokers_word_on_another() -> None:
    bus = Slow()
    async with sending(bus) as down:
        for number in range(300):
            down.set_desired(f"n{number}", resource())
        await eventually(lambda: len(bus.answers) == 300, FIRST_RESEND / 2)
        assert down.sender.sent == 0
        for answer in bus.answers:
            answer.set_result(0)
        await eventually(lambda: (down.sender.sent, down.sender.resent) == (300, 0), FIRST_RESEND / 2)


@simulated
async def test_what_was_under_way_on_a_lost_connection_is_sent_again_once_it_is_back() -> None:
    bus = Slow()
    async with sending(bus) as down:
        down.set_desired("a", resource())
        await eventually(lambda: len(bus.answers) == 1)
        bus.answers[0].set_exception(DisconnectedError("gone"))
        await asyncio.sleep(0)
        down.wake()
        await eventually(lambda: len(bus.answers) == 2, FIRST_RESEND / 2)
        bus.answers[1].set_result(0)
        await eventually(lambda: (down.sender.sent, down.sender.resent) == (1, 1))


@simulated
async def test_what_the_broker_refuses_is_tried_again_as_seldom_as_can_be() -> None:
    bus = Slow()
    async with sending(bus) as down:
        down.set_desired("a", resource())
        await eventually(lambda: len(bus.answers) == 1)
        bus.answers[0].set_result(0x87)
        await asyncio.sleep(LAST_RESEND - 1)
        assert (len(bus.answers), down.sender.sent) == (1, 0)
        await eventually(lambda: len(bus.answers) == 2, 2)


@simulated
async def test_a_version_that_is_on_its_way_is_not_sent_sooner_because_it_is_read_anew() -> None:
    bus = Slow()
    async with sending(bus) as down:
        down.set_desired("a", resource())
        await eventually(lambda: len(bus.answers) == 1)
        for _ in range(3):
            down.set_desired("a", resource())
            await asyncio.sleep(FIRST_RESEND / 4)
        assert len(bus.answers) == 1
        down.set_desired("a", resource(generation=2))
        await eventually(lambda: len(bus.answers) == 2, FIRST_RESEND / 8)


@simulated
async def test_what_is_too_large_keeps_no_other_node_from_anything() -> None:
    bus = Slow()
    async with sending(bus) as down:
        bus.error = TooLargeError("too large")
        down.set_desired("a", resource())
        await asyncio.sleep(1)
        bus.error = None
        down.set_desired("b", resource())
        await eventually(lambda: len(bus.answers) == 1)
        assert down.sender.sent == 0


class SlowSync:
    """A connection whose broker acknowledges the end of a sync's answer when a test says so."""

    connected = True

    def __init__(self) -> None:
        self.ends: list[Synced] = []
        self.acknowledge = asyncio.Event()

    async def publish(self, _: object, body: object, **__: object) -> None:
        if isinstance(body, Synced):
            self.ends.append(body)
            await self.acknowledge.wait()


@simulated
async def test_a_second_sync_during_an_answer_has_an_answer_of_its_own() -> None:
    bus, small = SlowSync(), resource()
    down = Downstream(cast("Bus", bus), 1, lambda _: True)
    run = asyncio.create_task(down.queue.run())
    down.replace_reported("a", [])
    down.answer("a", unknown=1)
    await eventually(lambda: len(bus.ends) == 1)
    down.replace_reported("a", [])
    down.set_desired("a", small)
    down.answer("a", unknown=2)
    bus.acknowledge.set()
    await eventually(lambda: len(bus.ends) == 2)
    await eventually(lambda: not down.is_answering("a"))
    await asyncio.sleep(2 * LAST_RESEND)
    run.cancel()
    assert [(end.unknown, end.count) for end in bus.ends] == [(1, 0), (2, 1)]
