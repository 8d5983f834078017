"""``apply`` warns of a service whose Models name their classes differently, and applies it all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.commands.apply import DryRun, apply_manifests
from tests.integration.cli.conftest import Output
from tests.integration.gm_world import model, service

SERVICE = service("hands", edge_worker={"hardExampleMining": {"name": "BoxCount"}})
WARNING = "jointinferenceservice/hands: small answers palm, and big numbers of classes (it has no spec.labels)"


def write(folder: Path, name: str, body: dict[str, Any]) -> str:
    """Write a manifest (JSON is YAML)."""
    (folder / name).write_text(json.dumps(body))
    return str(folder / name)


def detector(name: str, *labels: str) -> dict[str, Any]:
    return model(name, labels=list(labels), postprocess={"task": "detection"})


async def test_models_of_one_service_with_different_classes_are_a_warning_line(
    broker: BrokerAddress, client: Client, tmp_path: Path, capsys: Output
) -> None:
    small = write(tmp_path, "small.yaml", detector("small", "palm"))
    big = write(tmp_path, "big.yaml", detector("big"))
    hands = write(tmp_path, "service.yaml", SERVICE)
    for dry_run in DryRun:
        assert await apply_manifests(broker, [small, big, hands], "", dry_run) == 0
        assert capsys.readouterr().err.count(WARNING) == 1
    # GM has both Models by now
    assert await apply_manifests(broker, [hands], "") == 0
    assert capsys.readouterr().err.count(WARNING) == 1
    assert await apply_manifests(broker, [hands], "", DryRun.CLIENT) == 0
    assert WARNING not in capsys.readouterr().err
    named = write(tmp_path, "big.yaml", detector("big", "palm"))
    assert await apply_manifests(broker, [hands, named], "") == 0
    assert "spec.labels" not in capsys.readouterr().err


async def test_a_model_that_is_nowhere_is_no_warning_of_classes(
    broker: BrokerAddress, client: Client, tmp_path: Path, capsys: Output
) -> None:
    small = write(tmp_path, "small.yaml", detector("small", "palm"))
    assert await apply_manifests(broker, [small, write(tmp_path, "service.yaml", SERVICE)], "") == 0
    assert "spec.labels" not in capsys.readouterr().err
