"""Leaving a system in peace: mending what failed, waiting until it is as asked for, seeing that it then is quiet."""

from __future__ import annotations

import time
from collections import Counter

from tests.stateful.expected import Expected, leftover, problem
from tests.stateful.world import World

#: seconds to converge after any number of faults: the longest back-off (60 s, of a worker that was killed again and
#: again) and what follows it. After one fault it is 15 s
MANY_FAULTS_S, ONE_FAULT_S = 90.0, 15.0
POLL_S = 0.5
#: messages, and turns of the loop, in a minute in which nothing happens, some time after it has converged: the late
#: reports of workers that prove to be stable are over
CALM_S = 35.0
QUIET_S, QUIET_MESSAGES, QUIET_TURNS = 60.0, 12, 3000


class Record:
    """What a whole run of the model did, over all its examples."""

    def __init__(self) -> None:
        self.examples = 0
        self.rules: Counter[str] = Counter()
        self.messages = 0
        self.simulated_s = 0.0
        self.began = time.monotonic()
        #: seconds to converge: after many faults, after one
        self.many: list[float] = []
        self.one: list[float] = []


async def mend(world: World) -> None:
    """End all faults and start all that does not run."""
    faults = world.broker.faults
    faults.loss = faults.duplicate = faults.reorder = 0.0
    faults.delay_s = (0.0, 0.0)
    world.broker.running or world.broker.start()
    for part in world.parts:
        part.heal() if part.cut_off else None
        if not part.running:
            started = part.start()  # type: ignore[attr-defined]
            await started if started else None


def converge(world: World, expected: Expected, seconds: float) -> float:
    """Wait until all is as asked for; return the seconds that it took."""
    began, text = world.now, ""
    while world.now - began < seconds:
        if not (text := _problem(world, expected)):
            return world.now - began
        world.pass_(POLL_S)
        world.check()
    raise AssertionError(f"not after {seconds:g} s: {text}")


def be_quiet(world: World, expected: Expected) -> None:
    """Let a quiet minute pass."""
    world.pass_(CALM_S)
    turns, messages = world.loop._jumping.steps, world.broker.count
    world.pass_(QUIET_S)
    assert not (text := _problem(world, expected)), f"it does not last: {text}"
    turns, messages = world.loop._jumping.steps - turns, world.broker.count - messages
    assert messages <= QUIET_MESSAGES, f"{messages} messages in a quiet minute"
    assert turns <= QUIET_TURNS, f"{turns} turns of the loop in a quiet minute"


def _problem(world: World, expected: Expected) -> str:
    return problem(expected, world) or leftover(world)
