"""Two global managers with different stores never share a broker."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from services.broker import MosquittoProcess
from tests.waiting import patience


async def start(store: Path, broker: MosquittoProcess) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "halimede", "gm", "--store", str(store), "--broker", broker.url,
        stderr=asyncio.subprocess.PIPE, env={"HALIMEDE_LOG": "json", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip


async def says(process: asyncio.subprocess.Process, word: str) -> None:
    assert process.stderr is not None
    async with asyncio.timeout(patience(20)):
        while word not in (line := (await process.stderr.readline()).decode()):
            assert line, f"it ended before it said {word}"


async def test_a_second_gm_with_another_store_is_refused_and_the_first_goes_on(
    tmp_path: Path, mosquitto: MosquittoProcess
) -> None:
    first = await start(tmp_path / "first", mosquitto)
    try:
        await says(first, '"client": "halimede-gm"')
        second = await start(tmp_path / "second", mosquitto)
        _, errors = await asyncio.wait_for(second.communicate(), patience(20))
        assert second.returncode == 2
        assert "another global manager" in errors.decode().splitlines()[-1]
        assert first.returncode is None

        first.kill()  # its will says that it is gone, so its successor on the same store may come at once
        await first.wait()
        again = await start(tmp_path / "first", mosquitto)
        await says(again, '"client": "halimede-gm"')
        again.send_signal(signal.SIGTERM)
        await asyncio.wait_for(again.communicate(), patience(20))
        assert again.returncode == 0
    finally:
        if first.returncode is None:
            first.kill()
            await first.wait()
