"""A real Prometheus on loopback, and promtool: `scripts/setup.sh prometheus` unpacks both; tests skip without them."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.ports import free_port
from tests.programs import run_program, started
from tests.waiting import eventually


def program(name: str) -> str:
    """Return the path of a program of Prometheus; skip the test without it."""
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is missing: scripts/setup.sh prometheus unpacks it")
    return path


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_program(program("promtool"), *arguments)


@dataclass
class Prometheus:
    """A running one, asked over its HTTP API."""

    url: str
    session: aiohttp.ClientSession

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression has now, each with ``metric`` (labels) and ``value``."""
        async with self.session.get(f"{self.url}/api/v1/query", params={"query": expression}) as answer:
            body = await answer.json()
        assert body["status"] == "success", (expression, body)
        result = body["data"]["result"]
        return [{"metric": {}, "value": result}] if body["data"]["resultType"] == "scalar" else result

    async def pending_or_firing(self, alert: str) -> list[dict[str, Any]]:
        return await self.query(f'ALERTS{{alertname="{alert}"}}')


@contextlib.asynccontextmanager
async def scraping(folder: Path, config: str) -> AsyncIterator[Prometheus]:
    """Start Prometheus with a configuration, and end it behind the block."""
    command, port = program("prometheus"), free_port()
    folder.mkdir()
    (folder / "prometheus.yml").write_text(config)
    options = (
        f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    )  # fmt: skip
    with started(command, *options, log=folder / "log") as process:
        async with aiohttp.ClientSession() as session:
            prometheus = Prometheus(f"http://127.0.0.1:{port}", session)

            async def is_ready() -> bool:
                assert process.poll() is None, (folder / "log").read_text()
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"{prometheus.url}/-/ready") as answer:
                        return answer.status == 200
                return False

            await eventually(is_ready, 30.0, 0.1)
            yield prometheus
