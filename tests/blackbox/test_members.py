"""Members of a multi-edge service: frames are shared, findings come together, and a dead member's frames go on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.blackbox.models import EASY, Estimator
from tests.blackbox.world import Running, World
from tests.unit.multiedge.applications import BREAKS, EMPTY, WAITS
from tests.waiting import eventually

APPLICATIONS = "tests.unit.multiedge.applications"
MEMBERS = ("a", "b", "c")


class Value(Estimator):
    """Answers with the grey value of a frame."""

    def __init__(self, **options: Any) -> None:
        super().__init__("value", **options)

    def _answer(self, value: int) -> dict[str, Any]:
        return {"label": str(value), "probabilities": [1.0]}


def environ(name: str, application: dict[str, Any], *, camera: str = "cam0", joint: str = "members") -> dict[str, str]:
    """Return what a worker of a multi-edge service is told beside what every worker is told."""
    return {
        "APPLICATION": json.dumps(application), "PART": name, "MEMBERS": json.dumps(MEMBERS), "JOINT": joint,
        "CAMERAS": json.dumps([camera]), "SOURCE": json.dumps({"cameras": [camera]}),
    }  # fmt: skip


async def balanced(world: World, name: str, model: Estimator, *, share: bool = True, **changes: str) -> Running:
    """Start a member of ``balance`` whose camera is named after it."""
    parameters = [{"key": "share", "value": str(share).lower()}]
    told = environ(name, {"name": "balance", "parameters": parameters}, camera=f"cam-{name}")
    return await world.start("member", name, model, **{**told, **changes})


async def of_application(world: World, name: str, entry: str, joint: str = "members", **changes: str) -> Running:
    """Start a member of one of the tests' applications, or the joint if that is its name."""
    told = environ(name, {"name": "test", "entry": f"{APPLICATIONS}:{entry}"}, joint=joint)
    model = None if name == "joint" else Value()
    return await world.start("joint" if name == "joint" else "member", name, model, **{**told, **changes})


async def all_end(*running: Running) -> None:
    await asyncio.gather(*(each.end() for each in running))


async def peers_have_room(world: World, *names: str) -> None:
    """Wait until members have said how much of the others' frames they take."""
    await eventually(lambda: all(name in world.peers and world.peers[name].share for name in names))
    await eventually(lambda: all((world.peers[name].share.credits or 0) > 0 for name in names))  # type: ignore[union-attr]


async def test_peers_answer_what_one_member_has_no_time_for(world: World) -> None:
    members = await asyncio.gather(*(balanced(world, name, Value(seconds=0.004)) for name in MEMBERS))
    await peers_have_room(world, *MEMBERS)
    sent = [await world.send(value % 200, "cam-a") for value in range(150)]
    results = await world.answered(sent)
    assert [result.label for result in results] == [str(value % 200) for value in range(150)]
    who = {(result.by, result.worker) for result in results}
    assert who <= {("edge", "a"), ("peer", "b"), ("peer", "c")}
    assert "peer" in {by for by, _ in who}
    assert {(result.node, result.degraded) for result in results} == {("node-a", False)}
    await eventually(lambda: world.counts("a").inference_number == 150)
    await all_end(*members)
    assert set(world.copies.values()) == {1}


async def test_without_sharing_each_member_answers_its_own(world: World) -> None:
    members = await asyncio.gather(*(balanced(world, name, Value(), share=False) for name in ("a", "b")))
    results = await world.answered([await world.send(value, "cam-a") for value in range(40)])
    assert {(result.by, result.worker) for result in results} == {("edge", "a")}
    await all_end(*members)


async def test_a_killed_members_frames_are_answered_once_by_another_and_given_back(world: World) -> None:
    model = Value()
    a, b = await asyncio.gather(balanced(world, "a", model, share=False), balanced(world, "b", Value(), share=False))
    assert (await world.ask(EASY, "cam-a")).worker == "a"
    with model.held():
        sent = [await world.send(value, "cam-a") for value in range(10)]
        await world.holds("a", 10)
        a.crash()
        sent += [await world.send(value, "cam-a") for value in range(10)]
        results = await world.answered(sent)
    await a.kill()
    assert {(result.by, result.worker, result.camera) for result in results} == {("edge", "b", "cam-a")}
    world.buses.heal("a")
    again = await balanced(world, "a", Value(), share=False)
    assert (await world.ask(EASY, "cam-a")).worker == "a"
    assert world.counts("a").lost == 0
    await all_end(again, b)


async def test_findings_come_together_at_the_eldest_member(world: World) -> None:
    a, b = await of_application(world, "a", "together"), await of_application(world, "b", "together")
    results = [await world.ask(10 + number) for number in range(6)]
    assert {(result.by, result.label, result.worker) for result in results} == {("joint", "together", "a")}
    assert sorted(result.prediction.value["seen"] for result in results) == [1, 2, 3, 4, 5, 6]
    assert set(world.copies.values()) == {1}
    await all_end(a, b)


async def test_what_the_joint_does_not_answer_is_the_members_own(world: World) -> None:
    member = await of_application(world, "a", "together", DEADLINE_MS="60000")
    empty, broken, late = await world.ask(EMPTY), await world.ask(BREAKS), await world.ask(WAITS, deadline_ms=1000)
    assert (empty.by, empty.degraded, empty.label) == ("edge", False, "0")
    assert (late.by, late.degraded, late.reason) == ("edge", True, "deadline")
    assert (broken.by, broken.degraded, broken.reason) == ("edge", True, "error")
    await member.end()


async def test_a_joint_in_the_cloud_decides_where_there_is_one(world: World) -> None:
    member = await of_application(world, "a", "together", "cloud", DEADLINE_MS="1000")
    alone = await world.ask(10)
    assert (alone.by, alone.degraded, alone.reason) == ("edge", True, "no-cloud")
    joint = await of_application(world, "joint", "together", "cloud")

    async def decided() -> bool:
        result = await world.ask(11)
        return (result.by, result.worker, result.label) == ("joint", "joint", "together")

    await eventually(decided)
    await joint.end()
    await eventually(lambda: "joint" not in world.peers)
    assert (await world.ask(12)).by == "edge"
    await member.end()
    assert set(world.copies.values()) == {1}
