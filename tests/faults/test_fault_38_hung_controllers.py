"""GM or an LC that hangs (SIGSTOP): `halimede status` ends non-zero within 15 s and names it; its workers go on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest

from tests.faults.control import control

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

#: seconds within which it has to be named
NAMED_S = 15.0


@pytest.mark.parametrize(("who", "words"), [("gm", ("global manager",)), ("lc", ("edge0", "offline"))])
async def test_fault_38_a_hung_controller_is_named_and_goes_on_where_it_was(
    tmp_path: Path, who: str, words: tuple[str, ...]
) -> None:
    async with control(tmp_path) as plane:
        children = {"gm": plane.gm_process(), "lc": plane.lc_process()}
        await plane.apply(*plane.models(), plane.service("helmet"))
        await plane.running("helmet")
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
