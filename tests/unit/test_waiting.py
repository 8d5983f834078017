"""Deadlines of tests: longer on the clock of the machine, as they are in simulated time."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from tests.waiting import SLOWEST, eventually, output_of, patience


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


class Program:
    """A program that prints a piece every second, and then nothing until it is ended."""

    def __init__(self, pieces: int, *, ends: bool) -> None:
        self.stdout = asyncio.StreamReader()
        self.signals: list[int] = []
        self._ended = asyncio.Event()
        self._printing = asyncio.create_task(self._print(pieces, ends=ends))

    async def _print(self, pieces: int, *, ends: bool) -> None:
        for _ in range(pieces):
            await asyncio.sleep(1)
            self.stdout.feed_data(b".")
        if ends:
            self.send_signal(0)

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        self.stdout.feed_eof()
        self._ended.set()

    async def wait(self) -> None:
        await self._ended.wait()


@pytest.mark.simulated
async def test_a_program_may_take_long_as_long_as_it_prints() -> None:
    goes_on = Program(100, ends=True)
    assert await output_of(goes_on, silence_s=1) == 100 * "."  # type: ignore[arg-type]
    assert goes_on.signals == [0]
    stops = Program(3, ends=False)
    with pytest.raises(AssertionError, match=r"nothing printed for 5 s after:\n\.\.\."):
        await output_of(stops, silence_s=1)  # type: ignore[arg-type]
    assert stops.signals == [signal.SIGINT]
