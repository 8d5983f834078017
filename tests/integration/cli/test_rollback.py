"""`halimede rollback` against a real global manager, and against one whose resources are those of Kubernetes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from halimede.api import kind_of
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.commands.rollback import roll_back
from halimede.cli.manifests import load
from halimede.errors import HalimedeError
from services.broker import MosquittoProcess
from tests.integration.cli.conftest import DIGITS, Node, Output, connected, manager

SMALL = "digits-small"
A, B = "a" * 64, "b" * 64


async def serve(client: Client, *digests: str) -> None:
    """Apply the service, give its small model other files, and wait for each until nodes have it."""
    bodies = {manifest.resource.metadata.name: manifest.resource.body for manifest in load([DIGITS])}
    for body in bodies.values():
        await client.apply(body)
    for digest in digests:
        spec = {**bodies[SMALL]["spec"], "url": f"/{digest[:4]}.onnx", "sha256": digest}
        await client.apply({**bodies[SMALL], "spec": spec})
        await client.wait_until(lambda body, digest=digest: served(body)[:1] == [digest], "models", SMALL, timeout_s=30)


def served(body: Any) -> list[str]:
    return [version["digest"] for version in ((body or {}).get("status") or {}).get("versions", [])]


async def test_a_model_goes_back_to_the_version_before_and_to_one_that_is_named(
    broker: BrokerAddress, client: Client, nodes: Any, capsys: Output
) -> None:
    kind = kind_of("model")
    await serve(client, A, B)
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
        manager(mosquitto.url, store),
        connected("lc-edge0", mosquitto) as bus,
        Client.to(broker) as client,
    ):
        await Node(bus, "edge0").start()
        await serve(client, A, B)
    async with manager(mosquitto.url, store, edits=False):
        assert await roll_back(broker, kind_of("model"), SMALL, "default", "") == 1
        words = shlex.split(capsys.readouterr().out.splitlines()[-1])
        assert words[:3] == ["kubectl", "patch", "models.sedna.io"]
        assert json.loads(words[-1]) == {"spec": {"url": "/aaaa.onnx", "sha256": A}}
