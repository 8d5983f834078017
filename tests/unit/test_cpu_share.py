"""A promised share of a core: the level that keeps it, when it is broken, and real processes among endless loops."""

from __future__ import annotations

import os
import resource

import pytest

from halimede.system.cpu_share import IDLE_LEVEL, PERIOD_S, Period, ShareKeeper
from halimede.system.process_limits import can_raise_priority
from tests.programs import run_python

#: weights of the kernel: of SCHED_IDLE, of a niceness of 0, and from one niceness to the next
IDLE_WEIGHT, USUAL_WEIGHT, FACTOR = 3, 1024, 1.25
SHARE = 0.05


def computed_s(level: int, loops: int) -> float:
    """Return the processor time of a process that always computes, in a period, among endless loops on its core."""
    weight = IDLE_WEIGHT if level == IDLE_LEVEL else USUAL_WEIGHT / FACTOR**level
    return PERIOD_S * weight / (weight + loops * USUAL_WEIGHT)


def keep(keeper: ShareKeeper, loops: int, periods: int) -> float:
    """Let a process compute for some periods; return its share of a core."""
    sum_s = 0.0
    for _ in range(periods):
        period = Period(PERIOD_S, computed_s(keeper.level, loops), waits=True)
        sum_s += period.computed_s
        keeper.observe(period)
    return sum_s / (periods * PERIOD_S)


@pytest.mark.parametrize("loops", [1, 2])
def test_a_process_gets_its_share_in_a_minute_and_hardly_more(loops: int) -> None:
    keeper = ShareKeeper(SHARE)
    assert 0.9 * SHARE <= keep(keeper, loops, 30) <= 1.5 * SHARE
    assert 0.95 * SHARE <= keep(keeper, loops, 300) <= 1.2 * SHARE
    assert not keeper.is_starved


@pytest.mark.parametrize(("share", "level"), [(0.05, 10), (0.2, 4), (0.5, 0), (1.0, 0), (0.001, 28)])
def test_the_strongest_weight_follows_from_the_share(share: float, level: int) -> None:
    assert ShareKeeper(share).strongest_level == min(level, IDLE_LEVEL)


def test_a_process_among_too_many_is_starved() -> None:
    keeper = ShareKeeper(SHARE)
    assert keep(keeper, 4, 30) < 0.9 * SHARE
    assert keeper.is_starved


def test_a_process_is_idle_again_as_soon_as_a_core_is_free() -> None:
    keeper = ShareKeeper(SHARE)
    keep(keeper, 4, 30)
    assert keeper.level < IDLE_LEVEL
    for _ in range(4):
        keeper.observe(Period(PERIOD_S, PERIOD_S, waits=True))
    assert keeper.level == IDLE_LEVEL


def test_a_process_that_computes_whenever_it_needs_to_keeps_the_least_level() -> None:
    keeper = ShareKeeper(SHARE)
    for computed in (0.0, 0.001, PERIOD_S, 0.0):
        keeper.observe(Period(PERIOD_S, computed, waits=False))
        assert keeper.level == IDLE_LEVEL
    assert not keeper.is_starved


def test_a_promise_is_broken_after_a_minute_with_less() -> None:
    keeper = ShareKeeper(SHARE)
    starved = []
    for _ in range(30):
        keeper.observe(Period(PERIOD_S, 0.016, waits=True))
        starved.append(keeper.is_starved)
    assert starved[-1]
    assert not any(starved[:25])
    assert keeper.rate == pytest.approx(0.008)
    assert keeper.level == keeper.strongest_level == 10
    for _ in range(30):
        keeper.observe(Period(PERIOD_S, 2 * SHARE * PERIOD_S, waits=True))
    assert not keeper.is_starved


def test_seconds_in_which_it_needs_nothing_do_not_break_a_promise() -> None:
    keeper = ShareKeeper(SHARE)
    for _ in range(100):
        keeper.observe(Period(PERIOD_S, 0.0, waits=False))
    assert not keeper.is_starved


@pytest.mark.parametrize(("share", "levels"), [(0.05, {10}), (0.01, {18}), (0.2, {4, 5, 6, 7, 8, 9, 10})])
def test_a_process_that_has_no_return_never_becomes_idle(share: float, levels: set[int]) -> None:
    keeper, used = ShareKeeper(share, can_raise=False), set()
    for i in range(100):
        computed = PERIOD_S if i % 10 else 0.0
        keeper.observe(Period(PERIOD_S, computed, waits=i % 2 == 0))
        used.add(keeper.level)
    assert used <= levels


#: a worker of a training as an LC starts it, of an ordinary user or not, with a child that always computes
TRAINING_WORKER = """
import asyncio, os, resource, sys, time
from halimede.system import cpu_share
from halimede.system.process_limits import can_raise_priority, give_low_priority, run_in_background
is_ordinary, share = sys.argv[1] == "True", float(sys.argv[2])
if is_ordinary:
    resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
if is_ordinary and not os.geteuid():
    os.setuid(65534)
cpu_share.PERIOD_S = 0.1
give_low_priority(os.getpid(), has_share=bool(share), keeps_share=True)
ready, is_ready = os.pipe()
worker = os.getpid()
if not (child := os.fork()):
    run_in_background(1, has_share=bool(share))
    os.write(is_ready, b".")
    while os.getppid() == worker: pass
    os._exit(0)
os.read(ready, 1)
async def main():
    keeper = cpu_share.CpuShare(share)
    task = asyncio.create_task(keeper.run())
    end = time.monotonic() + 2
    policies = set()
    while time.monotonic() < end:
        policies.add(os.sched_getscheduler(child))
        await asyncio.sleep(0.05)
    task.cancel()
    return policies
policies = asyncio.run(main()) if share else {os.sched_getscheduler(child)}
print(can_raise_priority(), os.SCHED_IDLE in policies, os.getpriority(os.PRIO_PROCESS, child))
"""


@pytest.mark.parametrize(
    ("is_ordinary", "share", "expected"),
    [(True, 0.05, "False False 10"), (False, 0.05, "True True"), (True, 0, "False True 19")],
    ids=["no return", "with the right", "no share"],
)
def test_a_training_of_an_ordinary_user_keeps_a_niceness_that_gives_it_its_share(
    is_ordinary: bool, share: float, expected: str
) -> None:
    if not is_ordinary and os.geteuid():
        pytest.skip("only root may raise priorities everywhere")
    ended = run_python("-c", TRAINING_WORKER, str(is_ordinary), str(share), timeout_s=120)
    assert ended.stdout.startswith(expected), ended


@pytest.mark.parametrize(("limit", "expected"), [(9, False), (10, True), (resource.RLIM_INFINITY, True)])
def test_a_niceness_limit_is_a_right_to_raise_it(monkeypatch: pytest.MonkeyPatch, limit: int, expected: bool) -> None:
    def setpriority(which: int, who: int, niceness: int) -> None:
        raise PermissionError

    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(os, "setpriority", setpriority)
    assert can_raise_priority() is expected


def test_a_process_without_the_right_to_raise_its_priority_says_so() -> None:
    code = """
import asyncio, os, sys
from halimede.system import cpu_share
os.setuid(65534)
cpu_share.PERIOD_S, cpu_share.WINDOW_S, cpu_share.REPORT_S = 0.1, 1.0, 0.1
async def main():
    keeper = cpu_share.CpuShare(1.0)
    task = asyncio.create_task(keeper.run())
    while not keeper.trouble and not task.done():
        await asyncio.sleep(0.1)
    print(keeper.trouble or task.exception())
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
worker = os.getpid()
for _ in range(2):
    if not os.fork():
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        while os.getppid() == worker: pass
        os._exit(0)
asyncio.run(main())
"""
    if os.geteuid():
        pytest.skip("only root can become a user without privileges")
    done = run_python("-c", code, timeout_s=120)
    print(done.stderr)
    assert "% of a core in the last minute, 100 % are promised" in done.stdout
    assert "RLIMIT_NICE" in done.stdout
