"""``apply`` warns of a service whose Models name their classes differently, and applies it all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede.cli.broker_address import BrokerAddress
from halimede.cli.client import Client
from halimede.cli.commands.apply import DryRun, apply_manifests

MODEL = """\
---
apiVersion: sedna.io/v1alpha1
kind: Model
metadata: {{name: {name}}}
spec:
  url: /models/{name}.onnx
  format: onnx
  labels: [{labels}]
  postprocess: {{task: detection}}
"""
SERVICE = """\
---
apiVersion: sedna.io/v1alpha1
kind: JointInferenceService
metadata: {name: hands}
spec:
  edgeWorker:
    model: {name: small}
    hardExampleMining: {name: BoxCount}
    template: {spec: {nodeName: edge0, containers: [{name: edge}]}}
  cloudWorker:
    model: {name: big}
    template: {spec: {nodeName: cloud0, containers: [{name: cloud}]}}
"""
WARNING = "jointinferenceservice/hands: small answers palm, and big numbers of classes (it has no spec.labels)"
Output = pytest.CaptureFixture[str]


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


async def test_models_of_one_service_with_different_classes_are_a_warning_line(
    broker: BrokerAddress, client: Client, tmp_path: Path, capsys: Output
) -> None:
    small = write(tmp_path, "small.yaml", MODEL.format(name="small", labels="palm"))
    big = write(tmp_path, "big.yaml", MODEL.format(name="big", labels=""))
    service = write(tmp_path, "service.yaml", SERVICE)
    for dry_run in DryRun:
        assert await apply_manifests(broker, [small, big, service], "", dry_run) == 0
        assert capsys.readouterr().err.count(WARNING) == 1
    # GM has both Models by now
    assert await apply_manifests(broker, [service], "") == 0
    assert capsys.readouterr().err.count(WARNING) == 1
    assert await apply_manifests(broker, [service], "", DryRun.CLIENT) == 0
    assert WARNING not in capsys.readouterr().err
    named = write(tmp_path, "big.yaml", MODEL.format(name="big", labels="palm"))
    assert await apply_manifests(broker, [service, named], "") == 0
    assert "spec.labels" not in capsys.readouterr().err


async def test_a_model_that_is_nowhere_is_no_warning_of_classes(
    broker: BrokerAddress, client: Client, tmp_path: Path, capsys: Output
) -> None:
    small = write(tmp_path, "small.yaml", MODEL.format(name="small", labels="palm"))
    assert await apply_manifests(broker, [small, write(tmp_path, "service.yaml", SERVICE)], "") == 0
    assert "spec.labels" not in capsys.readouterr().err
