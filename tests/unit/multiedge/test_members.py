"""Members of a multi-edge service: findings come together, frames are shared, and each is answered once."""

from __future__ import annotations

import asyncio
from pathlib import Path

from halimede import topics
from halimede.bus.rpc import RpcClient
from halimede.messages import IdentityQuery
from tests.simulated import eventually, simulated
from tests.unit.multiedge.applications import BREAKS, EMPTY, WAITS
from tests.unit.multiedge.world import NS, SERVICE, members


@simulated
async def test_what_members_find_comes_together_at_the_eldest(tmp_path: Path) -> None:
    async with members(tmp_path) as world:
        a = await world.start("a", "together")
        b = await world.start("b", "together")
        results = [await world.answer(await world.send(10 + i)) for i in range(6)]
        assert {result.by for result in results} == {"joint"}
        assert [result.label for result in results] == ["together"] * 6
        assert sorted(result.prediction.value["seen"] for result in results) == [1, 2, 3, 4, 5, 6]
        assert {result.worker for result in results} == {"a"}
        assert world.peers["a"].rank < world.peers["b"].rank
        for running in (a, b):
            running.stop.set()
            await running.task
        assert all(count == 1 for count in world.copies.values())
        await eventually(lambda: not world.peers)


@simulated
async def test_what_is_not_worth_it_and_what_nobody_answers_in_time_is_the_members_own(tmp_path: Path) -> None:
    async with members(tmp_path) as world:
        running = await world.start("a", "together", deadline_s=0.2)
        empty = await world.answer(await world.send(EMPTY))
        broken = await world.answer(await world.send(BREAKS))
        late = await world.answer(await world.send(WAITS))
        assert (empty.by, empty.degraded, empty.label) == ("edge", False, "0")
        assert (late.by, late.degraded, late.reason) == ("edge", True, "deadline")
        assert (broken.by, broken.degraded, broken.reason) == ("edge", True, "error")
        running.stop.set()
        await running.task


@simulated
async def test_a_cloud_worker_decides_where_there_is_one_and_edges_answer_without_it(tmp_path: Path) -> None:
    async with members(tmp_path) as world:
        a = await world.start("a", "together", cloud=True, deadline_s=0.5)
        alone = await world.answer(await world.send(10))
        assert (alone.by, alone.reason) == ("edge", "no-cloud")
        joint = await world.start("joint", "together", cloud=True)
        together = await world.answer(await world.send(11))
        assert (together.by, together.worker) == ("joint", "joint")
        for running in (a, joint):
            running.stop.set()
            await running.task


@simulated
async def test_when_the_eldest_dies_the_next_one_goes_on_with_what_it_knew(tmp_path: Path) -> None:
    async with members(tmp_path) as world:
        a = await world.start("a", "together")
        for value in (21, 22, 23):
            await world.answer(await world.send(value))
        b = await world.start("b", "together")
        await world.answer(await world.send(24))
        await a.kill()
        result = await world.answer(await world.send(25))
        assert (result.by, result.worker) == ("joint", "b")
        requests = RpcClient(world.camera, topics.IDENTITY_ANSWER.at(ns=NS, service=SERVICE, client="me"))
        await requests.start()
        address = topics.IDENTITY_QUERY.at(ns=NS, service=SERVICE, client="me")
        answer = await requests.ask(address, IdentityQuery(), timeout_s=5)
        assert answer.body.error == "5 known"
        b.stop.set()
        await b.task


@simulated
async def test_peers_with_room_answer_what_one_member_alone_could_not(tmp_path: Path) -> None:
    async with members(tmp_path) as world:
        started = [await world.start(name, "shared") for name in ("a", "b", "c")]
        ids = await asyncio.gather(*(world.send(value % 200) for value in range(300)))
        results = [await world.answer(id_) for id_ in ids]
        assert {result.by for result in results} <= {"edge", "peer"}
        assert [result.label for result in results] == [str(value % 200) for value in range(300)]
        assert all(count == 1 for count in world.copies.values())
        for running in started:
            running.stop.set()
            await running.task


@simulated
async def test_a_killed_members_frames_are_answered_by_the_others_and_none_counts_as_lost(tmp_path: Path) -> None:
    async with members(tmp_path) as world:
        a = await world.start("a", "together")
        b = await world.start("b", "together")
        ids = []
        for value in range(40):
            ids.append(await world.send(100 + value % 50))
            if value == 20:
                await a.kill()
            await asyncio.sleep(0.02)
        for id_ in ids:
            await world.answer(id_)
        again = await world.start("a", "together")
        await eventually(lambda: world.infos["a"][-1].status == "running")  # its earlier life said so, too
        assert world.info("a").lost == 0
        await world.answer(await world.send(10))
        for running in (again, b):
            running.stop.set()
            await running.task
