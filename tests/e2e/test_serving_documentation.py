"""Every line of docs/serving.md, typed in as it stands there."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.running import ROOT, digits
from tests.e2e.test_documentation import commands
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
SERVERS = ("halimede serve", "halimede router")


async def test_the_lines_of_the_servers(tmp_path: Path) -> None:
    lines = commands("docs/serving.md")
    assert sum(line.startswith(SERVERS) for line in lines) == 3
    assert sum(line.startswith("curl") for line in lines) == 4
    digits()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path),
                   "REQUEST": str(tmp_path / "request.json"), "HALIMEDE_BROKER": ""}  # fmt: skip
    servers: list[asyncio.subprocess.Process] = []
    try:
        for line in lines:
            serves = line.startswith(SERVERS)
            process = await asyncio.create_subprocess_exec(
                "bash", "-c", f"exec {line}", cwd=ROOT, env=environment,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            if serves:
                servers.append(process)
                await ready(line.rpartition("--http ")[2].split()[0], process)
                continue
            async with asyncio.timeout(patience(60)):
                output, _ = await process.communicate()
            assert process.returncode == 0, f"{line}\n{output.decode()}"
            if "18504" in line:
                assert b'"by"' in output, output
        for process in servers:
            process.terminate()
            async with asyncio.timeout(patience(60)):
                await process.communicate()
            assert process.returncode == 0
    finally:
        for process in servers:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def ready(address: str, process: asyncio.subprocess.Process) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(patience(60)):
        while True:
            assert process.returncode is None, (await process.stdout.read()).decode() if process.stdout else ""
            try:
                async with session.get(f"http://{address}/readyz") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
