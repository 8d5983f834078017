"""Simulated time: deadlines pass at once, threads still work, and what cannot end is stopped."""

from __future__ import annotations

import asyncio

import pytest

from tests import simulated as module
from tests.simulated import SimulationError, eventually, simulate, simulated


@simulated
async def test_a_deadline_of_a_day_passes_at_once() -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(24 * 3600):
            await asyncio.Event().wait()
    assert loop.time() == 24 * 3600


@simulated
async def test_timers_run_in_order_whatever_else_goes_on() -> None:
    order: list[int] = []

    async def note(number: int) -> None:
        await asyncio.sleep(number)
        order.append(number)

    await asyncio.gather(*(note(number) for number in (3, 1, 2)))
    assert order == [1, 2, 3]


@simulated
async def test_the_clock_stands_while_a_thread_works() -> None:
    async with asyncio.timeout(0.001):
        assert await asyncio.to_thread(sum, [1, 2]) == 3


def test_a_simulation_without_an_end_is_stopped() -> None:
    async def for_ever() -> None:
        while True:
            await asyncio.sleep(3600)

    with pytest.raises(SimulationError, match="no end"):
        simulate(for_ever())


def test_a_simulation_in_which_everything_waits_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)

    async def stuck() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationError, match="nothing is left to happen"):
        simulate(stuck())


@simulated
async def test_what_does_not_come_true_fails_at_its_deadline() -> None:
    with pytest.raises(AssertionError, match="within 5 s"):
        await eventually(lambda: False, timeout_s=5)
