"""What ``halimede apply`` prints about files that have changed behind an unchanged manifest."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.commands.apply import DryRun, apply_manifests
from tests.integration.gm_world import SERVICES, model, service
from tests.waiting import eventually

OLD = hashlib.sha256(b"old").hexdigest()


def manifests(folder: Path) -> Path:
    """Write manifests of a service with a script and a rule, and their files."""
    for name in ("small.bin", "edge.py", "few.py"):
        (folder / name).write_bytes(name.encode())
    body = service()
    edge = body["spec"]["edgeWorker"]
    edge["hardExampleMining"] = {"name": "few.py:Few"}
    edge["template"]["spec"]["containers"][0] |= {"command": ["python", "edge.py"], "workingDir": "."}
    path = folder / "all.yaml"
    with path.open("w") as file:
        YAML().dump_all([model("small", url="small.bin", format="own"), model("big"), body], file)
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def test_apply_prints_the_old_and_the_new_digest_of_changed_files(
    broker: BrokerAddress, client: Client, nodes: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, edge = manifests(tmp_path), nodes["edge0"]
    script, rule, file = (tmp_path / name for name in ("edge.py", "few.py", "small.bin"))
    edge.digests = {"small": OLD}
    edge.code = {str(script): OLD[:16], str(rule): digest(rule)[:16]}
    assert await apply_manifests(broker, [str(path)], "") == 0
    assert "changed" not in capsys.readouterr().out, "nothing is known of before"

    async def is_reported() -> bool:
        stored = await client.get(SERVICES, "helmet")
        small = await client.get("models", "small")
        codes = [node.get("code") for node in stored.get("status", {}).get("nodes", ())]
        return edge.code in codes and (small.get("status", {}).get("model") or {}).get("digest") == OLD

    await eventually(is_reported)
    assert await apply_manifests(broker, [str(path)], "", DryRun.SERVER) == 0
    assert "changed" not in capsys.readouterr().out.replace("unchanged", "")
    assert await apply_manifests(broker, [str(path)], "") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"model/small: file changed: sha256 {OLD[:12]}.. -> {digest(file)[:12]}.." in out
    assert f"{script} changed: sha256 {OLD[:12]}.. -> {digest(script)[:12]}.." in out
    assert str(rule) not in out, "the nodes have this content"
