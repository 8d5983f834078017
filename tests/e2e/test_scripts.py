"""Users' scripts: in the seeds' own form, as written for Sedna, and those with nothing but their imports changed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from halimede import topics
from halimede.bus.mqtt import MqttBus
from halimede.messages import Load
from services.broker import MosquittoProcess
from tests.e2e.running import DIGITS, ROOT, START, digits, running
from tests.inbox import Inbox
from tests.programs import started
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SCRIPTS = ROOT / "examples" / "sedna"
PICTURES = 300


def counts(folder: Path) -> dict[str, int]:
    numbers: dict[str, int] = json.loads((folder / "counts.json").read_text())
    return numbers


def check(numbers: dict[str, int]) -> None:
    """All pictures are answered, the hard ones by the cloud, and both together are better than the edge alone."""
    assert numbers["pictures"] == PICTURES
    assert 0 < numbers["hard"] == numbers["cloud"] < PICTURES / 2
    assert numbers["right"] >= numbers["edge_right"] + 0.05 * PICTURES


async def first_load(broker: MosquittoProcess, service: str, cloud: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a cloud worker says what it can take; the broker keeps that for those who come later."""
    loads: Inbox[Load] = Inbox()
    async with MqttBus(f"watch-{service}", broker.url) as bus:
        await bus.subscribe(topics.LOAD.filter(ns="default", service=service), loads)
        await eventually(lambda: loads.deliveries or cloud.poll() is not None, START)
    assert loads.deliveries, log.read_text()


async def test_untouched_scripts_of_an_applied_service_answer_and_are_counted_in_its_status(tmp_path: Path) -> None:
    digits()
    folder, output = tmp_path / "sedna", tmp_path / "output"
    shutil.copytree(SCRIPTS, folder)
    manifest = YAML(typ="safe").load(folder / "service.yaml")
    edge = manifest["spec"]["edgeWorker"]["template"]["spec"]["containers"][0]
    variables = {"all_examples_inference_output": str(output), "pictures": str(PICTURES)}
    edge["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    YAML().dump(manifest, folder / "service.yaml")
    async with running(tmp_path / "home", "edge0,cloud0") as system:
        await system.follow("sedna")
        await system.apply(DIGITS / "1-models.yaml")
        await system.apply(folder / "service.yaml")
        await system.until("answers", (output / "counts.json").exists)
        await system.until_running()
        await system.until("counts", lambda: system.metric("inferenceNumber") == PICTURES)
        numbers = counts(output)
        assert numbers["pictures"] == PICTURES
        assert system.metric("hardExampleNumber") == numbers["hard"] > 0
        assert system.metric("cloudInferenceNumber") == numbers["cloud"]
        assert system.metric("degraded") == numbers["hard"] - numbers["cloud"]


async def test_scripts_with_nothing_but_their_imports_changed_run_as_two_processes(
    tmp_path: Path, mosquitto: MosquittoProcess, unique: str
) -> None:
    digits()
    for name in ("edge.py", "cloud.py"):
        text = (SCRIPTS / name).read_text()
        assert "halimede" not in text
        (tmp_path / name).write_text(text.replace("from sedna.", "from halimede.compat.sedna."))
    common = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "SERVICE_NAME": unique, "HALIMEDE_BROKER": mosquitto.url,
        "DEADLINE_MS": "30000", "OMP_NUM_THREADS": "1", "pictures": str(PICTURES),
        "all_examples_inference_output": str(tmp_path / "output"),
        "HEM_NAME": "Margin", "HEM_PARAMETERS": '[{"key": "threshold_margin", "value": "0.19"}]',
    }  # fmt: skip
    log = tmp_path / "log"

    def run(script: str, model: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        environment = {**common, "MODEL_URL": str(DIGITS / "models" / model)}
        return started(sys.executable, script, log=log, cwd=tmp_path, env=environment)

    with run("cloud.py", "big.onnx") as cloud:
        await first_load(mosquitto, unique, cloud, log)
        with run("edge.py", "small.onnx") as edge:
            assert await asyncio.to_thread(edge.wait, patience(90)) == 0, log.read_text()
        cloud.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(cloud.wait, patience(30)) == 0, log.read_text()
    check(counts(tmp_path / "output"))


async def test_a_neptune_services_scripts_start_and_answer_frames(tmp_path: Path) -> None:
    pictures = digits()[:100]
    async with running(tmp_path / "home", "edge0,cloud0") as system:
        await system.follow("scripted")
        await system.apply(DIGITS / "1-models.yaml")
        await system.apply(ROOT / "examples" / "script" / "service.yaml")
        await system.until_running()
        workers = system.workers()
        assert sorted(workers) == ["worker:scripted-cloud-cloud0", "worker:scripted-edge-edge0"]
        edge = workers["worker:scripted-edge-edge0"]
        assert edge.cmdline()[1:] == ["edge.py"]
        assert edge.cwd() == str(ROOT / "examples" / "script" / "code")
        assert edge.environ()["ANYTHING"].startswith("reaches")
        await system.send(pictures, camera="scripted")
        await system.until_answered(30)
        assert {r.by for r in system.results.values()} == {"edge", "cloud"}
        assert not any(r.degraded for r in system.results.values())
