"""TensorFlow models on one machine: served as the seeds write them, used by workers, or a condition with the remedy."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import tarfile
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from examples.digits import data
from halimede import topics
from halimede.api.model_formats import FORMATS
from halimede.bus import Delivery
from halimede.cli.manifests import load as load_manifests
from halimede.messages import StatusDocument
from tests.e2e.running import DIGITS, System, digits, running
from tests.e2e.test_inference_models import NAME, Followed, ask, sample, served
from tests.lite_files import write_classifier

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]
LABELS = [str(digit) for digit in range(10)]


def trained(strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Return weights and bias of a classifier of the digits."""
    split = data.load()
    found = LogisticRegression(C=strength, max_iter=1000).fit(
        split.train_x.reshape(len(split.train_x), -1), split.train_y
    )
    return found.coef_.T.astype(np.float32), found.intercept_.astype(np.float32)


def packed(folder: Path, form: str, to: Path, strength: float) -> str:
    """Write an archive of a model as the seed's archives are packed; return its digest."""
    weights, bias = trained(strength)
    model = folder / f"{to.stem}-model"
    if form == "tflite":
        write_classifier(model, weights, bias)
        inside = "model/net.tflite"
    else:
        tf = pytest.importorskip("tensorflow")
        module = tf.Module()
        module.weights, module.bias = tf.Variable(weights), tf.Variable(bias)
        signature = [tf.TensorSpec([None, 64], tf.float32, name="x")]
        module.answer = tf.function(
            lambda x: {"scores": tf.nn.softmax(x @ module.weights + module.bias)}, input_signature=signature
        )
        tf.saved_model.save(module, str(model), signatures=module.answer)
        inside = "model_emotion/1"
    with tarfile.open(to, "w:gz") as archive:
        archive.add(model, inside)
    return hashlib.sha256(to.read_bytes()).hexdigest()


def of(form: str, group: str, origin: str, digests: dict[str, str], target: str) -> dict[str, Any]:
    """Return the seeds' sample with a framework."""
    body = sample(group, origin, digests, target=target)
    body["spec"]["frameworkType"] = form
    return body


@pytest.mark.parametrize("form", ["tflite", "tensorflow"])
async def test_the_seeds_sample_is_served_and_takes_a_new_version_while_it_serves(tmp_path: Path, form: str) -> None:
    store = tmp_path / "store"
    store.mkdir()
    digests = {v: packed(tmp_path, form, store / f"model_emotion_{v}.tar.gz", c) for v, c in (("3", 0.05), ("4", 1.0))}
    pictures = data.load()
    rows = pictures.test_x[:50].reshape(50, -1).astype(np.float32)
    with served(store) as origin:
        async with running(tmp_path / "home", "edge0") as system:
            shown = Followed(system)
            await shown.follow()
            for version in digests:
                await system.client.apply(of(form, "sedna.io", origin, digests, version))
                await system.until(f"version {version}", lambda v=version: shown.version == v, 120)
                assert shown.document
                url = shown.document.status.url
                assert url
                assert (await asyncio.to_thread(ask, url, rows) == pictures.test_y[:50]).mean() > 0.8
            with await asyncio.to_thread(urllib.request.urlopen, f"{url}/v2/models/{NAME}") as answer:
                told = json.load(answer)
            assert (told["platform"], told["versions"]) == (FORMATS[form].platform, ["4"])
            assert [(each["datatype"], each["shape"]) for each in told["inputs"]] == [("FP32", [-1, 64])]


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is installed here")
@pytest.mark.parametrize("group", ["sedna.io", "ai.kubeedge.io"])
async def test_without_its_package_the_seeds_sample_says_what_to_install_and_starts_nothing(
    tmp_path: Path, group: str
) -> None:
    async with running(tmp_path / "home", "edge0") as system:
        shown = Followed(system)
        await shown.follow()
        await system.client.apply(of("tensorflow", group, "http://127.0.0.1:9", {"4": "a" * 64}, "4"))
        await system.until("a condition", partial(shown.has, "NotInstalled"))
        assert shown.document
        assert "run pip install 'halimede[tensorflow]'" in shown.document.status.conditions[-1].message
        assert f"worker:{NAME}-serve-edge0" not in system.processes()


async def test_workers_of_a_service_answer_with_lite_models(tmp_path: Path) -> None:
    digest = packed(tmp_path, "tflite", tmp_path / "big.tar.gz", 1.0)
    write_classifier(tmp_path / "small.tflite", *trained(0.05))
    files = {"digits-small": tmp_path / "small.tflite", "digits-big": tmp_path / "big.tar.gz"}
    models: dict[str, StatusDocument] = {}

    async def on_status(delivery: Delivery[StatusDocument]) -> None:
        models[delivery.body.name] = delivery.body

    async with running(tmp_path / "home", "edge0,cloud0") as system:
        await system.follow("digits")
        await system.bus.subscribe(topics.STATUS.filter(ns="default", plural="models"), on_status)
        for manifest in load_manifests([str(DIGITS)]):
            body = manifest.resource.body
            if file := files.get(body["metadata"]["name"]):
                scores = {"task": "classification", "output": "y"}
                body["spec"] |= {"format": "tflite", "url": str(file), "postprocess": scores}
            await system.client.apply(body)
        await system.until("Running", lambda: system.phase == "Running")
        await system.send(digits()[:200])
        await system.until("answers", lambda: len(system.results) == 200)
        await described(system, models)
    assert models["digits-big"].status.model
    assert models["digits-big"].status.model.digest == digest
    assert {result.by for result in system.results.values()} == {"edge", "cloud"}
    right = [system.results[id_].label == str(data.load().test_y[i]) for id_, i in system.sent.items()]
    assert np.mean(right) > 0.9


async def described(system: System, models: dict[str, StatusDocument]) -> None:
    """Wait until both Models have their inputs and outputs in their status."""

    def known(name: str) -> bool:
        facts = models[name].status.model if name in models else None
        shapes = [each.shape for each in (*facts.inputs, *facts.outputs)] if facts else []
        return shapes == [[-1, 64], [-1, len(LABELS)]]

    await system.until("facts", lambda: known("digits-small") and known("digits-big"))
