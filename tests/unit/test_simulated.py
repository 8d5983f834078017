"""Simulated time: the clock stands while threads work, and what cannot end is stopped."""

from __future__ import annotations

import asyncio

import pytest

from tests import simulated as module
from tests.simulated import SimulationError, simulate


@pytest.mark.simulated
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
