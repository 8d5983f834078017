"""InferenceModels on one machine, as the seeds write them: brought as archives, served, changed while they answer."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http

from examples.digits import data, train
from halimede import topics
from halimede.bus import Delivery
from halimede.messages import StatusDocument
from tests import typed
from tests.e2e.running import System, running

pytestmark = pytest.mark.timeout(180)
NAME = "facialexpression"


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without a line for each."""

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()


def archive(model: bytes, to: Path) -> str:
    """Pack a model as the seed's archives are packed; return its digest."""
    with tarfile.open(to, "w:gz") as packed:
        member = tarfile.TarInfo("model/model.onnx")
        member.size = len(model)
        packed.addfile(member, io.BytesIO(model))
    return hashlib.sha256(to.read_bytes()).hexdigest()


def sample(group: str, origin: str, digests: dict[str, str], *, target: str = "4", port: int = 0) -> dict[str, Any]:
    """The seeds' sample, with its addresses at a local server and its framework ours."""
    return {
        "apiVersion": f"{group}/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": NAME, "namespace": "default"},
        "spec": {
            "modelName": NAME,
            "deployToLayer": "edge",
            "frameworkType": "onnx",
            "image": "",
            "nodeSelector": {"kubernetes.io/hostname": "edge0"},
            "nodeName": "edge0",
            "manifest": [
                {"version": v, "downloadURL": f"{origin}/model_emotion_{v}.tar.gz", "sha256sum": digest}
                for v, digest in digests.items()
            ],
            "targetVersion": target,
            "servingPort": port,
            "replicas": 1,
        },
    }


class Followed:
    """The status of the model, as monitoring sees it."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.document: StatusDocument | None = None

    async def follow(self) -> None:
        async def on_status(delivery: Delivery[StatusDocument]) -> None:
            self.document = delivery.body

        names = {"ns": "default", "plural": "inferencemodels", "name": NAME}
        await self.system.bus.subscribe(topics.STATUS.filter(**names), on_status)

    @property
    def version(self) -> str:
        return (self.document.status.serving_version or "") if self.document else ""

    @property
    def reason(self) -> str:
        conditions = self.document.status.conditions if self.document else []
        return conditions[-1].reason if conditions else ""

    def has(self, reason: str) -> bool:
        return self.reason == reason


def ask(url: str, rows: np.ndarray) -> np.ndarray:
    """Infer with Triton's own client; return the classes."""
    with tritonclient.http.InferenceServerClient(url.removeprefix("http://")) as client:
        metadata = client.get_model_metadata(NAME)
        (wanted,) = metadata["inputs"]
        tensor = tritonclient.http.InferInput(wanted["name"], list(rows.shape), wanted["datatype"])
        tensor.set_data_from_numpy(rows)
        answer = client.infer(NAME, [tensor])
        found = [answer.as_numpy(output["name"]) for output in metadata["outputs"]]
        scores = next(each for each in found if each is not None and each.ndim == 2)
        return scores.argmax(axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("group", ["sedna.io", "ai.kubeedge.io"])
async def test_the_seeds_samples_reach_serving_and_take_a_new_version_while_they_serve(
    tmp_path: Path, group: str
) -> None:
    if not (train.FOLDER / "big.onnx").exists():
        train.main()
    small, big = (train.FOLDER / f"{size}.onnx" for size in ("small", "big"))
    folder = tmp_path / "store"
    folder.mkdir()
    digests = {
        "3": archive(small.read_bytes(), folder / "model_emotion_3.tar.gz"),
        "4": archive(big.read_bytes(), folder / "model_emotion_4.tar.gz"),
        "5": archive(b"no model", folder / "model_emotion_5.tar.gz"),
    }
    pictures = data.load()
    rows = pictures.test_x[:50].reshape(50, -1).astype(np.float32)
    with served(folder) as origin:
        async with running(tmp_path / "home", "edge0") as system:
            shown = Followed(system)
            await shown.follow()
            await system.client.apply(sample(group, origin, digests, target="3"))
            await system.until("version 3", lambda: shown.version == "3")
            assert shown.document is not None
            assert shown.document.status.phase == "Running"
            url = shown.document.status.url
            assert url
            process = system.processes()[f"worker:{NAME}-serve-edge0"].pid
            assert (await asyncio.to_thread(ask, url, rows) == pictures.test_y[:50]).mean() > 0.8

            await system.client.apply(sample(group, origin, digests))
            await system.until("version 4", lambda: shown.version == "4")
            assert (await asyncio.to_thread(ask, url, rows) == pictures.test_y[:50]).mean() > 0.8

            await system.client.apply(sample(group, origin, digests, target="5"))
            await system.until("a refusal", lambda: shown.reason in {"RolloutFailed", "ModelInvalid"})
            assert shown.version == "4"
            assert (await asyncio.to_thread(ask, url, rows) == pictures.test_y[:50]).mean() > 0.8
            assert system.processes()[f"worker:{NAME}-serve-edge0"].pid == process

            await system.client.delete("inferencemodels", NAME)
            await system.until("the end", lambda: f"worker:{NAME}-serve-edge0" not in system.processes())


async def halimede(system: System, *words: str) -> str:
    environment = {**os.environ, "HALIMEDE_HOME": str(system.home), "COLUMNS": "200"}
    done = await asyncio.to_thread(typed.halimede, *words, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
async def test_what_one_machine_cannot_do_is_a_condition_that_names_the_field(tmp_path: Path) -> None:
    if not (train.FOLDER / "small.onnx").exists():
        train.main()
    body = sample("sedna.io", "", {})
    spec = {
        "modelName": NAME,
        "deployToLayer": "cloud",
        "frameworkType": "onnx",
        "manifest": [{"version": "1", "downloadURL": str(train.FOLDER / "small.onnx")}],
        "replicas": 3,
    }
    file = tmp_path / "model.json"
    async with running(tmp_path / "home", "edge0,cloud0,cloud1") as system:
        shown = Followed(system)
        await shown.follow()
        for change, reason, field in (
            ({}, "ReplicasNotSupported", "spec.replicas: 3"),
            ({"replicas": 2, "image": "example.io/faces:1"}, "ImageNotSupported", "spec.image"),
        ):
            file.write_text(json.dumps(body | {"spec": spec | change}))
            await halimede(system, "apply", "-f", str(file))
            await system.until(reason, partial(shown.has, reason))
            text = await halimede(system, "describe", "inferencemodel", NAME)
            assert all(part in text for part in ("Degraded", reason, field)), text
            assert {f"worker:{NAME}-serve-{node}" for node in ("cloud0", "cloud1")} <= system.processes().keys()
