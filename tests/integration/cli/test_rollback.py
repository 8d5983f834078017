"""`halimede rollback` against a real global manager, and against one whose resources are those of Kubernetes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from halimede.api import kind_of
from halimede.bus.mqtt import MqttBus
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.commands.rollback import roll_back
from halimede.cli.manifests import load
from halimede.errors import HalimedeError
from services.broker import MosquittoProcess
from services.gm.app import GlobalManager
from services.gm.cluster.local import LocalCluster
from tests.integration.cli.conftest import Node
from tests.integration.cli.test_commands import DIGITS

Output = pytest.CaptureFixture[str]
SMALL = "digits-small"
A, B = "a" * 64, "b" * 64


@contextlib.asynccontextmanager
async def managed(mosquitto: MosquittoProcess, store: Path, *, editor: bool) -> AsyncIterator[None]:
    async with LocalCluster(store) as cluster:
        manager = GlobalManager(MqttBus("gm", mosquitto.url), cluster, cluster if editor else None)
        work = asyncio.create_task(manager.run())
        try:
            yield
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work


async def serve(client: Client, digest: str) -> None:
    """Give the small model another file, and wait until nodes have it."""
    (found,) = [m.resource for m in load([DIGITS]) if m.resource.metadata.name == SMALL]
    spec = {**found.body["spec"], "url": f"/{digest[:4]}.onnx", "sha256": digest}
    await client.apply({**found.body, "spec": spec})
    await client.wait_until(lambda body: served(body)[:1] == [digest], "models", SMALL, timeout_s=30)


def served(body: Any) -> list[str]:
    return [version["digest"] for version in ((body or {}).get("status") or {}).get("versions", [])]


async def test_a_model_goes_back_to_the_version_before_and_to_one_that_is_named(
    broker: BrokerAddress, client: Client, nodes: Any, capsys: Output
) -> None:
    kind = kind_of("model")
    for manifest in load([DIGITS]):
        await client.apply(manifest.resource.body)
    await serve(client, A)
    await serve(client, B)
    capsys.readouterr()
    assert await roll_back(broker, kind, SMALL, "default", "") == 0
    assert f"goes back to version {A[:12]}" in capsys.readouterr().out
    spec = (await client.get("models", SMALL))["spec"]
    assert (spec["url"], spec["sha256"]) == ("/aaaa.onnx", A)
    await client.wait_until(lambda body: served(body)[:2] == [A, B], "models", SMALL, timeout_s=30)
    assert await roll_back(broker, kind, SMALL, "default", B[:8]) == 0
    with pytest.raises(HalimedeError, match="only models and inferencemodels"):
        await roll_back(broker, kind_of("dataset"), "x", "default", "")


async def test_on_kubernetes_the_command_that_does_it_is_printed(
    broker: BrokerAddress, mosquitto: MosquittoProcess, tmp_path: Path, capsys: Output
) -> None:
    store = tmp_path / "kubernetes.db"
    async with (
        managed(mosquitto, store, editor=True),
        MqttBus("lc-edge0", mosquitto.url) as bus,
        Client.to(broker) as client,
    ):
        await Node(bus, "edge0").start()
        for manifest in load([DIGITS]):
            await client.apply(manifest.resource.body)
        await serve(client, A)
        await serve(client, B)
    async with managed(mosquitto, store, editor=False):
        assert await roll_back(broker, kind_of("model"), SMALL, "default", "") == 1
        words = shlex.split(capsys.readouterr().out.splitlines()[-1])
        assert words[:3] == ["kubectl", "patch", "models.sedna.io"]
        assert json.loads(words[-1]) == {"spec": {"url": "/aaaa.onnx", "sha256": A}}
