"""What happens to frames on a broker: no fault, a worker killed, the broker killed, started last, or replaced."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from services.site import Security
from tests.brokers.installation import Installation
from tests.brokers.process import BrokerProcess
from tests.brokers.system import system_on
from tests.e2e.running import System, digits
from tests.faults.timeline import SERVICE, Timeline, under_load

#: frames a second of each of two cameras
FPS = 12.5
#: seconds of load after the fault, and in which the cloud has to answer again
LOAD_S, RECOVERED_S = 20.0, 60.0
#: seconds that a killed broker is away
AWAY_S = 1.0
NEVER = float("inf")
EDGE, CLOUD = f"worker:{SERVICE}-edge-edge0", f"worker:{SERVICE}-cloud-cloud0"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a scenario's frames.

    ``lost_named``: the service's status counts the frame as lost. ``lost_unnamed``: the broker took the frame, nothing
    answered it and nothing counts it. ``cloud_s``: seconds from the fault until the cloud answered a frame that was
    sent after it. ``well_s``: seconds from the fault until ``halimede status`` ended with 0 for good.
    """

    scenario: str
    sent: int
    answered: int
    lost_named: int
    lost_unnamed: int
    repeated: int
    cloud_s: float
    well_s: float


def outcome(scenario: str, system: System, timeline: Timeline) -> Outcome:
    """Return what a timeline shows after its fault."""
    sent, answered, lost = len(system.sent), len(system.results), int(system.metric("lost"))
    repeated = sum(system.copies.values()) - len(system.copies)
    return Outcome(
        scenario=scenario,
        sent=sent,
        answered=answered,
        lost_named=lost,
        lost_unnamed=sent - answered - lost,
        repeated=repeated,
        cloud_s=round(cloud_answered_after(system, timeline), 1),
        well_s=round(timeline.well(), 1),
    )


def cloud_answered_after(system: System, timeline: Timeline) -> float:
    """Return the seconds until the cloud's first answer to a frame that was sent after the fault."""
    times = [
        when - timeline.began
        for id_, when in timeline.answered_at.items()
        if system.results[id_].by == "cloud" and timeline.sent_at.get(id_, 0.0) > timeline.began
    ]
    return min(times, default=NEVER)


@asynccontextmanager
async def _loaded(system: System) -> AsyncIterator[Timeline]:
    """Send frames for ``LOAD_S`` after the fault in the block, and until the cloud answers again and all is well."""
    async with under_load(system, digits(), FPS) as timeline:
        yield timeline
        await system.until("the cloud's answer", lambda: cloud_answered_after(system, timeline) < NEVER, RECOVERED_S)
        await asyncio.sleep(max(0.0, LOAD_S - timeline.now()))
        await system.until("status is well", lambda: timeline.is_well_since(LOAD_S), RECOVERED_S)


async def without_fault(system: System, broker: BrokerProcess) -> None:
    """Do nothing."""


async def edge_worker_killed(system: System, _: BrokerProcess) -> None:
    os.kill(system.processes()[EDGE].pid, signal.SIGKILL)


async def cloud_worker_killed(system: System, _: BrokerProcess) -> None:
    os.kill(system.processes()[CLOUD].pid, signal.SIGKILL)


async def broker_killed(_: System, broker: BrokerProcess) -> None:
    await broker.kill()
    await asyncio.sleep(AWAY_S)
    await broker.start()


async def broker_replaced(_: System, broker: BrokerProcess) -> None:
    """Kill the first of two brokers that are in the list of all clients; it does not return."""
    await broker.kill()


Scenario = Callable[[System, BrokerProcess], Coroutine[Any, Any, None]]
SCENARIOS: tuple[Scenario, ...] = (without_fault, edge_worker_killed, cloud_worker_killed, broker_killed)


def name_of(scenario: Scenario) -> str:
    return scenario.__name__.replace("_", " ")


async def run(
    scenario: Scenario, installation: Installation, security: Security, home: Path, *, has_standby: bool = False
) -> Outcome:
    async with system_on(installation, security, home, has_standby=has_standby) as (system, broker):
        async with _loaded(system) as timeline:
            timeline.fault()
            await scenario(system, broker)
        return outcome(name_of(scenario), system, timeline)


async def cold_start(installation: Installation, security: Security, home: Path) -> Outcome:
    """Start the broker when GM and the nodes already wait for it, as after a power cut of the whole site."""
    async with system_on(installation, security, home, broker_first=False) as (system, broker):
        async with _loaded(system) as timeline:
            timeline.fault()
        done = outcome("broker started last", system, timeline)
        return replace(done, cloud_s=round(done.cloud_s + timeline.began - broker.ready_at, 1))
