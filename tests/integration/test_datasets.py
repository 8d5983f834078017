"""A dataset from its file to its reader: a real local controller, broker and GM, and what people are shown."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from halimede.api.base import kind_of
from halimede.bus.mqtt import MqttSettings
from halimede.cli import tables
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.commands import describe
from services.broker import MosquittoProcess
from tests.integration.cli.conftest import manager
from tests.integration.gm_world import dataset
from tests.simulated import eventually
from tests.waiting import patience

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0


@pytest.fixture
async def client(tmp_path: Path, own_broker: MosquittoProcess) -> AsyncIterator[Client]:
    """A system of one node, edge0, whose controller is a process."""
    arguments = ["--node", "edge0", "--home", str(tmp_path / "home"), "--broker", own_broker.url]
    command = [sys.executable, "-m", "halimede", "lc", *arguments, "--fetch-allow", "loopback"]
    address = BrokerAddress(MqttSettings("127.0.0.1", own_broker.port), "the test")
    async with manager(own_broker.url, tmp_path / "gm" / "store.db"):
        with (tmp_path / "lc.log").open("wb") as log:
            lc = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            async with Client.to(address) as made:
                yield made
        finally:
            lc.terminate()
            await asyncio.to_thread(lc.wait, patience(PATIENCE))


async def reaches(client: Client, phase: str, **expected: Any) -> dict[str, Any]:
    body: dict[str, Any] = {}

    async def holds() -> bool:
        body.update(await client.get("datasets", "helmets", "default"))
        return (body.get("status") or {}).items() >= {"phase": phase, **expected}.items()

    await eventually(holds, PATIENCE, shown=lambda: f"not {phase} {expected} but {body.get('status')}")
    return body


def shown(body: dict[str, Any]) -> str:
    out = io.StringIO()
    describe.render(Console(file=out, width=200), kind_of("dataset"), body, [])
    return out.getvalue()


def row(text: str, start: str) -> str:
    (line,) = (line for line in text.splitlines() if line.strip().startswith(start))
    return line


async def test_a_dataset_is_counted_on_its_node_and_drawn_for_people(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "helmets.csv"
    body = dataset("helmets", url=str(path), format="csv", nodeName="edge0")
    await client.apply(body)
    found = await reaches(client, "Failed")
    assert found["status"]["conditions"][-1]["reason"] == "DatasetNotFound"
    path.write_text("x,label\n" + "1,helmet\n" * 3000 + "2,bare\n" * 1000 + "3\n")
    await client.apply(dataset("helmets", url=f"file://{path}", format="csv", nodeName="edge0"))
    found = await reaches(client, "Ready", numberOfSamples=4000)
    text = shown(found)
    assert "4,000 samples, 34.0 kB" in text
    helmet, bare, fault = (row(text, start) for start in ("helmet  ", "bare  ", "helmets.csv: line 4002"))
    assert helmet.split()[1:3] == ["3,000", "75.0%"]
    assert helmet.count("\u2588") == 40
    assert 13 <= bare.count("\u2588") <= 14
    assert fault.endswith("  1 columns where the header has 2")
    table = io.StringIO()
    Console(file=table, width=200).print(tables.resources("datasets", [found], wide=True, all_namespaces=False))
    assert table.getvalue().splitlines()[0].split()[:6] == ["NAME", "STATUS", "FORMAT", "SAMPLES", "CLASSES", "BROKEN"]
    assert table.getvalue().splitlines()[1].split()[:6] == ["helmets", "Ready", "csv", "4000", "2", "1"]
