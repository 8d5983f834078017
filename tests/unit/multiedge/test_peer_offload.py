"""Workers share frames: together they answer what the sum of them can, and none is lost with a peer that took it."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from halimede import topics
from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.messages import Load, Peer
from halimede.multiedge.peer_offload import JointClient
from halimede.worker.membership import Membership
from tests.balance_world import Site, fair, offered, rates, site
from tests.simulated import eventually, simulate
from tests.unit.frames.clouds import NS, SERVICE

pytestmark = pytest.mark.simulated

SERVICE_S = 0.02


def times(count: int) -> list[float]:
    """All workers are equal, but the last of several is ten times slower."""
    return [SERVICE_S] * (count - 1) + [SERVICE_S * 10] if count > 1 else [SERVICE_S]


async def answered_part(count: int, cameras: str) -> float:
    async with site(times(count)) as made:
        return await offered(made, rates(made, cameras, 1.1)) / made.capacity


@pytest.mark.parametrize("cameras", ["one", "half", "every", "slow"])
@pytest.mark.parametrize("count", [1, 3, pytest.param(6, marks=pytest.mark.slow)])
def test_together_they_answer_nine_tenths_of_what_the_sum_of_them_can(count: int, cameras: str) -> None:
    assert simulate(answered_part(count, cameras)) >= 0.9


@pytest.mark.slow
async def test_each_gets_as_much_as_it_can_do_within_a_tenth() -> None:
    async with site([0.02, 0.04, 0.2]) as made:
        await offered(made, rates(made, "one", 1.1), seconds=20)
        total = sum(made.answered.values())
        for name, part in fair(made).items():
            assert made.answered[name] / total == pytest.approx(part, rel=0.1)


async def some(made: Site, count: int, rate: float) -> None:
    """Let one worker take in so many frames."""
    await made.nodes["w0"].camera(rate, random.Random(count), count)


async def test_frames_of_a_peer_that_dies_are_answered_by_others_once_each() -> None:
    async with site([SERVICE_S] * 3) as made:
        camera = asyncio.create_task(some(made, 400, 90))
        await eventually(lambda: made.nodes["w1"].requests.stats.served and made.nodes["w1"].requests.load().queued)
        made.nodes["w1"].bus.cut()
        await camera
        await eventually(lambda: len(made.ids) == 400)
        assert max(made.ms) < 400  # none of them waited for the dead one
        assert made.skipped == 0
        assert set(made.ids.values()) == {1}


async def test_frames_of_a_peer_that_hangs_are_answered_at_home_in_time() -> None:
    async with site([SERVICE_S] * 2) as made:
        camera = asyncio.create_task(some(made, 200, 60))
        await asyncio.sleep(1)
        made.nodes["w1"].thread.service_s = 1e6
        await camera
        await eventually(lambda: len(made.ids) == 200)
        assert made.nodes["w0"].sharing.returned > 0
        assert max(made.ms) < 2000


async def test_what_waits_at_a_slow_worker_goes_to_the_others_when_they_are_done_with_theirs() -> None:
    async with site([0.02, 0.02, 0.2]) as made:
        # more than all of them can take at once comes in everywhere: nobody takes any of the others' frames
        bursts = [asyncio.create_task(node.camera(1000, random.Random(name), 60)) for name, node in made.nodes.items()]
        await asyncio.gather(*bursts)
        began = asyncio.get_running_loop().time()
        await eventually(lambda: len(made.ids) == 180)
        # alone the slow one would need 12 s for its 60
        assert asyncio.get_running_loop().time() - began < 4
        assert set(made.ids.values()) == {1}


async def test_a_peer_with_too_much_to_do_sends_frames_back() -> None:
    async with site([SERVICE_S] * 2) as made:
        w0, w1 = made.nodes["w0"], made.nodes["w1"]
        await some(made, 50, 100)
        await eventually(lambda: len(made.ids) == 50)
        shared = w0.sharing.shared
        assert shared
        w1.edge.pipeline.preparing = 100  # it is busy with its own frames, and nobody knows yet
        await some(made, 30, 1000)
        await eventually(lambda: len(made.ids) == 80)
        assert w1.requests.stats.refused > 0
        assert (w0.sharing.returned, w0.sharing.shared) == (w1.requests.stats.refused, shared)


async def test_frames_that_come_in_one_burst_do_not_all_see_the_same_idle_peer() -> None:
    async with site([SERVICE_S] * 3) as made:
        node = made.nodes["w0"]
        node.edge.pipeline.preparing = 100
        before = node.sharing.credits_left()
        assert all(node.sharing.reserve_peer() for _ in range(6))
        assert node.sharing.credits_left() == {name: left - 3 for name, left in before.items()}
        await asyncio.sleep(0.001)  # nobody was asked after all
        assert node.sharing.credits_left() == before


async def test_a_worker_that_stops_sends_nothing_away_any_more() -> None:
    async with site([SERVICE_S] * 2) as made:
        node = made.nodes["w0"]
        node.edge.pipeline.preparing = 100
        assert node.sharing.reserve_peer()
        node.sharing.abandon()
        assert not node.sharing.reserve_peer()


async def test_a_peer_that_leaves_in_order_gets_nothing_new_and_answers_what_it_has() -> None:
    async with site([SERVICE_S] * 2) as made:
        camera = asyncio.create_task(some(made, 200, 90))
        await asyncio.sleep(1)
        w1 = made.nodes["w1"]
        await w1.requests.stop()
        await eventually(lambda: not w1.requests.inside)
        assert await w1.requests.responder.outbox.drain(5)
        taken = w1.requests.stats.served
        await eventually(lambda: made.nodes["w0"].sharing.credits_left() == {"w1": 0})
        await camera
        await eventually(lambda: len(made.ids) == 200)
        assert 0 < taken == w1.requests.stats.served
        assert w1.requests.stats.refused == 0


PEER = Peer(rank=1, life="1", join=Load(credits=3))


@pytest.mark.parametrize("later", [msgspec.structs.replace(PEER, leaving=True), Peer(rank=1, life="1"), None])
async def test_findings_go_to_no_worker_that_leaves_has_no_joint_or_has_ended(later: Peer | None) -> None:
    bus = MemoryBus("w0", MemoryBroker())
    peers = Membership(bus, topics.PEER, namespace=NS, service=SERVICE, worker="w0")
    client = JointClient(bus, NS, SERVICE, "w0", peers)
    client.changed("w1", PEER, False)
    assert client.credits_left() == {"w1": 3}
    client.changed("w1", later, False)
    assert client.credits_left() == {}
