"""What GM records of each node: what it should hold and holds, which messages that takes, and what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Any, cast

import pytest

from halimede.api import Resource, parse
from halimede.bus import Bus
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.errors import DisconnectedError, HalimedeError, TooLargeError
from halimede.messages import Delete, Held, Synced
from halimede.names import Key
from services.gm.downstream import Downstream, SentVersion
from tests.integration.gm_world import model
from tests.simulated import eventually

pytestmark = pytest.mark.simulated
#: stated here again, so that a change in the product is noticed
FIRST_RESEND, LAST_RESEND = 1.0, 30.0


def resource(generation: int = 1, name: str = "small", uid: str = "u1") -> Resource[Any]:
    body = model(name)
    body["metadata"] |= {"uid": uid, "generation": generation, "namespace": "default"}
    return parse(body)


def downstream(*online: str) -> Downstream:
    return Downstream(MemoryBus("gm", MemoryBroker()), 1, lambda node: node in online)


SMALL = resource()
KEY = SMALL.key


def holding(uid: str = "u1", generation: int = 1, session: str | None = None) -> Held:
    return Held(**KEY._asdict(), uid=uid, generation=generation, session=session)


class Connection:
    """A connection that records what is sent, and when. Its broker answers at once or, if ``slow``, as a test says."""

    def __init__(self, *, slow: bool = False) -> None:
        self.connected, self.slow = True, slow
        self.sent: list[tuple[str, Any, float]] = []
        self.stamps: list[Mapping[str, str]] = []
        self.answers: list[asyncio.Future[int]] = []
        #: what a message is refused with
        self.error: HalimedeError | None = None
        #: of the ends of a sync's answers, if slow
        self.acknowledge = asyncio.Event()
        #: called after each message
        self.on_sent: Callable[[], object] = lambda: None

    def publish_now(self, address: Any, body: Any, *, properties: Mapping[str, str]) -> asyncio.Future[int]:
        if self.error:
            raise self.error
        self._record(address, body, properties)
        self.answers.append(asyncio.get_running_loop().create_future())
        if not self.slow:
            self.answers[-1].set_result(0)
        return self.answers[-1]

    async def publish(self, address: Any, body: Any, *, properties: Mapping[str, str]) -> None:
        self._record(address, body, properties)
        if self.slow and isinstance(body, Synced):
            await self.acknowledge.wait()

    def _record(self, address: Any, body: Any, properties: Mapping[str, str]) -> None:
        self.sent.append((address.text, body, asyncio.get_running_loop().time()))
        self.stamps.append(properties)
        self.on_sent()

    def of(self, kind: type) -> list[Any]:
        return [body for _, body, _ in self.sent if isinstance(body, kind)]


class Sending:
    """GM's records with their queue at work; ``away`` nodes are offline."""

    def __init__(self, *, slow: bool = False, away: Collection[str] = ()) -> None:
        self.bus = Connection(slow=slow)
        self.down = Downstream(cast("Bus", self.bus), 1, lambda node: node not in away)

    async def __aenter__(self) -> Sending:
        self.task = asyncio.create_task(self.down.queue.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def world() -> AsyncIterator[Sending]:
    async with Sending(away={"away"}) as sending:
        yield sending


@pytest.fixture
async def slow() -> AsyncIterator[Sending]:
    async with Sending(slow=True) as sending:
        yield sending


async def test_a_message_is_repeated_ever_later_up_to_half_a_minute_until_it_is_acknowledged(world: Sending) -> None:
    world.down.set_desired("a", SMALL)
    await asyncio.sleep(100)
    times = [at for _, _, at in world.bus.sent]
    assert times == pytest.approx([0, 1, 3, 7, 15, 31, 61, 91], abs=0.1)
    assert (world.down.sender.sent, world.down.sender.resent) == (8, 7)
    assert world.down.acknowledge("a", KEY, "u1", 1)
    await asyncio.sleep(100)
    assert (len(world.bus.sent), world.down.acknowledgements) == (8, 1)


async def test_a_delete_is_repeated_until_the_node_holds_nothing_or_another_uid(world: Sending) -> None:
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


async def test_a_delete_that_waits_keeps_its_next_attempt_and_gets_the_last_generation(world: Sending) -> None:
    for generation in (1, 2, 3):
        world.down.forget("a", KEY, "u1", generation)
        await asyncio.sleep(0.4)
    assert world.bus.of(Delete) == [Delete(uid="u1", generation=generation) for generation in (1, 3)]


@pytest.mark.parametrize("kind", ["insert", "delete"])
async def test_a_message_is_sent_when_its_own_time_has_come_and_only_if_it_is_still_needed(
    world: Sending, kind: str
) -> None:
    down, resources = world.down, [resource(name=name) for name in ("one", "two", "three")]

    def need(small: Resource[Any]) -> None:
        down.set_desired("a", small) if kind == "insert" else down.forget("a", small.key, "u1", 1)

    def end() -> None:
        for small in resources:
            down.withdraw(small.key) if kind == "insert" else down.clear_reported("a", small.key)

    need(resources[0])
    await asyncio.sleep(0.5)
    need(resources[1])
    await asyncio.sleep(0.1)
    assert len(world.bus.sent) == 2
    end()
    world.bus.on_sent = end
    for small in resources:
        need(small)
    await asyncio.sleep(60)
    assert len(world.bus.sent) == 3
    numbers = [int(stamp["number"]) for stamp in world.bus.stamps]
    assert {stamp["epoch"] for stamp in world.bus.stamps} == {"1"}
    assert numbers == sorted(set(numbers))


async def test_a_sync_with_the_session_of_a_service_that_is_not_to_be_held_is_answered(world: Sending) -> None:
    world.down.replace_reported("a", [holding(session="other")])
    world.down.answer("a", 0)
    await asyncio.sleep(0.1)
    assert world.bus.of(Synced) == [Synced(epoch=1, count=0, unknown=0)]


async def test_an_acknowledgement_ends_the_deletes_of_its_own_key_alone() -> None:
    keys = [resource(name=name).key for name in ("a", "b", "c")]
    for end in ("acknowledge", "clear"):
        down = downstream()
        for key in keys:
            down.forget("n", key, "u1", 1)
        if end == "clear":
            down.clear_reported("n", keys[1])
        else:
            down.acknowledge("n", keys[1], "u2", 1)
        assert down.acknowledgements == 1
        assert {key for key, _ in down._states["n"].deletes} == {keys[0], keys[2]}


async def test_nothing_is_sent_to_a_node_that_is_offline_or_without_a_broker(world: Sending) -> None:
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
async def test_each_kind_of_message_that_waits_is_sent_once_the_broker_is_back(world: Sending, due: str) -> None:
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


async def test_a_node_that_came_online_has_two_seconds_to_send_its_sync(world: Sending) -> None:
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


async def test_a_sync_replaces_what_a_node_holds_and_a_lost_generation_is_that_of_its_report() -> None:
    down, other = downstream("a"), resource(name="other", uid="u2").key
    down.acknowledge("a", KEY, "u1", 7)
    down.acknowledge("a", other, "u2", 1)
    assert down.replace_reported("a", [holding(generation=0)]) == {KEY, other}
    assert (down.reported_versions(KEY), down.reported_versions(other)) == ({"a": SentVersion("u1", 7)}, {})
    assert (down.holders(KEY), down.holders(other)) == (frozenset("a"), frozenset())
    down.replace_reported("a", [holding(generation=3)])
    assert down.reported_versions(KEY) == {"a": SentVersion("u1", 3)}
    down.replace_reported("a", [holding(uid="u9", generation=0)])
    assert down.reported_versions(KEY) == {"a": SentVersion("u9", 0)}
    assert down.surplus_versions("a") == {KEY: SentVersion("u9", 0)}
    down.keep("a", KEY, "u9")
    assert down.surplus_versions("a") == {}


@pytest.mark.parametrize("other", ["u0", "u2"])
async def test_a_delete_of_one_uid_leaves_another_one_alone(other: str) -> None:
    down = downstream("a")
    down.set_desired("a", SMALL)
    down.acknowledge("a", KEY, "u1", 1)
    down.forget("a", KEY, other, 1)
    assert down.keys("a") == {KEY}
    down.acknowledge("a", KEY, "u1", 1)
    assert down.acknowledgements == 1, "of the insert: there is no delete"
    down.set_desired("a", resource(generation=2))
    assert down.acknowledge("a", KEY, "u1", 2), "it is still to be held"
    down.forget("a", KEY, "u1", 2)
    assert down.surplus_versions("a") == {}, "a delete is on its way"


async def test_ten_thousand_deletes_wait_for_a_node_at_most_and_the_oldest_goes() -> None:
    down = downstream()
    keys = [Key(KEY.plural, KEY.namespace, f"m{number}") for number in range(10_001)]
    for key in keys[:-1]:
        down.forget("a", key, "u1", 1)
    assert down.keys("a") == set(keys[:-1])
    for generation in (1, 2):
        down.forget("a", keys[-1], "u1", generation)
        assert down.keys("a") == set(keys[1:])


async def test_the_versions_of_256_resources_are_remembered_at_most() -> None:
    down, sizes = downstream(), []
    for number in range(260):
        down.set_desired("a", resource(name=f"m{number}"))
        sizes.append(len(down._cached))
    assert max(sizes) == 256


async def test_a_withdrawn_resource_is_wanted_of_no_node_and_a_dropped_one_is_held_by_none() -> None:
    down = downstream("a", "b")
    for node in ("a", "b"):
        down.set_desired(node, SMALL)
    down.acknowledge("a", KEY, "u1", 1)
    down.withdraw(KEY)
    assert (down.surplus_versions("a"), down.keys("b")) == ({KEY: SentVersion("u1", 1)}, set())
    down.forget("a", KEY, "u1", 1)
    down.drop(KEY, "u1")
    assert (down.keys("a"), down.holders(KEY)) == (set(), frozenset())
    assert down.remove("a") == set()


async def test_a_repetition_goes_to_the_nodes_that_hold_and_should_hold_it_though_it_is_set_again_meanwhile(
    world: Sending,
) -> None:
    down = world.down
    for node in ("a", "b"):
        down.set_desired(node, SMALL)
        down.acknowledge(node, KEY, "u1", 1)
    down.keep("b", KEY, "u1")
    await asyncio.sleep(1)
    assert not world.bus.sent
    for _ in range(3):
        down.repeat(KEY)
        await asyncio.sleep(0.1)
    assert ["a" in topic.split("/") for topic, _, _ in world.bus.sent] == [True]
    down.acknowledge("a", KEY, "u1", 1)
    down.repeat(KEY)
    down.set_desired("a", SMALL)
    await eventually(lambda: len(world.bus.sent) == 3)  # again after 1 s: nobody acknowledges it


async def test_a_resource_that_a_node_lost_is_sent_again_and_one_on_its_way_is_not_sent_twice(world: Sending) -> None:
    down = world.down
    down.set_desired("a", SMALL)
    await eventually(lambda: len(world.bus.sent) == 1)
    down.clear_reported("a", KEY)
    await asyncio.sleep(0.5)
    assert len(world.bus.sent) == 1
    down.acknowledge("a", KEY, "u1", 1)
    down.clear_reported("a", KEY)
    await eventually(lambda: len(world.bus.sent) == 2)


async def test_if_many_nodes_must_answer_a_repetition_comes_later() -> None:
    nodes = [f"n{number}" for number in range(1000)]
    async with Sending() as world:
        for node in nodes:
            world.down.set_desired(node, SMALL)
        await eventually(lambda: len(world.bus.sent) == 2000)
        assert {round(at, 3) for _, _, at in world.bus.sent} == {0.0, 1 + 1000 / 500}


async def test_one_call_of_the_queue_sends_each_message_that_is_due_once() -> None:
    sending = Sending(slow=True)
    bus, down = sending.bus, sending.down
    down.set_desired("a", resource())
    down.forget("a", resource(name="other").key, "u2", 1)
    for _ in range(2):
        await down._serve("a")
        assert len(bus.answers) == 2


async def test_the_last_node_that_is_there_ends_the_wait() -> None:
    down, small = downstream("a", "b"), resource()
    for node in ("a", "b", "away"):
        down.set_desired(node, small)
    assert not down.acknowledge("a", small.key, "u1", 1)
    assert down.acknowledge("b", small.key, "u1", 1)
    assert not down.acknowledge("b", small.key, "u1", 1), "once"
    assert not down.acknowledge("away", small.key, "u1", 1), "nobody waited for it"


async def test_an_older_generation_or_another_uid_acknowledges_nothing() -> None:
    down, small = downstream("a"), resource(generation=2)
    down.set_desired("a", small)
    for uid, generation in (("u1", 1), ("u0", 7), ("u2", 7)):
        assert not down.acknowledge("a", small.key, uid, generation)
    assert down.acknowledge("a", small.key, "u1", 3)


async def test_a_node_that_leaves_or_lets_go_is_not_waited_for() -> None:
    down, small = downstream("a", "b", "c", "d"), resource()
    for node in ("a", "b", "c", "d"):
        down.set_desired(node, small)
    down.connection_changed("a")
    down.forget("b", small.key, "u1", 1)
    down.remove("c")
    assert down.acknowledge("d", small.key, "u1", 1)


async def test_what_is_wanted_again_is_sent_once() -> None:
    down, small = downstream("a"), resource()
    for _ in range(3):
        down.set_desired("a", small)
    assert down.queue.waiting == 1
    assert down.acknowledge("a", small.key, "u1", 1)
    down.set_desired("a", small)
    assert down.reported_versions(small.key).keys() == {"a"}
    assert not down.acknowledge("a", small.key, "u1", 1), "it holds it: nothing was sent anew"


async def test_what_a_node_forgot_is_awaited_again_after_its_sync() -> None:
    down, small = downstream("a"), resource()
    down.set_desired("a", small)
    down.acknowledge("a", small.key, "u1", 1)
    down.replace_reported("a", [])
    down.set_desired("a", small)
    assert down.acknowledge("a", small.key, "u1", 1)


async def test_no_node_waits_for_the_brokers_word_on_another(slow: Sending) -> None:
    for number in range(300):
        slow.down.set_desired(f"n{number}", resource())
    await eventually(lambda: len(slow.bus.answers) == 300, FIRST_RESEND / 2)
    assert slow.down.sender.sent == 0
    for answer in slow.bus.answers:
        answer.set_result(0)
    await eventually(lambda: (slow.down.sender.sent, slow.down.sender.resent) == (300, 0), FIRST_RESEND / 2)


async def test_what_was_under_way_on_a_lost_connection_is_sent_again_once_it_is_back(slow: Sending) -> None:
    slow.down.set_desired("a", resource())
    await eventually(lambda: len(slow.bus.answers) == 1)
    slow.bus.answers[0].set_exception(DisconnectedError("gone"))
    await asyncio.sleep(0)
    slow.down.wake()
    await eventually(lambda: len(slow.bus.answers) == 2, FIRST_RESEND / 2)
    slow.bus.answers[1].set_result(0)
    await eventually(lambda: (slow.down.sender.sent, slow.down.sender.resent) == (1, 1))


async def test_what_the_broker_refuses_is_tried_again_as_seldom_as_can_be(slow: Sending) -> None:
    slow.down.set_desired("a", resource())
    await eventually(lambda: len(slow.bus.answers) == 1)
    slow.bus.answers[0].set_result(0x87)
    await asyncio.sleep(LAST_RESEND - 1)
    assert (len(slow.bus.answers), slow.down.sender.sent) == (1, 0)
    await eventually(lambda: len(slow.bus.answers) == 2, 2)


async def test_a_version_that_is_on_its_way_is_not_sent_sooner_because_it_is_read_anew(slow: Sending) -> None:
    slow.down.set_desired("a", resource())
    await eventually(lambda: len(slow.bus.answers) == 1)
    for _ in range(3):
        slow.down.set_desired("a", resource())
        await asyncio.sleep(FIRST_RESEND / 4)
    assert len(slow.bus.answers) == 1
    slow.down.set_desired("a", resource(generation=2))
    await eventually(lambda: len(slow.bus.answers) == 2, FIRST_RESEND / 8)


async def test_what_is_too_large_keeps_no_other_node_from_anything(slow: Sending) -> None:
    slow.bus.error = TooLargeError("too large")
    slow.down.set_desired("a", resource())
    await asyncio.sleep(1)
    slow.bus.error = None
    slow.down.set_desired("b", resource())
    await eventually(lambda: len(slow.bus.answers) == 1)
    assert slow.down.sender.sent == 0


async def test_a_second_sync_during_an_answer_has_an_answer_of_its_own(slow: Sending) -> None:
    slow.down.replace_reported("a", [])
    slow.down.answer("a", unknown=1)
    await eventually(lambda: len(slow.bus.of(Synced)) == 1)
    slow.down.replace_reported("a", [])
    slow.down.set_desired("a", resource())
    slow.down.answer("a", unknown=2)
    slow.bus.acknowledge.set()
    await eventually(lambda: len(slow.bus.of(Synced)) == 2)
    await eventually(lambda: not slow.down.is_answering("a"))
    await asyncio.sleep(2 * LAST_RESEND)
    assert [(end.unknown, end.count) for end in slow.bus.of(Synced)] == [(1, 0), (2, 1)]


async def test_sixty_four_nodes_are_served_at_a_time(slow: Sending) -> None:
    for number in range(100):
        slow.down.connection_changed(f"n{number}")
        slow.down.answer(f"n{number}", unknown=0)
    await asyncio.sleep(0.1)
    assert len(slow.bus.of(Synced)) == 64
    slow.bus.acknowledge.set()
    await asyncio.sleep(0.1)
    assert len(slow.bus.of(Synced)) == 100
