"""GM or an LC that hangs (SIGSTOP): `halimede status` ends non-zero within 15 s and names it; its workers go on.

A GM that continues beside another one, with another store, which started in its place, ends.
"""

from __future__ import annotations

import asyncio
import time
from signal import SIGCONT, SIGSTOP

import pytest

from tests.faults.control import Control
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: seconds within which it has to be named
NAMED_S = 15.0
STARTED = "global manager started"


@pytest.mark.parametrize(("who", "words"), [("gm", ("global manager",)), ("lc", ("edge0", "offline"))])
async def test_fault_38_a_hung_controller_is_named_and_goes_on_where_it_was(
    plane: Control, who: str, words: tuple[str, ...]
) -> None:
    children = {"gm": plane.gm_process(), "lc": plane.lc_process()}
    await plane.start_services("helmet")
    await plane.status_is_well()
    workers = plane.workers()

    children[who].process.send_signal(SIGSTOP)
    stopped = time.monotonic()
    while True:
        asked_s = time.monotonic() - stopped
        ended = await plane.halimede("status")
        if ended.returncode:
            break
        assert asked_s < NAMED_S, "a hung controller is taken for a good one"
        await asyncio.sleep(0.3)
    print(f"{who}: named after {time.monotonic() - stopped:.1f} s")
    assert all(word in ended.stdout for word in words), ended.stdout

    children[who].process.send_signal(SIGCONT)
    await plane.status_is_well()
    await plane.running("helmet")
    assert plane.workers() == workers


async def test_fault_38_a_gm_that_continues_beside_another_one_ends(plane: Control) -> None:
    first = plane.gm_process()
    plane.lc_process()
    await plane.start_services("helmet")
    await plane.status_is_well()
    first.process.send_signal(SIGSTOP)
    second = plane.gm_process(store=plane.folder / "gm2")
    await eventually(lambda: second.says(STARTED), patience(60))
    await plane.start_services("helmet", generation=2)
    first.process.send_signal(SIGCONT)
    await eventually(lambda: first.process.poll() is not None, patience(60))
    assert first.process.returncode == 2
    assert first.says("another global manager")
    await plane.status_is_well()
    assert second.process.poll() is None
    assert not second.says("bus down"), "the first one has taken its connection"
    await plane.start_services("other")
