"""The server's process to who supervises it: its reports over Mosquitto, its mistakes, its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from halimede import topics
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.messages import WorkerInfo
from halimede.models import desired_state
from halimede.models.desired_state import Desired
from halimede.serving.server import main
from services.broker import MosquittoProcess
from tests.ports import free_port
from tests.scraping import scrape
from tests.serving_world import ROOT, adds, counts, server, wish
from tests.simulated import eventually
from tests.waiting import patience


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[MosquittoProcess]:
    """A Mosquitto of its own."""
    async with MosquittoProcess(tmp_path / "broker", port=free_port()) as running:
        yield running


METRICS = {
    "halimede_serve_requests", "halimede_serve_failures", "halimede_serve_rollouts", "halimede_serve_refused_versions",
    "halimede_serve_waiting_requests", "halimede_serve_version_info", "halimede_serve_seconds",
    "halimede_serve_batch_samples",
}  # fmt: skip


@pytest.mark.slow
async def test_it_tells_its_local_controller_which_model_it_has_and_where(
    tmp_path: Path, broker: MosquittoProcess
) -> None:
    infos: list[WorkerInfo] = []

    async def heard(delivery: Delivery[WorkerInfo]) -> None:
        infos.append(delivery.body)

    file = tmp_path / "models.json"
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    first = wish(adds(tmp_path / "1.onnx", 1), version="1")
    desired_state.write(file, Desired(models=[wish(bad, version="0")]))
    told = {
        "HALIMEDE_BROKER": broker.url, "NAMESPACE": "default", "SERVICE_NAME": "face", "SERVICE_UID": "u-1",
        "WORKER_NAME": "face-serve-n1", "NODE_NAME": "n1", "LC_PERIOD": "0.1",
    }  # fmt: skip
    async with MqttBus("lc", broker.url) as bus:
        await bus.wait_connected(patience(5))
        await bus.subscribe(topics.WORKER_INFO.filter(node="n1"), heard)
        async with server(tmp_path / "server", "--file", str(file), **told) as made:
            await eventually(lambda: infos and infos[-1].model and infos[-1].reason, 60)
            assert (infos[-1].status, infos[-1].reason) == ("starting", "ModelInvalid")
            desired_state.write(file, Desired(models=[first]))
            await eventually(lambda: infos[-1].status == "running", 60)
            said = infos[-1]
            assert (said.role, said.owner_kind, said.owner_name, said.owner_uid) == (
                "serve", "inferencemodel", "face", "u-1",
            )  # fmt: skip
            assert said.url == said.http == made.http
            assert said.model
            assert (said.model.version, said.model.mark) == ("1", first.mark)
            desired_state.write(file, Desired(models=[wish(bad, version="2")]))
            await eventually(lambda: infos[-1].model and infos[-1].model.reason == "ModelInvalid", 60)
            assert infos[-1].status == "running"
            assert infos[-1].model
            assert infos[-1].model.version == "1"
            assert await made.terminate() == 0
            await eventually(lambda: infos[-1].status == "completed")


@pytest.mark.slow
async def test_it_tells_that_a_model_came_late(tmp_path: Path, broker: MosquittoProcess) -> None:
    infos: list[WorkerInfo] = []

    async def heard(delivery: Delivery[WorkerInfo]) -> None:
        infos.append(delivery.body)

    file = tmp_path / "models.json"
    desired_state.write(file, Desired(models=[wish(tmp_path / "late.onnx", version="1")]))
    told = {
        "HALIMEDE_BROKER": broker.url, "NAMESPACE": "default", "SERVICE_NAME": "face", "SERVICE_UID": "u-1",
        "WORKER_NAME": "face-serve-n1", "NODE_NAME": "n1", "LC_PERIOD": "0.1",
    }  # fmt: skip
    async with MqttBus("lc", broker.url) as bus:
        await bus.wait_connected(patience(5))
        await bus.subscribe(topics.WORKER_INFO.filter(node="n1"), heard)
        async with server(tmp_path / "server", "--file", str(file), **told):
            await eventually(lambda: infos and infos[-1].reason == "ModelUnreadable", 60)
            adds(tmp_path / "late.onnx", 1)
            await eventually(lambda: (infos[-1].status, infos[-1].reason) == ("running", ""), 60)


async def test_its_figures_have_names_types_and_units(tmp_path: Path) -> None:
    async with server(tmp_path / "s", str(adds(tmp_path / "m.onnx", 1))) as made, aiohttp.ClientSession() as session:
        await made.ready()
        body = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [0, 0]}]}
        async with session.post(f"{made.http}/v2/models/m/infer", json=body) as answer:
            assert answer.status == 200
        found = await scrape(session, made.http)
    assert {name for name in found if name.startswith("halimede_serve")} == METRICS
    documented = (ROOT / "docs/reference/metrics.md").read_text()
    for name in METRICS:
        assert f"`{name}" in documented, name


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "give models, or --file"),
        (["nowhere.onnx"], "there is no such file"),
        (["README.md"], "is not an ONNX model"),
        (["{good}", "{good}"], "there are two models"),
        (["{good}", "--http", "nonsense"], "write host:port"),
        (["{good}", "--http", "off"], "write host:port"),
        (["{good}", "--spec", "README.md"], "give a file with a Model's spec as JSON"),
        (["{good}", "--spec", "{spec}"], "spec.labels"),
        (["{good}", "--estimator", "nowhere:Class"], "importing it failed"),
        (["--file", "{good}", "--spec", "{spec}"], "leave out --spec"),
        (["--file", "{good}"], "--file: '{good}' is not accepted: write its models as JSON"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(
    tmp_path: Path,
    arguments: list[str],
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    good, spec = adds(tmp_path / "m.onnx", 1), tmp_path / "spec.json"
    spec.write_text(json.dumps({"labels": 7}))
    given = [text.format(good=good, spec=spec) for text in arguments]
    ports = [] if "--http" in given else ["--http", "127.0.0.1:0"]
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HALIMEDE_LOG_LEVEL", "CRITICAL")
    monkeypatch.setattr(os, "_exit", pytest.fail)  # it would end the tests
    for where in (sys, threading):  # a service shows what nobody catches; tests do so themselves
        monkeypatch.setattr(where, "excepthook", where.excepthook)
    assert main([*given, *ports]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("halimede serve: "), lines
    assert what.format(good=good) in lines[0]


def test_a_mistake_is_the_only_word_of_the_process_and_its_exit_code() -> None:
    command = [sys.executable, "-m", "halimede", "serve", "README.md", "--http", "127.0.0.1:0"]
    told = {"HALIMEDE_LOG_LEVEL": "CRITICAL", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=patience(60), env=told, check=False
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("halimede serve: "), line
    assert "is not an ONNX model" in line


def test_a_strict_server_ends_with_the_reason_when_nothing_answers(tmp_path: Path) -> None:
    file, bad = tmp_path / "models.json", tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    desired_state.write(file, Desired(models=[wish(bad, version="2")]))
    command = [sys.executable, "-m", "halimede", "serve", "--file", str(file), "--strict", "--http", "127.0.0.1:0"]
    told = {"PATH": "/usr/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=patience(90), env=told, check=False
    )
    assert done.returncode == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("halimede serve: a model is not there: ModelInvalid: "), last


def test_help_says_what_there_is() -> None:
    for command in ([sys.executable, "-m", "halimede", "serve"], [Path(sys.executable).with_name("halimede"), "serve"]):
        done = subprocess.run(
            [*command, "--help"], capture_output=True, text=True, cwd=ROOT, timeout=patience(60), check=True
        )
        assert "--grpc" in done.stdout
        assert "GRACE_S" in done.stdout


async def test_a_users_own_estimator_answers_pictures(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nclass Mine:\n    def predict(self, data):\n        return str(np.asarray(data).max())\n"
    )
    model = adds(tmp_path / "m.onnx", 1)
    async with server(
        tmp_path / "s", str(model), "--estimator", "mine:Mine", PYTHONPATH=f"{ROOT}:{tmp_path}"
    ) as made, aiohttp.ClientSession() as session:  # fmt: skip
        await made.ready()
        async with session.get(f"{made.http}/v2/models/m") as answer:
            said = await answer.json()
        assert said["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
        import base64

        from tests.integration.test_serve_clients import png

        given = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [base64.b64encode(png(3, 7)).decode()]}
        async with session.post(f"{made.http}/v2/models/m/infer", json={"inputs": [given]}) as answer:
            said = await answer.json()
        assert json.loads(said["outputs"][0]["data"][0])["label"] == "7"


async def test_a_call_without_end_ends_the_process(tmp_path: Path) -> None:
    model = counts(tmp_path / "m.onnx")
    async with server(tmp_path / "s", str(model), MODEL_TIMEOUT_S="1") as made, aiohttp.ClientSession() as session:
        await made.ready()

        async def ask(number: int) -> float:
            body = {"inputs": [{"name": "n", "shape": [], "datatype": "INT64", "data": [number]}]}
            async with session.post(f"{made.http}/v2/models/m/infer", json=body) as answer:
                return (await answer.json())["outputs"][0]["data"][0]

        assert await ask(7) == 7
        with pytest.raises(aiohttp.ClientError):
            await ask(10**15)
        await eventually(lambda: made.process.poll() is not None, 30)
        assert made.process.returncode == 1
        assert "has not answered for 1 s" in made.log.read_text()
