"""Which messages of a connection reach which handler, which are dropped, and which of them are acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from halimede.bus.message import BusStats, Packet
from halimede.bus.subscriptions import Dispatcher, Subscription, UnackedMessages
from halimede.bus.topic_filter import Prefix

pytestmark = pytest.mark.simulated


class Client:
    """The subscriptions of a client, what their handlers got, and what was acknowledged to the broker."""

    def __init__(self, *, durable: bool = False) -> None:
        self.stats = BusStats()
        self.unacked = UnackedMessages(durable=durable)
        self.dispatcher = Dispatcher(self.stats, Prefix(), self.unacked)
        self.handled: list[str] = []
        self.acknowledged: list[int] = []

    def subscribe(self, filter_: str, limit: int = 0, *, later: bool = False) -> Subscription:
        receive = self.receive if limit else self.receive_now
        subscription = Subscription(filter_, 1, receive, limit, self.stats, later=later)
        self.dispatcher.add(subscription)
        return subscription

    async def receive(self, packet: Packet) -> None:
        self.receive_now(packet)

    def receive_now(self, packet: Packet) -> None:
        self.handled.append(bytes(packet.payload).decode())
        if packet.payload == b"bad":
            raise ValueError("a defect")

    def arrive(self, payload: str, number: int = 0, topic: str = "t") -> None:
        def acknowledge() -> bool:
            self.acknowledged.append(number)
            return True

        packet = Packet(topic, payload.encode(), qos=min(number, 1))
        self.dispatcher.dispatch(packet, acknowledge if number else None, number)

    @contextlib.contextmanager
    def pumping(self, subscription: Subscription) -> Iterator[None]:
        task = asyncio.create_task(subscription.pump())
        yield
        task.cancel()


@pytest.fixture(name="client")
def _client() -> Client:
    return Client()


@pytest.mark.parametrize("limit", [0, 10])
async def test_a_message_whose_handler_fails_is_counted_acknowledged_and_passed_over(
    client: Client, limit: int
) -> None:
    with client.pumping(client.subscribe("t", limit)):
        for number, payload in enumerate(("bad", "good"), start=1):
            client.arrive(payload, number)
        await asyncio.sleep(0.1)
    assert (client.handled, client.acknowledged, client.stats.failed_handlers) == (["bad", "good"], [1, 2], 1)


async def test_a_handler_that_acknowledges_later_and_fails_has_its_message_acknowledged(client: Client) -> None:
    with client.pumping(client.subscribe("t", 10, later=True)):
        client.arrive("good", 1)
        client.arrive("bad", 2)
        await asyncio.sleep(0.1)
    assert (client.acknowledged, client.unacked.count) == ([2], 1)


def test_a_message_without_a_subscription_is_dropped_and_acknowledged(client: Client) -> None:
    client.arrive("late", 1)
    client.arrive("late", 0)
    assert (client.acknowledged, client.stats.dropped) == ([1], 2)


async def test_a_full_queue_drops_its_oldest_qos_0_message_or_the_new_one_but_none_of_qos_1(client: Client) -> None:
    subscription = client.subscribe("t", 2)
    for payload, number in (("a", 0), ("b", 1), ("c", 0), ("d", 2), ("e", 0), ("f", 3), ("g", 0)):
        client.arrive(payload, number)
    with client.pumping(subscription):
        await asyncio.sleep(0.1)
    assert (client.handled, client.stats.dropped) == (["b", "d", "f"], 4)


@pytest.mark.parametrize(("filter_", "acknowledged"), [("t", [1, 2]), ("$share/g/t", [])])
async def test_a_closed_subscription_drops_what_waits_and_leaves_a_shared_one_to_others(
    client: Client, filter_: str, acknowledged: list[int]
) -> None:
    subscription = client.subscribe(filter_, 10)
    pump = asyncio.create_task(subscription.pump())
    client.arrive("a", 1)
    client.arrive("b", 2)
    assert client.dispatcher.remove(filter_) is subscription
    assert client.dispatcher.remove(filter_) is None
    await asyncio.wait_for(pump, 1)
    assert (client.handled, client.acknowledged, client.stats.dropped) == ([], acknowledged, 2)


async def test_what_waits_at_the_end_of_its_connection_is_handled_and_not_acknowledged(client: Client) -> None:
    subscription = client.subscribe("t", 10)
    client.arrive("a", 1)
    client.dispatcher.disconnected()
    with client.pumping(subscription):
        await asyncio.sleep(0.1)
    assert (client.handled, client.acknowledged) == (["a"], [])


async def test_messages_of_a_session_wait_for_their_handler_until_the_connection_ends() -> None:
    client = Client(durable=True)
    for number, topic in enumerate(("t", "other"), start=1):
        client.arrive(topic, number, topic)
    assert (client.unacked.count, client.dispatcher.unfinished) == (2, True)
    client.subscribe("t")
    assert (client.handled, client.acknowledged, client.unacked.count) == (["t"], [1], 1)
    client.dispatcher.disconnected()
    assert (client.acknowledged, client.unacked.count) == ([1], 0)
    client.subscribe("other")
    assert client.handled == ["t"], "the broker sends it again"


def test_the_subscriptions_of_so_many_topics_are_remembered_and_of_no_long_one(client: Client) -> None:
    client.subscribe("#")
    for number in range(4096):
        client.arrive("x", topic=str(number))
    client.arrive("x", topic="t" * 512)
    assert list(client.dispatcher._routes) == ["t" * 512]
    client.arrive("x", topic="t" * 513)
    assert (len(client.dispatcher._routes), len(client.handled)) == (1, 4098)


async def test_the_arrival_of_a_message_is_known_if_it_is_acknowledged_later(client: Client) -> None:
    client.subscribe("later", 10, later=True)
    client.subscribe("t", 10)
    for at, topic in enumerate(("later", "t", "later"), start=1):
        await asyncio.sleep(1)
        client.arrive("x", at, topic)
    assert sorted(client.unacked.arrival_times()) == pytest.approx([1, 3])


@pytest.mark.parametrize(
    ("existing", "filter_", "requested", "is_conflict"),
    [
        (True, "t/#", True, True),
        (True, "$share/g/t/+", True, True),
        (True, "t/b", True, False),
        (True, "t/#", False, False),
        (False, "t/#", True, False),
        (False, "t/a", False, True),
        (True, "t/a", True, True),
    ],
)
def test_a_filter_is_in_conflict_with_its_like_and_with_a_requested_one_that_overlaps(
    client: Client, existing: bool, filter_: str, requested: bool, is_conflict: bool
) -> None:
    client.subscribe("t/a").requested = existing
    assert client.dispatcher.conflict(filter_, requested=requested) == ("t/a" if is_conflict else None)
    assert client.dispatcher.requested_filters() == ({"t/a": 1} if existing else {})
