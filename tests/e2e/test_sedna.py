"""Scripts as they are written for Sedna: untouched in an applied service, and with their imports changed by hand."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.messages import Load
from services.broker import MosquittoProcess
from tests.e2e.running import DIGITS, ROOT, START, digits, running
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SCRIPTS = ROOT / "examples" / "sedna"
PICTURES = 300


def counts(folder: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((folder / "counts.json").read_text())
    return found


def check(said: dict[str, int]) -> None:
    """All pictures are answered, the hard ones by the cloud, and both together are better than the edge alone."""
    assert said["pictures"] == PICTURES
    assert 0 < said["hard"] == said["cloud"] < PICTURES / 2
    assert said["right"] >= said["edge_right"] + 0.05 * PICTURES


async def first_load(broker: MosquittoProcess, service: str, cloud: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a cloud worker says what it can take; the broker keeps that for those who come later."""
    said = asyncio.Event()

    async def load(_: Delivery[Load]) -> None:
        said.set()

    async with MqttBus(f"watch-{service}", broker.url) as bus:
        await bus.subscribe(topics.LOAD.filter(ns="default", service=service), load)
        await eventually(lambda: said.is_set() or cloud.poll() is not None, START)
    assert said.is_set(), log.read_text()


async def test_untouched_scripts_of_an_applied_service_answer_and_are_counted_in_its_status(tmp_path: Path) -> None:
    digits()
    folder, output = tmp_path / "sedna", tmp_path / "output"
    shutil.copytree(SCRIPTS, folder)
    manifest = YAML(typ="safe").load(folder / "service.yaml")
    edge = manifest["spec"]["edgeWorker"]["template"]["spec"]["containers"][0]
    edge["env"] = [
        {"name": "all_examples_inference_output", "value": str(output)},
        {"name": "pictures", "value": "300"},
    ]
    YAML().dump(manifest, folder / "service.yaml")
    async with running(tmp_path / "home", "edge0,cloud0") as system:
        await system.follow("sedna")
        await system.apply(DIGITS / "1-models.yaml")
        await system.apply(folder / "service.yaml")
        await system.until("answers", (output / "counts.json").exists)
        await system.until("Running", lambda: system.phase == "Running")
        await system.until("counts", lambda: system.metric("inferenceNumber") == PICTURES)
        said = counts(output)
        assert said["pictures"] == PICTURES
        assert system.metric("hardExampleNumber") == said["hard"] > 0
        assert system.metric("cloudInferenceNumber") == said["cloud"]
        assert system.metric("degraded") == said["hard"] - said["cloud"]


async def test_scripts_with_nothing_but_their_imports_changed_run_as_two_processes(
    tmp_path: Path, mosquitto: MosquittoProcess, unique: str
) -> None:
    digits()
    for name in ("edge.py", "cloud.py"):
        text = (SCRIPTS / name).read_text()
        assert "halimede" not in text
        (tmp_path / name).write_text(text.replace("from sedna.", "from halimede.compat.sedna."))
    told = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "SERVICE_NAME": unique, "HALIMEDE_BROKER": mosquitto.url,
        "DEADLINE_MS": "30000", "OMP_NUM_THREADS": "1", "pictures": str(PICTURES),
        "all_examples_inference_output": str(tmp_path / "output"),
        "HEM_NAME": "Margin", "HEM_PARAMETERS": '[{"key": "threshold_margin", "value": "0.19"}]',
    }  # fmt: skip
    with (tmp_path / "log").open("wb") as log:

        def start(script: str, model: str) -> subprocess.Popen[bytes]:
            environment = {**told, "MODEL_URL": str(DIGITS / "models" / model)}
            return subprocess.Popen([sys.executable, script], cwd=tmp_path, env=environment, stdout=log, stderr=log)

        cloud = start("cloud.py", "big.onnx")
        try:
            await first_load(mosquitto, unique, cloud, tmp_path / "log")
            edge = start("edge.py", "small.onnx")
            assert await asyncio.to_thread(edge.wait, patience(90)) == 0, (tmp_path / "log").read_text()
            cloud.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(cloud.wait, patience(30)) == 0, (tmp_path / "log").read_text()
        finally:
            cloud.kill()
    check(counts(tmp_path / "output"))
