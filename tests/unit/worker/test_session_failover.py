"""A member that dies: another goes on with its frames, and gives them back. Nothing accepted is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from halimede import codec, topics
from halimede.bus import Packet
from halimede.messages import Peer
from tests.simulated import eventually
from tests.unit.multiedge.nodes import KEPT_S, NS, SERVICE, Node, Site, site

pytestmark = pytest.mark.simulated


@pytest.fixture
async def s() -> AsyncIterator[Site]:
    async with site() as cloud_site:
        yield cloud_site


async def answer(s: Site, camera: str, count: int) -> None:
    """Send so many frames, and wait until all frames are answered."""
    await s.send(camera, count)
    await eventually(s.answered)


async def die(member: Node, heir: Node) -> None:
    await member.kill()
    await eventually(lambda: heir.takeover.holds() == [member.intake])


async def test_what_a_dead_member_had_and_what_comes_after_is_answered_by_the_eldest_that_is_left(s: Site) -> None:
    a, b, c = [await s.node(name) for name in ("a", "b", "c")]
    a.quick = False
    await s.send("a", 10)
    await s.send("b", 3)
    await eventually(lambda: len(a.waiting) == 4)
    died = asyncio.get_running_loop().time()
    await a.kill()
    await answer(s, "a", 5)
    assert asyncio.get_running_loop().time() - died < 1.5
    assert s.by() == {"b": 18}
    assert (b.takeover.taken_over, c.takeover.taken_over) == (15, 0)
    assert b.takeover.holds() == [a.intake]
    await answer(s, "a", 5)
    assert s.by() == {"b": 23}


async def test_a_session_without_an_owner_outlives_the_heir_as_well_and_is_known_to_those_that_came_later(
    s: Site,
) -> None:
    a, b = await s.node("a"), await s.node("b")
    await die(a, heir=b)
    late = await s.node("late")
    b.quick = False
    await s.send("a", 4)
    await s.send("b", 4)
    await eventually(lambda: len(b.waiting) == 8)
    await b.kill()
    await eventually(s.answered)
    assert s.by() == {"late": 8}
    assert set(late.takeover.holds()) == {a.intake, b.intake}


async def test_one_that_stops_in_order_hands_what_it_holds_to_the_next(s: Site) -> None:
    a, b, c = [await s.node(name) for name in ("a", "b", "c")]
    await die(a, heir=b)
    await s.send("a", 3)
    await b.end()
    # its own session is over: nothing is left in it
    assert b.session not in s.broker.sessions
    await answer(s, "a", 3)
    assert c.takeover.holds() == [a.intake]
    assert s.by()["b"] == 3
    assert s.by()["c"] == 3


async def test_one_that_cannot_finish_leaves_the_rest_to_the_others(s: Site) -> None:
    a, b = await s.node("a"), await s.node("b")
    a.quick = False
    await s.send("a", 6)
    ending = asyncio.create_task(a.end())
    await asyncio.sleep(4)
    a.answer(1)
    await asyncio.sleep(0.5)
    assert len(a.waiting) == 3  # it finishes what it has, and takes nothing more
    a.answer()
    await ending
    assert a.source.unfinished
    await eventually(s.answered)
    assert s.by() == {"a": 4, "b": 2}
    assert b.takeover.holds() == [a.intake]


async def test_a_member_that_is_back_gets_its_frames_back_and_none_is_answered_twice(s: Site) -> None:
    a, b = await s.node("a"), await s.node("b")
    await die(a, heir=b)
    b.quick = False
    await s.send("a", 3)
    await eventually(lambda: len(b.waiting) == 3)
    back = asyncio.create_task(s.node("a"))
    await asyncio.sleep(1)
    await s.send("a", 3)  # the one lets go, and the other waits for that
    b.answer()
    again = await back
    await eventually(s.answered)
    assert s.by() == {"b": 3, "a": 3}
    await answer(s, "a", 4)
    assert s.by() == {"b": 3, "a": 7}
    assert b.takeover.holds() == []
    assert again.intake == a.intake
    assert s.camera.stats.rejected == 0


async def test_a_short_break_of_a_connection_costs_no_session(s: Site) -> None:
    a, b = await s.node("a"), await s.node("b")
    a.buses[0].cut()
    a.buses[0].heal()
    await asyncio.sleep(3)
    await answer(s, "a", 3)
    assert s.by() == {"a": 3}
    assert not any(bus.client_id == a.intake for bus in b.buses)


async def test_of_a_member_cut_off_for_long_the_frames_are_not_fought_over(s: Site) -> None:
    """It has its connection for frames, and cannot say so: the heir takes the session, and it takes it back."""
    a, b = await s.node("a"), await s.node("b")
    a.buses[0].cut()
    for _ in range(30):
        await s.send("a", 2)
        await asyncio.sleep(1)
    assert 1 <= sum(bus.stats.connects for bus in b.buses if bus.client_id == a.intake) <= 9
    a.buses[0].heal()
    await asyncio.sleep(8)
    before = b.takeover.taken_over
    await answer(s, "a", 5)
    assert b.takeover.taken_over == before


async def test_one_that_falls_silent_is_taken_for_dead_and_one_that_does_not_listen_takes_nobody_for_dead(
    s: Site,
) -> None:
    a, b, c = [await s.node(name) for name in ("a", "b", "c")]
    a.peers._publisher._withdrawn = True  # as a process that is stopped: its connection is there for a while
    a.buses[1].cut()
    c.buses[0].cut()
    await asyncio.sleep(9)
    c.buses[0].heal()
    await asyncio.sleep(15)  # what the silent one said last is still there for those that come
    assert b.takeover.holds() == [a.intake]
    assert c.peers.heir() == "b"
    assert c.takeover.taken_over == b.takeover.taken_over == 0
    assert not any(bus.client_id == a.intake for bus in c.buses)


async def test_the_session_of_one_that_came_back_for_other_cameras_is_answered_and_ended(s: Site) -> None:
    a, b = await s.node("a", "door", "yard"), await s.node("b")
    a.quick = False
    await s.send("door", 6)
    await eventually(lambda: len(a.waiting) == 4)
    await a.kill()
    again = await s.node("a", "door")
    await eventually(s.answered)
    await eventually(lambda: a.session not in s.broker.sessions)
    assert b.takeover.holds() == []
    assert s.by()["b"] == 6
    await answer(s, "door", 4)
    assert s.by() == {"b": 6, "a": 4}
    assert again.intake != a.intake


async def test_a_replica_of_the_same_cameras_needs_no_heir_for_long(s: Site) -> None:
    a, b = await s.node("a", "door"), await s.node("b", "door")
    a.quick = b.quick = False
    await s.send("door", 6)
    await a.kill()
    b.quick = True
    b.answer()
    await eventually(s.answered)
    await eventually(lambda: a.session not in s.broker.sessions)
    await answer(s, "door", 4)
    assert s.by() == {"b": 10}


async def test_a_session_that_the_broker_no_longer_has_is_forgotten(s: Site) -> None:
    a, b = await s.node("a"), await s.node("b")
    await die(a, heir=b)
    s.broker.restart()
    await asyncio.sleep(20)
    assert b.takeover.holds() == []
    assert a.session not in s.broker.sessions
    await answer(s, "b", 2)


async def test_nobody_connects_as_what_is_no_members_connection_for_frames(s: Site) -> None:
    b = await s.node("b")
    for number, name in enumerate(("halimede-gm", f"worker.{NS}.c", f"intake.{NS}.other.12345678")):
        topic = topics.PEER.at(ns=NS, service=SERVICE, worker=f"x{number}").text
        lie = codec.encode(topics.PEER, Peer(rank=9, life="l", intake=name))
        await s.camera.send(Packet(topic, lie, retain=True))
        await s.camera.send(Packet(topic, b"", retain=True))
    lie = codec.encode(topics.PEER, Peer(rank=9, life="l", holds=["halimede-gm"] * 64))
    await s.camera.send(Packet(topics.PEER.at(ns=NS, service=SERVICE, worker="x").text, lie, retain=True))
    await asyncio.sleep(KEPT_S)
    assert {bus.client_id for bus in b.buses} == {f"worker.{NS}.b", b.intake}
