"""What anybody may say on the topics of peers, and what a worker whose connection was gone has missed."""

from __future__ import annotations

import asyncio

import pytest

from halimede import codec, topics
from halimede.bus import Packet
from halimede.messages import Load, Peer
from tests.simulated import eventually
from tests.unit.multiedge.nodes import NS, SERVICE, Node, site

pytestmark = pytest.mark.simulated


def decide(*nodes: Node) -> None:
    """Have them say that they bring findings together."""
    for node in nodes:
        node.peers.join = lambda: Load(credits=1)


async def test_sessions_that_nobody_can_have_are_not_taken() -> None:
    async with site() as s:
        a, b = await s.node("a"), await s.node("b")
        lies = [f"intake.{NS}.x/+/#", f"intake.{NS}.\0", f"intake.{NS}." + "x" * 240, f"intake.{NS}.Ä"]
        for number, lie in enumerate(lies):
            said = Peer(rank=9, life="x", intake=lie, holds=lies)
            topic = topics.PEER.at(ns=NS, service=SERVICE, worker="x").text
            await s.camera.send(Packet(topic, codec.encode(topics.PEER, said), retain=True))
            await s.camera.send(Packet(topic, b"", retain=True))
            await asyncio.sleep(1 + number)
        assert not a.task.done()
        await b.kill()
        await s.send("b", 3)
        await eventually(s.answered)
        assert a.takeover.holds() == [b.intake]


async def test_one_that_could_not_listen_for_long_comes_anew_since_others_have_decided_meanwhile() -> None:
    async with site() as s:
        a, b = await s.node("a"), await s.node("b")
        decide(a, b)
        await eventually(lambda: b.peers.eldest() == "a")
        told: list[Peer] = []
        b.peers.on_change(lambda who, peer, _: told.append(peer) if who == "a" and peer else None)
        life = b.peers.others["a"].life
        a.buses[0].cut()
        await eventually(lambda: b.peers.eldest() == "b")
        await asyncio.sleep(5)
        told.clear()
        a.buses[0].heal()
        await eventually(lambda: a.buses[0].connected)
        await asyncio.sleep(0.2)  # it listens
        a.buses[0].cut()
        a.buses[0].heal()
        await eventually(lambda: "a" in b.peers.others)
        await asyncio.sleep(3)
        assert a.peers.eldest() == b.peers.eldest() == "b"
        assert a.peers.rank == 3
        assert {peer.rank for peer in told} == {3}  # and so it is taught again
        assert {peer.life for peer in told} != {life}
        await s.send("a", 3)
        await s.send("b", 3)
        await eventually(s.answered)


async def test_after_a_long_absence_of_the_broker_all_agree_again_and_who_comes_is_the_youngest() -> None:
    async with site() as s:
        nodes = [await s.node(name) for name in ("c", "b", "a")]
        decide(*nodes)
        await asyncio.sleep(3)
        s.broker.stop()
        await asyncio.sleep(20)
        s.broker.start()
        await asyncio.sleep(10)
        agreed = {node.peers.eldest() for node in nodes}
        assert len(agreed) == 1
        assert agreed != {None}
        new = await s.node("aa")
        decide(new)
        await asyncio.sleep(3)
        assert new.peers.rank > max(node.peers.rank for node in nodes)
        assert {node.peers.eldest() for node in (*nodes, new)} == agreed


async def test_one_that_stops_does_not_stay_to_end_a_session_that_nobody_needs() -> None:
    async with site() as s:
        a, b, d = await s.node("a", "x"), await s.node("b"), await s.node("d", "x")
        a.quick = b.quick = False
        await s.send("x", 6)
        await eventually(lambda: len(a.waiting) == 3)
        await a.kill()
        await eventually(lambda: len(b.waiting) == 3)
        async with asyncio.timeout(5):
            await b.end()
        await eventually(s.answered)
        assert s.by() == {"d": 6}
        assert d.takeover.taken_over == 3
