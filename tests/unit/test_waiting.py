"""Deadlines of tests: longer on the clock of the machine, as they are in simulated time."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.waiting import SLOWEST, eventually, patience


async def test_a_slow_machine_has_longer_for_a_step() -> None:
    began = time.monotonic()
    await eventually(lambda: time.monotonic() - began > 0.2, 0.1)
    with pytest.raises(AssertionError, match=r"within 0\.1 s"):
        await eventually(lambda: False, 0.1 / SLOWEST)


@pytest.mark.simulated
async def test_simulated_time_passes_alike_on_all_machines() -> None:
    with pytest.raises(AssertionError, match="within 5 s"):
        await eventually(lambda: False, 5)
    assert 5 <= asyncio.get_running_loop().time() < 5.1


@pytest.mark.timeout(7)
def test_the_limit_of_a_test_is_longer_as_well(request: pytest.FixtureRequest) -> None:
    limit = request.node.get_closest_marker("timeout")
    assert limit.args == (patience(7),)
