"""Sedna's federated and incremental learning jobs on one machine, as Sedna writes them; also with Sedna's scripts."""

from __future__ import annotations

import copy
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sklearn.datasets import load_digits

from examples.training import data as training_data
from halimede.cli.client import Client
from halimede.training.tensor_file import encode
from halimede.training.trainers.perceptron import Perceptron
from tests.e2e.running import DIGITS, ROOT, System, digits, running
from tests.e2e.test_training_model import dataset, file_model, reason, until
from tests.integration.test_sedna_federated import SCRIPTS, write_csv
from tests.unit.api.samples import SAMPLES

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
FEDERATED, INCREMENTAL = "federatedlearningjobs", "incrementallearningjobs"


def job(sample: str, name: str, model: str) -> dict[str, Any]:
    body = copy.deepcopy(SAMPLES[sample])
    body["metadata"]["name"] = name
    spec = body["spec"]
    (spec.get("aggregationWorker") or spec["deploySpec"])["model"]["name"] = model
    return body


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """A system with the Models of the digits, first weights, and a Dataset on each of two nodes."""
    digits()  # trains the models if they are not there
    folder = tmp_path_factory.mktemp("jobs")
    async with running(folder / "home", "edge0,edge1,cloud0") as system:
        await system.apply(DIGITS / "1-models.yaml")
        for i, pictures in enumerate(training_data.write(folder / "data", most=150)[:2]):
            await system.client.apply(dataset(i, pictures))
        weights = folder / "weights"
        weights.write_bytes(encode(Perceptron().initial_weights((64,), 10)))
        await system.client.apply(file_model("first-weights", weights, "tensors"))
        yield system


async def target(client: Client, model: str) -> str:
    return str((await client.get("models", model))["spec"].get("targetVersion", ""))


async def test_a_federated_job_gives_its_model_a_version(shared: System) -> None:
    body = job("a federated job of Sedna's", "federated", "digits-small")
    for i, worker in enumerate(body["spec"]["trainingWorkers"]):
        worker["dataset"]["name"] = f"d{i}"
        worker["template"]["spec"]["nodeName"] = f"edge{i}"
    await shared.client.apply(body)
    found = await until(shared.client, "federated", lambda s: s.get("phase") == "Done", plural=FEDERATED)
    assert reason(found) == "RoundsDone"
    assert (found["training"]["rounds"], found["training"]["evaluated"]) == (3, 4)
    assert await target(shared.client, "digits-small") == found["training"]["version"]


async def test_an_incremental_job_waits_for_samples_and_deploys_what_is_better(shared: System, tmp_path: Path) -> None:
    few, more = training_data.write(tmp_path / "few", most=20)[0], training_data.write(tmp_path / "more", most=150)[0]
    await shared.client.apply(dataset(0, few, name="changing"))
    body = job("an incremental job of Sedna's", "incremental", "digits-big")
    body["spec"]["dataset"]["name"] = "changing"
    del body["spec"]["trainSpec"]["trigger"]["timer"]
    await shared.client.apply(body)
    await until(shared.client, "incremental", lambda s: reason(s) == "TooFewSamples", plural=INCREMENTAL)
    shutil.copytree(more, few, dirs_exist_ok=True)
    found = await until(shared.client, "incremental", lambda s: s.get("phase") == "Done", plural=INCREMENTAL)
    assert reason(found) == "RoundsDone"
    assert await target(shared.client, "digits-big") == found["training"]["version"]
    # another training, with a gain that nothing reaches
    body["spec"]["trainSpec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "epochs", "value": "3"}]
    body["spec"]["deploySpec"]["trigger"]["condition"]["threshold"] = 2.0
    await shared.client.apply(body)
    found = await until(
        shared.client, "incremental", lambda s: s.get("phase") == "Done" and s["observedGeneration"] == 2,
        plural=INCREMENTAL,
    )  # fmt: skip
    assert reason(found) == "NotAdded"
    assert "accuracy_delta" in found["conditions"][-1]["message"]


async def test_scripts_of_sedna_run_as_a_federated_job(shared: System, tmp_path: Path) -> None:
    body = job("a federated job of Sedna's", "scripted", "digits-big")
    del body["spec"]["pretrainedModel"]
    found = load_digits()
    test = write_csv(tmp_path / "test.csv", found.data[:300], found.target[:300])
    spec = body["spec"]
    pods = [(spec["aggregationWorker"], "aggregate.py", {"exit_round": "2", "participants_count": "2"})]
    for i, worker in enumerate(spec["trainingWorkers"]):
        rows = Path(write_csv(tmp_path / f"{i}.csv", found.data[300 + i :: 2], found.target[300 + i :: 2]))
        await shared.client.apply(dataset(i, rows, "csv", f"rows{i}"))
        worker["dataset"]["name"] = f"rows{i}"
        worker["template"]["spec"]["nodeName"] = f"edge{i}"
        pods.append((worker, "train.py", {"TEST_DATASET_URL": test, "OUTPUT": str(tmp_path / f"{i}.npz")}))
    for worker, script, told in pods:
        [container] = worker["template"]["spec"]["containers"]
        container["command"] = ["python", "-m", "halimede.compat.sedna", str(SCRIPTS / script)]
        container["env"] = [{"name": name, "value": value} for name, value in {**told, "PYTHONPATH": str(ROOT)}.items()]
    await shared.client.apply(body)
    ended = await until(shared.client, "scripted", lambda s: s.get("phase") == "Done", plural=FEDERATED)
    assert reason(ended) == "NotAdded"
    assert "script" in ended["conditions"][-1]["message"]
    assert (tmp_path / "0.npz").exists()
