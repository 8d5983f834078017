"""TensorFlow models on one machine: served as the seeds write them, used by workers, or a condition with the remedy."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tarfile
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from examples.digits import data
from halimede.api.model_formats import FORMATS
from tests.e2e.resources import Statuses
from tests.e2e.running import digits, running
from tests.e2e.test_bad_input import manifests
from tests.e2e.test_inference_models import NAME, is_right, sample, served
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


@pytest.mark.parametrize("form", ["tflite", "tensorflow"])
async def test_the_seeds_sample_is_served_and_takes_a_new_version_while_it_serves(tmp_path: Path, form: str) -> None:
    store = tmp_path / "store"
    store.mkdir()
    digests = {v: packed(tmp_path, form, store / f"model_emotion_{v}.tar.gz", c) for v, c in (("3", 0.05), ("4", 1.0))}
    with served(store) as origin:
        async with running(tmp_path / "home", "edge0") as system:
            shown = Statuses()
            await shown.follow(system, "inferencemodels")
            for version in digests:
                await system.client.apply(sample("sedna.io", origin, digests, target=version, form=form))
                await system.until(f"version {version}", lambda v=version: shown.of(NAME).serving_version == v, 120)
                await is_right(shown)
            url = f"{shown.of(NAME).url}/v2/models/{NAME}"
            with await asyncio.to_thread(urllib.request.urlopen, url) as answer:
                metadata = json.load(answer)
            assert (metadata["platform"], metadata["versions"]) == (FORMATS[form].platform, ["4"])
            assert [(port["datatype"], port["shape"]) for port in metadata["inputs"]] == [("FP32", [-1, 64])]


async def test_workers_of_a_service_answer_with_lite_models(tmp_path: Path) -> None:
    digest = packed(tmp_path, "tflite", tmp_path / "big.tar.gz", 1.0)
    write_classifier(tmp_path / "small.tflite", *trained(0.05))
    files = {"digits-small": tmp_path / "small.tflite", "digits-big": tmp_path / "big.tar.gz"}
    models = Statuses()
    async with running(tmp_path / "home", "edge0,cloud0") as system:
        await system.follow("digits")
        await models.follow(system, "models")
        for name, body in manifests().items():
            if file := files.get(name):
                scores = {"task": "classification", "output": "y"}
                body["spec"] |= {"format": "tflite", "url": str(file), "postprocess": scores}
            await system.client.apply(body)
        await system.until_running()
        await system.send(digits()[:200])
        await system.until_answered()
        for name in files:
            await system.until("facts", lambda name=name: shapes(models, name) == [[-1, 64], [-1, len(LABELS)]])
        facts = models.of("digits-big").model
    assert facts
    assert facts.digest == digest
    assert {result.by for result in system.results.values()} == {"edge", "cloud"}
    right = [system.results[id_].label == str(data.load().test_y[i]) for id_, i in system.sent.items()]
    assert np.mean(right) > 0.9


def shapes(models: Statuses, name: str) -> list[list[int]]:
    """Return the shapes of inputs and outputs that the status of a Model has."""
    facts = models.of(name).model
    return [port.shape for port in (*facts.inputs, *facts.outputs)] if facts else []
