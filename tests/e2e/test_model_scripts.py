"""Scripts of a model on one machine: they come in its archive, answer at the edge, and change with its version."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.digits import data, train
from tests.e2e.resources import Statuses, resource, write_archive
from tests.e2e.running import System, digits, running
from tests.e2e.test_bad_input import manifests
from tests.e2e.test_model_formats import trained
from tests.lite_files import write_classifier

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCRIPT = """
import numpy as np
from PIL import Image

def preprocess(image):
    small = Image.fromarray(np.atleast_3d(image)[..., 0]).resize((8, 8))
    return np.asarray(small, np.float32).reshape(64) / 240

def postprocess(outputs, size):
    row = outputs["probabilities"][0]
    return {"label": f"{VERSION} sees {row.argmax()}", "probabilities": row}
"""
#: of a model with a script in its archive
PROCESSING = {
    "preprocess": [{"op": "script", "file": "processing.py"}],
    "postprocess": {"script": {"file": "processing.py"}},
}


def archive(to: Path, script: str, model: Path = train.FOLDER / "small.onnx") -> None:
    """Pack a model and a script, as a user does with tar."""
    write_archive(to, {f"digits/model{model.suffix}": model.read_bytes(), "digits/processing.py": script.encode()})


def small(folder: Path, target: str, form: str = "onnx") -> dict[str, Any]:
    versions = [{"version": version, "url": f"{folder}/{version}.tar.gz"} for version in ("v1", "v2", "bad")]
    return resource("Model", "digits-small", format=form, versions=versions, targetVersion=target, **PROCESSING)


async def apply_digits(system: System, model: dict[str, Any]) -> None:
    """Apply the example with another small model."""
    for body in {**manifests(), "digits-small": model}.values():
        await system.client.apply(body)
    await system.until_running()


def labels(system: System, by: str = "edge") -> set[str]:
    answers = [each.prediction for each in system.results.values() if each.by == by]
    return {str(each.label).split()[0] for each in answers if each}


async def test_scripts_come_with_the_archive_answer_and_change_with_the_version(tmp_path: Path) -> None:
    pictures, precious = digits()[:40], tmp_path / "precious.txt"
    precious.write_text("all of it")
    archive(tmp_path / "v1.tar.gz", SCRIPT.replace("VERSION", "'first'"))
    archive(tmp_path / "v2.tar.gz", SCRIPT.replace("VERSION", "'second'"))
    archive(tmp_path / "bad.tar.gz", SCRIPT.replace("row =", f"open({str(precious)!r}, 'w')\n    row ="))
    statuses = Statuses()
    async with running(tmp_path / "home", "edge0,cloud0") as system:
        await system.follow("digits")
        await statuses.follow(system, "models")
        await apply_digits(system, small(tmp_path, "v1"))
        await system.send(pictures)
        await system.until_answered()
        assert labels(system) == {"first"}
        assert labels(system, "cloud") <= set("0123456789")
        process = system.processes()["worker:digits-edge-edge0"].pid

        await system.client.apply(small(tmp_path, "v2"))
        for _ in range(100):
            await system.send(pictures[:5])
            if "second" in labels(system):
                break
            await asyncio.sleep(0.2)
        assert labels(system) == {"first", "second"}
        assert system.processes()["worker:digits-edge-edge0"].pid == process, "it changed while it answered"

        await system.client.apply(small(tmp_path, "bad"))
        says = "spec.postprocess.script: postprocess of processing.py raised PermissionError"
        await system.until("the refusal", lambda: says in statuses.condition("digits-small").message)
        assert statuses.condition("digits-small").reason == "ScriptInvalid"
        system.results.clear()
        system.sent.clear()
        await system.send(pictures)
        await system.until_answered()
        assert labels(system) == {"second"}, "the version before answers"
        assert precious.read_text() == "all of it"


async def test_scripts_read_and_answer_for_a_tensorflow_lite_model(tmp_path: Path) -> None:
    model = write_classifier(tmp_path / "net.tflite", *trained(0.05))
    script = SCRIPT.replace("VERSION", "'lite'").replace('"probabilities"]', '"y"]')
    archive(tmp_path / "v1.tar.gz", script, model)
    async with running(tmp_path / "home", "edge0,cloud0") as system:
        await system.follow("digits")
        await apply_digits(system, small(tmp_path, "v1", "tflite"))
        await system.send(digits()[:100])
        await system.until_answered()
        assert labels(system) == {"lite"}
        assert labels(system, "cloud") <= set("0123456789")
        truth = data.load().test_y
        right = [system.results[id_].label.split()[-1] == str(truth[i]) for id_, i in system.sent.items()]
        assert np.mean(right) > 0.9


def ask(url: str, picture: bytes) -> dict[str, Any]:
    """Request a prediction for one picture over REST."""
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [base64.b64encode(picture).decode()]}
    request = urllib.request.Request(
        f"{url}/v2/models/digits/infer", json.dumps({"inputs": [tensor]}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        found: dict[str, Any] = json.loads(json.load(answer)["outputs"][0]["data"][0])
    return found


async def test_an_inference_model_serves_with_its_scripts(tmp_path: Path) -> None:
    pictures = digits()[:3]
    archive(tmp_path / "v1.tar.gz", SCRIPT.replace("VERSION", "'first'"))
    manifest = [{"version": "1", "downloadURL": str(tmp_path / "v1.tar.gz")}]
    body = resource(
        "InferenceModel",
        "served",
        modelName="digits",
        deployToLayer="edge",
        frameworkType="onnx",
        nodeName="edge0",
        manifest=manifest,
        **PROCESSING,
    )
    statuses = Statuses()
    async with running(tmp_path / "home", "edge0") as system:
        await statuses.follow(system, "inferencemodels")
        await system.client.apply(body)
        await system.until("it serves", lambda: statuses.of("served").phase == "Running")
        url = statuses.of("served").url
        assert url
        answers = [await asyncio.to_thread(ask, url, picture) for picture in pictures]
        assert {each["label"].rpartition(" ")[0] for each in answers} == {"first sees"}
