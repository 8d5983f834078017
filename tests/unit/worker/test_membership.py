"""Who is there: every worker comes to the same view of the others, from what they say and from their silence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from halimede import codec, topics
from halimede.bus import Packet
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import Load, Peer
from halimede.offload.load_balancer import MAX_WORKERS, STALE_S
from halimede.worker.membership import CHECK_PERIOD_S, MAX_RANK, Membership, peer_will
from tests.simulated import eventually, suspend

pytestmark = pytest.mark.simulated

NS, SERVICE = "default", "lobby"


@contextlib.asynccontextmanager
async def worker(
    broker: MemoryBroker, name: str, *, joins: bool = True
) -> AsyncIterator[tuple[Membership, MemoryBus, Any]]:
    """Run one worker's peers; yield them, its connection, and all changes that it was told."""
    will = peer_will(topics.PEER, NS, SERVICE, name)
    async with MemoryBus(f"worker.{name}", broker, lambda: will) as bus:
        await bus.wait_connected(1)
        peers = Membership(bus, topics.PEER, namespace=NS, service=SERVICE, worker=name, intake=f"intake.{NS}.{name}")
        peers.join = (lambda: Load(credits=5)) if joins else None
        changes: list[tuple[str, bool, bool]] = []
        peers.on_change(lambda who, peer, orderly: changes.append((who, peer is not None, orderly)))
        await peers.start()
        running = asyncio.create_task(peers.run())
        try:
            yield peers, bus, changes
        finally:
            running.cancel()


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


def topic(name: str) -> str:
    return topics.PEER.at(ns=NS, service=SERVICE, worker=name).text


#: the last word of a worker
SILENT = Packet(topic("silent"), codec.encode(topics.PEER, Peer(rank=7, life="x")), retain=True)


async def test_ranks_follow_the_order_of_coming_and_the_eldest_of_those_that_can_decides(broker: MemoryBroker) -> None:
    async with (
        worker(broker, "z", joins=False) as (z, _, _),
        worker(broker, "m") as (m, _, _),
        worker(broker, "a") as (a, _, _),
    ):
        await asyncio.sleep(1)
        assert [peers.rank for peers in (z, m, a)] == [1, 2, 3]
        assert {peers.eldest() for peers in (z, m, a)} == {"m"}
        assert {peers.heir() for peers in (z, m, a)} == {"z"}
        assert set(a.others) == {"z", "m"}
        await m.withdraw()
        assert m.eldest() == "a"
        await eventually(lambda: z.eldest() == a.eldest() == "a")
    assert broker.retained_payload(topic("m")) is None


async def test_two_that_come_at_once_agree(broker: MemoryBroker) -> None:
    async with contextlib.AsyncExitStack() as stack:
        both = await asyncio.gather(*(stack.enter_async_context(worker(broker, name)) for name in ("b", "a")))
        await asyncio.sleep(1)
        assert [peers.eldest() for peers, _, _ in both] == ["a", "a"]


async def test_leaving_in_order_dying_and_falling_silent_are_told_apart(broker: MemoryBroker) -> None:
    async with worker(broker, "watcher") as (_, _, changes):
        async with worker(broker, "orderly") as (peers, _, _):
            await peers.withdraw()
        async with worker(broker, "unfinished") as (peers, _, _):
            await peers.withdraw(orderly=False)
        async with worker(broker, "dead"):
            pass
        broker.route(SILENT)
        await eventually(lambda: ("silent", True, False) in changes)
        await asyncio.sleep(6)
        assert ("silent", False, False) not in changes
        await asyncio.sleep(3)
        gone = {who: orderly for who, there, orderly in changes if not there}
        assert gone == {"orderly": True, "unfinished": False, "dead": False, "silent": False}


async def test_an_old_will_that_comes_late_and_a_broker_that_forgot_all_are_made_good(broker: MemoryBroker) -> None:
    async with worker(broker, "a") as (a, _, _), worker(broker, "b") as (b, _, changes):
        await asyncio.sleep(1)
        broker.route(Packet(topic("b"), b"", retain=True))
        await eventually(lambda: broker.retained_payload(topic("b")) and "b" in a.others, timeout_s=0.5)
        broker.restart()
        await asyncio.sleep(5)
        assert broker.retained_payload(topic("a"))
        assert broker.retained_payload(topic("b"))
        assert (a.rank, b.rank, b.eldest()) == (1, 2, "a")
        assert ("a", False, False) not in changes


async def test_one_that_could_not_listen_takes_nobody_for_gone(broker: MemoryBroker) -> None:
    async with worker(broker, "a"), worker(broker, "b") as (b, bus, changes):
        await asyncio.sleep(1)
        bus.cut()
        await asyncio.sleep(30)
        bus.heal()
        await asyncio.sleep(10)
        assert ("a", False, False) not in changes
        assert set(b.others) == {"a"}


async def test_a_state_that_outlived_its_worker_counts_only_until_that_worker_should_have_repeated_it(
    broker: MemoryBroker,
) -> None:
    """The broker retains it where the worker's will was lost, and sends it to each worker that comes."""
    dead = Peer(rank=1, life="x", intake=f"intake.{NS}.dead", join=Load(credits=5))
    broker.route(Packet(topic("dead"), codec.encode(topics.PEER, dead), retain=True))
    async with worker(broker, "a") as (a, _, changes):
        await asyncio.sleep(1)
        assert (a.eldest(), a.heir()) == ("dead", "dead")
        assert ("dead", False, False) not in changes
        await asyncio.sleep(STALE_S + CHECK_PERIOD_S)
        assert (a.eldest(), a.heir()) == ("a", "a")
        assert changes.count(("dead", False, False)) == 1
        async with worker(broker, "b") as (b, _, _):
            await asyncio.sleep(1 + STALE_S + CHECK_PERIOD_S)
            assert (b.eldest(), b.heir()) == ("a", "a"), "nor for a worker that comes later"


async def test_a_worker_that_was_stopped_takes_nobody_for_gone_but_those_that_stay_silent(broker: MemoryBroker) -> None:
    async with worker(broker, "a"), worker(broker, "b") as (b, _, changes):
        broker.route(SILENT)
        await asyncio.sleep(1)
        for _ in range(5):
            suspend(10 * STALE_S)
            await asyncio.sleep(0.7)
            assert [who for who, there, _ in changes if not there] == []
        await asyncio.sleep(STALE_S + 2 * CHECK_PERIOD_S)
        assert [who for who, there, _ in changes if not there] == ["silent"]
        assert set(b.others) == {"a"}


async def test_what_changes_is_said_soon_and_not_with_every_change(broker: MemoryBroker) -> None:
    said: list[Peer] = []
    async with worker(broker, "a") as (a, _, _), worker(broker, "b") as (b, _, _):
        b.on_change(lambda who, peer, _: said.append(peer) if who == "a" and peer else None)
        await asyncio.sleep(1)
        credits_ = 5
        a.share = lambda: Load(credits=credits_)
        before = len(said)
        for _ in range(100):
            credits_ += 1
            a.touch()
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert said[-1].share.credits == credits_
        assert 5 <= len(said) - before <= 14
        before = len(said)
        await asyncio.sleep(20)
        assert 9 <= len(said) - before <= 11


async def test_a_worker_that_starts_without_a_broker_takes_its_rank_when_there_is_one(broker: MemoryBroker) -> None:
    async with worker(broker, "a"), MemoryBus("worker.b", broker) as bus:
        bus.cut()
        peers = Membership(bus, topics.PEER, namespace=NS, service=SERVICE, worker="b")
        await peers.start()
        running = asyncio.create_task(peers.run())
        await asyncio.sleep(3)
        assert (peers.rank, peers.eldest()) == (0, None)
        bus.heal()
        await eventually(lambda: peers.rank == 2)
        assert peers.eldest() == "a"
        running.cancel()


async def test_forged_peers_are_bounded_and_keep_nobody_from_a_rank(broker: MemoryBroker) -> None:
    async with MemoryBus("liar", broker) as liar:
        await liar.wait_connected(1)
        for number in range(MAX_WORKERS + 100):
            lie = Peer(rank=2**63 - 1, life="x", leaving=True)
            await liar.send(Packet(topic(f"w{number}"), codec.encode(topics.PEER, lie)))
            if number == 0:
                await liar.send(Packet(topic("w0"), codec.encode(topics.PEER, lie), retain=True))
        async with worker(broker, "a") as (a, _, _):
            for number in range(MAX_WORKERS + 100):
                await liar.send(Packet(topic(f"w{number}"), codec.encode(topics.PEER, lie)))
            await asyncio.sleep(1)
            assert a.rank == MAX_RANK
            assert len(a.others) <= MAX_WORKERS
            assert a.eldest() == "a"
            await asyncio.sleep(10)
            assert len(a.others) == 0
