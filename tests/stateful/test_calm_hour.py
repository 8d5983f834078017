"""`halimede status` over a simulated hour: never a problem while there is none, and soon one where there is one."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import pytest

import services.gm.cluster.sqlite_file
import services.lc.store
from halimede.cli.commands.status import Snapshot
from halimede.cli.system_facts import read_system
from halimede.health_checks.check import Check
from tests.stateful.expected import model, service
from tests.stateful.parts import BEGAN_S
from tests.stateful.world import World

HOUR_S, LOOK_S = 3600.0, 12.0
#: seconds between two reports of a worker as it names them, the jitter of that, and the share of reports that fail
PERIOD_S, JITTER_S, FAILED = 3.0, 1.0, 0.03
#: seconds by which wall clocks jump to and fro, and for which the machine stands still now and then
CLOCK_S, STALL_S = 2.0, 3.0


@pytest.fixture
def world() -> Iterator[World]:
    """A system of three nodes with a service whose workers report as real ones do."""
    world = World(16)
    chance = world.chance

    def pause() -> float:
        reports = 1 + (chance.random() < FAILED)
        return reports * PERIOD_S + chance.uniform(-JITTER_S, JITTER_S)

    for node in world.nodes.values():
        node.workers.period_s, node.workers.heartbeat = PERIOD_S, pause
    clock: Any = types.SimpleNamespace(time=lambda: BEGAN_S + world.now + chance.uniform(-CLOCK_S, CLOCK_S))
    services.gm.cluster.sqlite_file.time = services.lc.store.time = clock  # type: ignore[attr-defined]
    try:
        for body in (model("small", 0), model("big", 0), service("s0", "edge0", "cloud0", 0)):
            world.run(world.client.apply(body))
        world.pass_(30)
        yield world
    finally:
        world.broker.faults.delay_s = (0.0, 0.0)
        world.pass_(1)
        world.close()


def look(world: World) -> list[Check]:
    """Return what `halimede status` names; it ends non-zero if that is anything."""
    snapshot = Snapshot("simulated", answers=world.run(read_system(world.client)))
    return [check for check in snapshot.checks() if check.fails]


@pytest.mark.slow
def test_in_a_calm_hour_status_never_ends_non_zero(world: World) -> None:
    world.broker.faults.delay_s = (0.0, 0.2)
    world.broker.faults.duplicate = 0.01
    began, looks = world.now, 0
    while world.now - began < HOUR_S:
        tasks = look(world)
        assert not tasks, f"after {world.now - began:.0f} s: {tasks}"
        looks += 1
        if looks % 10 == 0:  # ordinary traffic: what is there is applied again
            world.run(world.client.apply(model("small", 0)))
        if looks % 15 == 0:  # no timer runs in time
            world.loop._jumping.now += world.chance.uniform(0, STALL_S)
        world.pass_(LOOK_S * world.chance.uniform(0.5, 1.5))
    world.check()
    assert looks > HOUR_S / LOOK_S / 2


def test_a_worker_that_falls_silent_in_it_is_named_within_15_seconds(world: World) -> None:
    assert not look(world)
    (process,) = [each for each in world.nodes["cloud0"].workers.alive if each.start]
    process.stopped = True
    began = world.now
    while not (tasks := look(world)):
        assert world.now - began < 15, "a silent worker is taken for a good one"
        world.pass_(0.5)
    assert "WorkerSilent" in tasks[0].what
    process.stopped = False
    world.pass_(10)
    assert not look(world)
