"""What GM records of each node: what it should hold, what it holds, and which messages that difference takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from halimede.api import Resource, parse
from halimede.bus import Bus
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import Delete, Held, Synced
from halimede.names import Key
from services.gm import downstream as module
from services.gm.downstream import Attempt, Downstream, SentVersion
from tests.integration.gm_world import model
from tests.simulated import eventually, simulated


def resource(generation: int = 1, name: str = "small", uid: str = "u1") -> Resource[Any]:
    body = model(name)
    body["metadata"] |= {"uid": uid, "generation": generation, "namespace": "default"}
    return parse(body)


def downstream(*online: str) -> Downstream:
    return Downstream(MemoryBus("gm", MemoryBroker()), 1, lambda node: node in online)


SMALL = resource()
KEY = SMALL.key


def holding(uid: str = "u1", generation: int = 1, key: Key = KEY) -> Held:
    return Held(plural=key.plural, namespace=key.namespace, name=key.name, uid=uid, generation=generation)


class Recorder:
    """A connection that records what is sent, and when; its broker answers at once."""

    def __init__(self) -> None:
        self.connected = True
        self.sent: list[tuple[str, Any, float]] = []

    def publish_now(self, address: Any, body: Any, **_: Any) -> asyncio.Future[int]:
        self.sent.append((address.text, body, asyncio.get_running_loop().time()))
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        answer.set_result(0)
        return answer

    async def publish(self, address: Any, body: Any, **_: Any) -> None:
        self.sent.append((address.text, body, asyncio.get_running_loop().time()))

    def of(self, kind: type) -> list[Any]:
        return [body for _, body, _ in self.sent if isinstance(body, kind)]


class Sending:
    """GM's records with their queue at work."""

    def __init__(self, online: Iterable[str] = ("a", "b")) -> None:
        self.bus, self.online = Recorder(), set(online)
        self.down = Downstream(cast("Bus", self.bus), 1, lambda node: node in self.online)

    async def __aenter__(self) -> Sending:
        self.task = asyncio.create_task(self.down.queue.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.mark.parametrize(
    ("version", "covers"), [(("u1", 2), True), (("u1", 3), True), (("u1", 1), False), (("u0", 9), False)]
)
def test_a_version_covers_the_same_and_earlier_generations_of_its_uid(version: tuple[str, int], covers: bool) -> None:
    assert SentVersion(*version).is_at_least(SentVersion("u1", 2)) is covers


def test_attempts_are_counted_and_their_distances_grow_to_half_a_minute() -> None:
    attempt, due = Attempt(0.0), []
    assert attempt.count == 0
    for count in range(1, 9):
        attempt.schedule_next(100.0)
        assert attempt.count == count
        due.append(attempt.due - 100.0)
    assert due == [1, 2, 4, 8, 16, 30, 30, 30]


@simulated
async def test_a_message_is_repeated_until_it_is_acknowledged() -> None:
    async with Sending() as world:
        world.down.set_desired("a", SMALL)
        await asyncio.sleep(20)
        times = [at for _, _, at in world.bus.sent]
        assert times == pytest.approx([0, 1, 3, 7, 15], abs=0.1)
        assert (world.down.sender.sent, world.down.sender.resent) == (5, 4)
        assert world.down.acknowledge("a", KEY, "u1", 1)
        await asyncio.sleep(100)
        assert len(world.bus.sent) == 5
        assert world.down.acknowledgements == 1


@simulated
async def test_a_delete_is_repeated_until_the_node_holds_nothing_or_another_uid() -> None:
    async with Sending() as world:
        down = world.down
        for node in ("a", "b"):
            down.acknowledge(node, KEY, "u1", 1)
            down.forget(node, KEY, "u1", 4)
        await asyncio.sleep(2)
        assert world.bus.of(Delete) == [Delete(uid="u1", generation=4)] * 4
        assert down.surplus_versions("a") == {}
        down.clear_reported("a", KEY)
        down.acknowledge("b", KEY, "u1", 1)
        await asyncio.sleep(2)
        assert len(world.bus.of(Delete)) == 5
        assert (down.may_hold(KEY, "a"), down.may_hold(KEY, "b"), down.acknowledgements) == (False, True, 1)
        down.acknowledge("b", KEY, "u2", 1)
        await asyncio.sleep(60)
        assert (len(world.bus.of(Delete)), down.acknowledgements) == (5, 2)


@simulated
async def test_nothing_is_sent_to_a_node_that_is_offline_or_without_a_broker() -> None:
    async with Sending() as world:
        world.bus.connected = False
        world.down.set_desired("a", SMALL)
        world.down.set_desired("away", SMALL)
        await asyncio.sleep(60)
        assert not world.bus.sent
        world.bus.connected = True
        world.down.wake()
        await asyncio.sleep(0.1)
        assert ["a" in topic.split("/") for topic, _, _ in world.bus.sent] == [True]


@pytest.mark.parametrize("due", ["insert", "delete", "sync"])
@simulated
async def test_each_kind_of_message_that_waits_is_sent_once_the_broker_is_back(due: str) -> None:
    async with Sending() as world:
        world.bus.connected = False
        if due == "insert":
            world.down.set_desired("a", SMALL)
        elif due == "delete":
            world.down.forget("a", KEY, "u1", 1)
        else:
            world.down.answer("a", 0)
        await asyncio.sleep(1)
        world.bus.connected = True
        assert not world.bus.sent
        world.down.wake()
        await asyncio.sleep(0.1)
        assert len(world.bus.sent) == 1


@simulated
async def test_a_node_that_came_online_has_two_seconds_to_send_its_sync() -> None:
    async with Sending() as world:
        world.down.set_desired("a", SMALL)
        world.down.connection_changed("a")
        await asyncio.sleep(1.9)
        assert not world.bus.sent
        await asyncio.sleep(0.2)
        assert len(world.bus.sent) == 1
        world.down.connection_changed("b")
        world.down.replace_reported("b", [])
        world.down.set_desired("b", SMALL)
        world.down.answer("b", 3)
        assert world.down.is_answering("b")
        await asyncio.sleep(0.1)
        assert world.bus.of(Synced) == [Synced(epoch=1, count=1, unknown=3)]
        assert not world.down.is_answering("b")


@simulated
async def test_a_sync_replaces_what_a_node_holds_and_a_lost_generation_is_that_of_its_report() -> None:
    down, other = downstream("a"), resource(name="other", uid="u2").key
    down.acknowledge("a", KEY, "u1", 7)
    down.acknowledge("a", other, "u2", 1)
    assert down.replace_reported("a", [holding(generation=0)]) == {KEY, other}
    assert down.reported_versions(KEY) == {"a": SentVersion("u1", 7)}
    assert down.reported_versions(other) == {}
    assert (down.holders(KEY), down.holders(other)) == (frozenset("a"), frozenset())
    down.replace_reported("a", [holding(generation=3)])
    assert down.reported_versions(KEY) == {"a": SentVersion("u1", 3)}
    down.replace_reported("a", [holding(uid="u9", generation=0)])
    assert down.reported_versions(KEY) == {"a": SentVersion("u9", 0)}
    assert down.surplus_versions("a") == {KEY: SentVersion("u9", 0)}
    down.keep("a", KEY, "u9")
    assert down.surplus_versions("a") == {}


@simulated
async def test_a_delete_of_one_uid_leaves_another_one_alone() -> None:
    down = downstream("a")
    down.set_desired("a", SMALL)
    down.acknowledge("a", KEY, "u1", 1)
    down.forget("a", KEY, "u0", 1)
    assert down.keys("a") == {KEY}
    down.set_desired("a", resource(generation=2))
    assert down.acknowledge("a", KEY, "u1", 2), "it is still to be held"
    down.forget("a", KEY, "u1", 2)
    assert down.surplus_versions("a") == {}, "a delete is on its way"


@simulated
async def test_deletes_that_wait_for_a_node_are_bounded_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DELETES", 2)
    down = downstream()
    keys = [resource(name=f"m{number}").key for number in range(3)]
    for key in keys:
        down.forget("a", key, "u1", 1)
    assert down.keys("a") == set(keys[1:])
    down.forget("a", keys[2], "u1", 2)
    assert down.keys("a") == set(keys[1:])


@simulated
async def test_a_withdrawn_resource_is_wanted_of_no_node_and_a_dropped_one_is_held_by_none() -> None:
    down = downstream("a", "b")
    for node in ("a", "b"):
        down.set_desired(node, SMALL)
    down.acknowledge("a", KEY, "u1", 1)
    down.withdraw(KEY)
    assert down.surplus_versions("a") == {KEY: SentVersion("u1", 1)}
    assert down.keys("b") == set()
    down.forget("a", KEY, "u1", 1)
    down.drop(KEY, "u1")
    assert (down.keys("a"), down.holders(KEY)) == (set(), frozenset())
    assert down.remove("a") == set()


@simulated
async def test_a_repetition_goes_to_the_nodes_that_hold_and_should_hold_it() -> None:
    async with Sending() as world:
        down = world.down
        for node in ("a", "b"):
            down.set_desired(node, SMALL)
            down.acknowledge(node, KEY, "u1", 1)
        down.keep("b", KEY, "u1")
        await asyncio.sleep(1)
        assert not world.bus.sent
        down.repeat(KEY)
        down.repeat(KEY)
        await asyncio.sleep(0.5)
        assert ["a" in topic.split("/") for topic, _, _ in world.bus.sent] == [True]


@simulated
async def test_a_resource_that_a_node_lost_is_sent_again_and_one_on_its_way_is_not_sent_twice() -> None:
    async with Sending() as world:
        down = world.down
        down.set_desired("a", SMALL)
        await eventually(lambda: len(world.bus.sent) == 1)
        down.clear_reported("a", KEY)
        await asyncio.sleep(0.5)
        assert len(world.bus.sent) == 1
        down.acknowledge("a", KEY, "u1", 1)
        down.clear_reported("a", KEY)
        await eventually(lambda: len(world.bus.sent) == 2)


@simulated
async def test_if_many_nodes_must_answer_a_repetition_comes_later() -> None:
    nodes = [f"n{number}" for number in range(1000)]
    async with Sending(nodes) as world:
        for node in nodes:
            world.down.set_desired(node, SMALL)
        await asyncio.sleep(2.9)
        assert len(world.bus.sent) == 1000
        await asyncio.sleep(0.3)
        assert len(world.bus.sent) == 2000
