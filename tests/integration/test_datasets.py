"""A dataset from its file to its reader: a real local controller, broker and GM, and what people are shown."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from halimede.api.base import kind_of
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.cli import tables
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.commands import describe
from services.broker import MosquittoProcess
from services.gm.app import GlobalManager
from services.gm.cluster.local import LocalCluster
from tests.integration.gm_world import dataset
from tests.ports import free_port
from tests.simulated import eventually
from tests.waiting import patience

ROOT = Path(__file__).parents[2]
PATIENCE = 30.0


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """A system of one node, edge0, whose controller is a process."""
    async with (
        MosquittoProcess(tmp_path / "broker", port=free_port()) as broker,
        LocalCluster(tmp_path / "gm" / "store.db") as cluster,
    ):
        work = asyncio.create_task(GlobalManager(MqttBus("gm", broker.url), cluster, cluster).run())
        arguments = ["--node", "edge0", "--home", str(tmp_path / "home"), "--broker", broker.url]
        arguments += ["--fetch-allow", "loopback"]
        with (tmp_path / "lc.log").open("wb") as log:
            lc = subprocess.Popen(
                [sys.executable, "-m", "halimede", "lc", *arguments],
                cwd=ROOT,
                env=dict(os.environ),
                stdout=log,
                stderr=log,
            )
        try:
            async with Client.to(BrokerAddress(MqttSettings("127.0.0.1", broker.port), "the test")) as made:
                yield made
        finally:
            lc.terminate()
            await asyncio.to_thread(lc.wait, patience(PATIENCE))
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work


async def reaches(client: Client, phase: str, **expected: Any) -> dict[str, Any]:
    body: dict[str, Any] = {}

    async def holds() -> bool:
        body.clear()
        body.update(await client.get("datasets", "helmets", "default"))
        status = body.get("status") or {}
        return status.get("phase") == phase and all(status.get(key) == value for key, value in expected.items())

    try:
        await eventually(holds, PATIENCE)
    except AssertionError as error:
        raise AssertionError(f"not {phase} {expected} but {body.get('status')}") from error
    return body


def shown(body: dict[str, Any]) -> str:
    out = io.StringIO()
    describe.render(Console(file=out, width=200), kind_of("dataset"), body, [])
    return out.getvalue()


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
    (helmet,) = (line for line in text.splitlines() if line.strip().startswith("helmet  "))
    (bare,) = (line for line in text.splitlines() if line.strip().startswith("bare  "))
    assert helmet.split()[1:3] == ["3,000", "75.0%"]
    assert helmet.count("\u2588") == 40
    assert 13 <= bare.count("\u2588") <= 14
    (fault,) = (line for line in text.splitlines() if line.strip().startswith("helmets.csv: line 4002"))
    assert fault.endswith("  1 columns where the header has 2")
    table = io.StringIO()
    Console(file=table, width=200).print(tables.resources("datasets", [found], wide=True, all_namespaces=False))
    assert table.getvalue().splitlines()[0].split()[:6] == ["NAME", "STATUS", "FORMAT", "SAMPLES", "CLASSES", "BROKEN"]
    assert table.getvalue().splitlines()[1].split()[:6] == ["helmets", "Ready", "csv", "4000", "2", "1"]


async def test_a_dataset_that_is_nowhere_is_not_ready(client: Client, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/helmets.csv"
    await client.apply(dataset("helmets", url=url, format="csv", nodeName="edge0"))
    condition = (await reaches(client, "Pending", observedGeneration=1))["status"]["conditions"][-1]
    async with asyncio.timeout(patience(PATIENCE)):
        while condition["reason"] != "Unreachable":
            await asyncio.sleep(0.1)
            condition = (await reaches(client, "Pending"))["status"]["conditions"][-1]
    assert url in condition["message"]
    assert "correct spec.url" in condition["message"]
    await client.apply(dataset("helmets", url=str(tmp_path / "nowhere"), format="csv"))
    found = await reaches(client, "Unused", observedGeneration=2)
    assert "set spec.nodeName" in found["status"]["conditions"][-1]["message"]
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(5000):
        (folder / f"{number}.xml").write_text("<annotation/>")
    await client.apply(dataset("helmets", url=str(folder), format="xml", nodeName="edge0"))
    await reaches(client, "Ready", numberOfSamples=5000)
