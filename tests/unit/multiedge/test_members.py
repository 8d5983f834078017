"""Members of a multi-edge service: each frame is answered once, also if members die, stop, or have a broken model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from halimede import topics
from halimede.api.jointinference import FrameSourceSpec
from halimede.bus import Delivery
from halimede.bus.rpc import RpcClient
from halimede.messages import IdentityQuery, Track
from tests.simulated import eventually
from tests.unit.multiedge.applications import ELEPHANT_TRACKS
from tests.unit.multiedge.world import NS, SERVICE, Pixel, Slow, members

pytestmark = pytest.mark.simulated


async def test_when_the_eldest_dies_the_next_one_goes_on_with_what_it_knew(tmp_path: Path) -> None:
    async with members(tmp_path) as world:
        a = await world.start("a", "together")
        for value in (21, 22, 23):
            await world.answer(await world.send(value))
        await world.start("b", "together")
        await world.answer(await world.send(24))
        await a.kill()
        result = await world.answer(await world.send(25))
        assert (result.by, result.worker) == ("joint", "b")
        requests = RpcClient(world.camera, topics.IDENTITY_ANSWER.at(ns=NS, service=SERVICE, client="me"))
        await requests.start()
        address = topics.IDENTITY_QUERY.at(ns=NS, service=SERVICE, client="me")
        answer = await requests.ask(address, IdentityQuery(), timeout_s=5)
        assert answer.body.error == "5 known"


class Broken(Pixel):
    """Fails at once, so that it seems to be quick."""

    tried = 0

    def predict(self, data: Any) -> dict[str, Any]:
        Broken.tried += 1
        raise RuntimeError("no memory on this device")


async def test_what_a_peer_fails_at_is_done_at_home(tmp_path: Path) -> None:
    async with members(tmp_path) as world:
        world.model = Slow
        await world.start("a", "shared")
        world.model = Broken
        await world.start("b", "shared", source=FrameSourceSpec(cameras=["cam1"]))
        results = await world.answers([await world.send(value) for value in range(60)])
        assert Broken.tried > 0
        assert [(result.label, result.degraded) for result in results] == [(str(value), False) for value in range(60)]
        assert set(world.copies.values()) == {1}


async def test_one_that_has_no_time_to_finish_leaves_its_frames_to_the_others(tmp_path: Path) -> None:
    async with members(tmp_path) as world:
        # nobody brings findings together, so they wait for that until their deadline
        a = await world.start("a", "together", cloud=True, grace_s=0.3, deadline_s=30.0)
        await world.start("b", "together", cloud=True, deadline_s=0.2, source=FrameSourceSpec(cameras=["cam1"]))
        ids = [await world.send(100 + value % 50) for value in range(150)]
        await asyncio.sleep(0.5)
        await a.end()
        await eventually(lambda: set(world.results) >= set(ids))


async def test_a_worker_gets_the_whole_state_although_the_eldest_dies_while_it_sends_it(tmp_path: Path) -> None:
    async with members(tmp_path) as world:
        world.broker.faults.delay_s = (0.01, 0.01)
        identities: dict[str, set[str]] = {"b": set(), "c": set()}

        async def on_track(delivery: Delivery[Track]) -> None:
            identities[delivery.names["worker"]].add(delivery.body.identity)

        await world.camera.subscribe(topics.GALLERY.filter(), on_track)
        a, _, _ = [await world.start(name, "elephant") for name in "abc"]
        await eventually(lambda: 0 < sum(map(len, identities.values())) < ELEPHANT_TRACKS)
        await a.kill()
        await eventually(lambda: len(identities["c"]) == ELEPHANT_TRACKS, 300)


async def test_one_that_stops_does_not_stay_to_tell_another_all_that_it_knows(tmp_path: Path) -> None:
    async with members(tmp_path) as world:
        world.broker.faults.delay_s = (0.01, 0.01)
        a, _ = [await world.start(name, "elephant") for name in "ab"]
        await asyncio.sleep(2)
        async with asyncio.timeout(5):
            await a.end()
