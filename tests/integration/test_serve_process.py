"""The server's process to who supervises it: its reports over Mosquitto, its mistakes, its end."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from halimede import topics
from halimede.bus.mqtt import MqttBus
from halimede.frames import encode_image
from halimede.messages import WorkerInfo
from halimede.models import desired_state
from halimede.models.desired_state import Desired, DesiredModel
from halimede.serving.server import main
from services.broker import MosquittoProcess
from tests.inbox import Inbox
from tests.scraping import scrape
from tests.serving_world import ROOT, Server, adds, counts, server, wish
from tests.simulated import eventually
from tests.waiting import patience

METRICS = {
    "halimede_serve_requests", "halimede_serve_failures", "halimede_serve_rollouts", "halimede_serve_refused_versions",
    "halimede_serve_waiting_requests", "halimede_serve_version_info", "halimede_serve_seconds",
    "halimede_serve_batch_samples",
}  # fmt: skip


@contextlib.asynccontextmanager
async def reporting(folder: Path, broker: MosquittoProcess, first: DesiredModel) -> AsyncIterator[tuple[Server, Inbox]]:
    """Run a server that a local controller listens to, and that is to have a model; yield what it reports as well."""
    infos: Inbox[WorkerInfo] = Inbox()
    desired_state.write(folder / "models.json", Desired(models=[first]))
    told = {
        "HALIMEDE_BROKER": broker.url, "NAMESPACE": "default", "SERVICE_NAME": "face", "SERVICE_UID": "u-1",
        "WORKER_NAME": "face-serve-n1", "NODE_NAME": "n1", "LC_PERIOD": "0.1",
    }  # fmt: skip
    async with MqttBus("lc", broker.url) as bus:
        await bus.wait_connected(patience(5))
        await bus.subscribe(topics.WORKER_INFO.filter(node="n1"), infos)
        async with server(folder / "server", "--file", str(folder / "models.json"), **told) as made:
            await eventually(lambda: infos.deliveries, 60)
            yield made, infos


def last(infos: Inbox[WorkerInfo]) -> WorkerInfo:
    return infos.deliveries[-1].body


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """No model."""
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    return tmp_path / "bad.onnx"


@pytest.mark.slow
async def test_it_tells_its_local_controller_which_model_it_has_and_where(
    tmp_path: Path, own_broker: MosquittoProcess, bad: Path
) -> None:
    file, first = tmp_path / "models.json", wish(adds(tmp_path / "1.onnx", 1), version="1")
    async with reporting(tmp_path, own_broker, wish(bad, version="0")) as (made, infos):
        await eventually(lambda: last(infos).model and last(infos).reason, 60)
        assert (last(infos).status, last(infos).reason) == ("starting", "ModelInvalid")
        desired_state.write(file, Desired(models=[first]))
        await eventually(lambda: last(infos).status == "running", 60)
        info = last(infos)
        assert (info.role, info.owner_kind, info.owner_name, info.owner_uid) == (
            "serve", "inferencemodel", "face", "u-1",
        )  # fmt: skip
        assert info.url == info.http == made.http
        assert info.model
        assert (info.model.version, info.model.mark) == ("1", first.fingerprint)
        desired_state.write(file, Desired(models=[wish(bad, version="2")]))
        await eventually(lambda: last(infos).model and last(infos).model.reason == "ModelInvalid", 60)
        assert (last(infos).status, last(infos).model.version) == ("running", "1")
        assert await made.terminate() == 0
        await eventually(lambda: last(infos).status == "completed")


@pytest.mark.slow
async def test_it_tells_that_a_model_came_late(tmp_path: Path, own_broker: MosquittoProcess) -> None:
    async with reporting(tmp_path, own_broker, wish(tmp_path / "late.onnx", version="1")) as (_, infos):
        await eventually(lambda: last(infos).reason == "ModelUnreadable", 60)
        adds(tmp_path / "late.onnx", 1)
        await eventually(lambda: (last(infos).status, last(infos).reason) == ("running", ""), 60)


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
        (["{good}", "{good}"], "there are two models"),
        (["{good}", "--http", "nonsense"], "write host:port"),
        (["{good}", "--http", "off"], "write host:port"),
        (["{good}", "--spec", "{spec}"], "spec.labels"),
        (["--file", "{good}", "--spec", "{spec}"], "leave out --spec"),
        (["--file", "{good}"], "--file: '{good}' is not accepted: write its models as JSON"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(
    tmp_path: Path, arguments: list[str], what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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


def run(*command: str) -> subprocess.CompletedProcess[str]:
    told = {"HALIMEDE_LOG_LEVEL": "CRITICAL", "PATH": "/usr/bin", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=patience(90), env=told, check=False
    )


SERVE = (sys.executable, "-m", "halimede", "serve")


def test_a_strict_server_ends_with_the_reason_when_nothing_answers(tmp_path: Path, bad: Path) -> None:
    desired_state.write(tmp_path / "models.json", Desired(models=[wish(bad, version="2")]))
    done = run(*SERVE, "--file", str(tmp_path / "models.json"), "--strict", "--http", "127.0.0.1:0")
    assert done.returncode == 1, done.stderr
    final = done.stderr.strip().splitlines()[-1]
    assert final.startswith("halimede serve: a model is not there: ModelInvalid: "), final


async def test_a_users_own_estimator_answers_pictures(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nclass Mine:\n    def predict(self, data):\n        return str(np.asarray(data).max())\n"
    )
    command = (str(adds(tmp_path / "m.onnx", 1)), "--estimator", "mine:Mine")
    async with (
        server(tmp_path / "s", *command, PYTHONPATH=f"{ROOT}:{tmp_path}") as made,
        aiohttp.ClientSession() as session,
    ):
        await made.ready()
        async with session.get(f"{made.http}/v2/models/m") as answer:
            said = await answer.json()
        assert said["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
        picture = base64.b64encode(encode_image(np.array([[3, 7]], np.uint8))).decode()
        given = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [picture]}
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
