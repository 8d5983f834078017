"""Two faults at once on a live system at 20 frames a second: each frame is answered or counted, and status tells."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from halimede.worker.session_failover import LOST_SHOWN_S
from halimede.worker.status_reporter import SESSION_LOST
from tests.e2e.running import DIGITS, System, digits, running
from tests.faults.test_fault_20_clocks_a_day_apart import DAY, off, shifted
from tests.faults.test_fault_28_stores_lost_while_running import overwritten
from tests.faults.timeline import SERVICE, under_load
from tests.small_disk import fill, small_disk
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EDGE, CLOUD = f"worker:{SERVICE}-edge-edge0", f"worker:{SERVICE}-cloud-cloud0"
#: that clocks are off
DAYS = 3
#: seconds: `halimede status` names a fault that lasts, and a service recovers from one that needs no operator
NAMED_S, RECOVERED_S = 15, 30
#: seconds that frames flow after the fault, at least
LOAD_S = 15.0


async def nothing(_: System) -> None:
    """Need no operator."""


async def see_the_clocks(system: System) -> None:
    """GM and nodes are days ahead of the workers, of the broker and of this test."""
    assert system.status
    assert off(system.status.status.conditions[-1].last_transition_time) == DAYS, "GM's clock is not off"


async def fill_disk(system: System) -> None:
    fill(system.home / "ballast")


async def make_room(system: System) -> None:
    (system.home / "ballast").unlink()


async def damage_stores(system: System) -> None:
    overwritten(system.home / "gm" / "store.db")
    overwritten(system.home / "nodes" / "edge0" / "store.db")


async def apply_again(system: System) -> None:
    await system.apply(DIGITS)
    for store in system.home.rglob("store.db.corrupt-1"):
        store.unlink()


@dataclass(frozen=True)
class DoubleFault:
    """Processes that are killed and stopped, and what else happens.

    ``reason``: what the service's status shows of a fault that heals; ``named``: what `halimede status` names of one
    that needs an operator; ``mend``: what the operator does.
    """

    name: str
    killed: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    fault: Callable[[System], Coroutine[Any, Any, None]] = nothing
    reason: str = ""
    named: tuple[str, ...] = ()
    mend: Callable[[System], Coroutine[Any, Any, None]] = nothing
    disk: Callable[[Path], AbstractContextManager[Path]] = nullcontext
    environment: dict[str, str] = field(default_factory=dict)


FAULTS = (
    DoubleFault("broker_and_gm_killed", killed=("broker", "gm")),
    DoubleFault("lc_and_worker_killed", killed=("lc:edge0", EDGE)),
    DoubleFault("cloud_worker_hung_and_edge_worker_killed", killed=(EDGE,), stopped=(CLOUD,), reason="WorkerSilent"),
    DoubleFault(
        "disk_full_and_worker_killed",
        killed=(EDGE,),
        fault=fill_disk,
        named=("gm: the store", "node/edge0: its store", "cannot be written"),
        mend=make_room,
        disk=small_disk,
    ),
    DoubleFault(
        "both_stores_damaged_and_gm_killed",
        killed=("gm",),
        fault=damage_stores,
        named=("gm/store.db.corrupt-1", "edge0/store.db.corrupt-1", "lost with its store"),
        mend=apply_again,
    ),
    DoubleFault(
        "clocks_days_off_and_broker_killed", killed=("broker",), fault=see_the_clocks, environment=shifted(DAYS * DAY)
    ),
)


@pytest.mark.parametrize("double", FAULTS, ids=lambda double: double.name)
async def test_fault_37_two_faults_at_once_leave_no_frame_unnamed(tmp_path: Path, double: DoubleFault) -> None:
    if double.disk is small_disk and os.geteuid() != 0:
        pytest.skip("mounts a small file system")
    with double.disk(tmp_path / "home") as home:
        async with running(home, environment=double.environment) as system:
            await suffer(system, double)


async def suffer(system: System, double: DoubleFault) -> None:
    async with under_load(system, digits()) as timeline:
        before = system.processes()
        timeline.fault()
        await double.fault(system)
        for victims, number in ((double.stopped, signal.SIGSTOP), (double.killed, signal.SIGKILL)):
            for victim in victims:
                os.kill(before[victim].pid, number)

        def replaced() -> bool:
            now = system.processes()
            same = [name for name in (*double.killed, *double.stopped) if now.get(name) == before[name]]
            return not same and now.keys() == before.keys()

        await system.until("all processes again", replaced)
        replaced_s = timeline.now()
        if double.reason:
            await system.until(double.reason, lambda: timeline.first(double.reason) < float("inf"), NAMED_S)
        if double.named:
            await system.until("named", lambda: timeline.failed(*double.named) < float("inf"), NAMED_S)
        await double.mend(system)
        mended_s = timeline.now()
        await system.until("Running again", lambda: system.phase == "Running")
        await system.until("status is well", lambda: timeline.is_well_since(mended_s))
        await asyncio.sleep(max(0.0, LOAD_S - timeline.now()))
        # a worker may report later that its session was lost with the broker
        ended_s = timeline.now()
        await system.until("status is well for good", lambda: timeline.is_well_since(ended_s))
    print(timeline.row(double.name, replaced=replaced_s))
    assert timeline.unnamed() == 0
    assert timeline.failed(*double.named) < patience(NAMED_S) or not double.named, "`halimede status` names both"
    shown_s = LOST_SHOWN_S if timeline.first(SESSION_LOST) < float("inf") else 0.0
    assert timeline.well() < mended_s + patience(RECOVERED_S) + shown_s
    assert timeline.slowest_s < patience(RECOVERED_S)
