"""A TrainingModel on one machine, as its user sees it: resources in, a new version of the Model out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from examples.training import data as training_data
from halimede.cli.client import Client
from halimede.cli.manifests import load as load_manifests
from tests.e2e.running import DIGITS, System, digits, running

pytestmark = [pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]
NODES = "edge0,edge1,edge2,cloud0"
#: seconds: for a training with few pictures, on a busy machine
TRAINING_S = 240.0
PLURAL = "trainingmodels"


def dataset(number: int, url: Path, form: str = "images") -> dict[str, Any]:
    spec = {"url": url.as_uri(), "format": form, "nodeName": f"edge{number}"}
    return {"apiVersion": "sedna.io/v1alpha1", "kind": "Dataset", "metadata": {"name": f"d{number}"}, "spec": spec}


def template(node: str, image: str = "halimede/worker") -> dict[str, Any]:
    return {"spec": {"nodeName": node, "containers": [{"name": "worker", "image": image}]}}


def training(name: str, number: int = 3, **spec: Any) -> dict[str, Any]:
    trainers = [
        {"name": f"t{i}", "dataset": {"name": f"d{i}"}, "template": template(f"edge{i}")} for i in range(number)
    ]
    whole = {
        "model": {"name": "digits-small"},
        "aggregator": {"template": template("cloud0")},
        "trainers": trainers,
        "rounds": 2,
        "minClients": number,
        **spec,
    }
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "sedna.io/v1alpha1", "kind": "TrainingModel", "metadata": metadata, "spec": whole}


async def status(client: Client, name: str, plural: str = PLURAL) -> dict[str, Any]:
    return (await client.get(plural, name)).get("status") or {}


def reason(found: dict[str, Any]) -> str:
    conditions = found.get("conditions") or [{}]
    return str(conditions[-1].get("reason", ""))


async def until(
    client: Client, name: str, done: Callable[[dict[str, Any]], bool], seconds: float = TRAINING_S
) -> dict[str, Any]:
    """Wait for a status of a training."""
    end = time.monotonic() + seconds
    while not done(found := await status(client, name)):
        assert time.monotonic() < end, found
        await asyncio.sleep(0.1)
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """A system with the Models of the digits, and a Dataset on each of three nodes."""
    digits()  # trains the models if they are not there
    folder = tmp_path_factory.mktemp("training")
    async with running(folder / "home", NODES) as system:
        for manifest in load_manifests([str(DIGITS / "1-models.yaml")]):
            await system.client.apply(manifest.resource.body)
        for i, pictures in enumerate(training_data.write(folder / "data", most=120)):
            await system.client.apply(dataset(i, pictures))
        yield system


@pytest.mark.slow
async def test_a_training_ends_and_its_model_is_a_version_that_a_service_answers_with(shared: System) -> None:
    client = shared.client
    await client.apply(training("first", rounds=4))
    found = await until(client, "first", lambda s: s.get("phase") == "Done")
    assert reason(found) == "RoundsDone"
    progress = found["training"]
    assert (progress["round"], progress["rounds"], progress["evaluated"]) == (4, 4, 5)
    accuracy = next(float(each["value"]) for each in progress["metrics"] if each["key"] == "accuracy")
    assert accuracy > 0.5
    assert progress["bytes"] > 0
    model = await client.get("models", "digits-small")
    assert model["spec"]["targetVersion"] == progress["version"]
    version = model["spec"]["versions"][-1]
    assert version == {
        "version": progress["version"],
        "url": f"bus://gm/sha256/{progress['digest']}",
        "sha256": progress["digest"],
    }
    assert model["spec"]["metadata"]["trainedBy"] == "default/first"
    await shared.follow("digits")
    await shared.apply(DIGITS / "2-service.yaml")
    await shared.until("Running", lambda: shared.phase == "Running")
    await shared.send(digits()[:60])
    await shared.until("answers", lambda: not set(shared.sent) - set(shared.results))
    used = {result.model for result in shared.results.values() if result.by == "edge"}
    assert used, shared.results
    node = next(node for node in (await client.get("models", "digits-small"))["status"]["nodes"])
    assert node["phase"] in {"Ready", "Running"}
    assert (await client.get("models", "digits-small"))["status"]["model"]["digest"] == progress["digest"]
    workers = [name for name in shared.processes() if "training" in name]
    assert workers == [], "a training that is done needs no workers"
