"""A TrainingModel on one machine, as its user sees it: resources in, a new version of the Model out."""

from __future__ import annotations

import asyncio
import shutil
import time
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from examples.training import data as training_data
from halimede.cli.client import Client, UnreachableError
from halimede.training.tensor_file import encode
from halimede.training.trainers.perceptron import Perceptron
from tests.e2e.resources import resource
from tests.e2e.running import DIGITS, System, digits, running
from tests.integration.gm_world import template
from tests.training_world import gated_trainer
from tests.waiting import eventually, patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]
NODES = "edge0,edge1,edge2,cloud0"
#: seconds: for a training with few pictures, on a busy machine
TRAINING_S = 240.0
PLURAL = "trainingmodels"


def dataset(number: int, url: Path, form: str = "images", name: str = "") -> dict[str, Any]:
    return resource("Dataset", name or f"d{number}", url=url.as_uri(), format=form, nodeName=f"edge{number}")


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
    return resource("TrainingModel", name, **whole)


async def status(client: Client, name: str, plural: str = PLURAL) -> dict[str, Any]:
    """Return the status of a training; empty while GM does not answer, because it was killed."""
    try:
        return (await client.get(plural, name)).get("status") or {}
    except UnreachableError:
        return {}


def reason(found: dict[str, Any]) -> str:
    conditions = found.get("conditions") or [{}]
    return str(conditions[-1].get("reason", ""))


async def until(
    client: Client, name: str, done: Callable[[dict[str, Any]], bool], *, plural: str = PLURAL
) -> dict[str, Any]:
    end = time.monotonic() + patience(TRAINING_S)
    while not done(found := await status(client, name, plural)):
        assert time.monotonic() < end, str(found)
        await asyncio.sleep(0.1)
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """A system with the Models of the digits, and a Dataset on each of three nodes."""
    digits()  # trains the models if they are not there
    folder = tmp_path_factory.mktemp("training")
    async with running(folder / "home", NODES) as system:
        await system.apply(DIGITS / "1-models.yaml")
        for i, pictures in enumerate(training_data.write(folder / "data", most=120)):
            await system.client.apply(dataset(i, pictures))
        yield system


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
    url = f"bus://gm/sha256/{progress['digest']}"
    assert version == {"version": progress["version"], "url": url, "sha256": progress["digest"]}
    assert model["spec"]["metadata"]["trainedBy"] == "default/first"
    await shared.follow("digits")
    await shared.apply(DIGITS / "2-service.yaml")
    await shared.until_running()
    await shared.send(digits()[:60])
    await shared.until_answered()
    used = {result.model for result in shared.results.values() if result.by == "edge"}
    assert used, shared.results
    model = await client.get("models", "digits-small")
    assert model["status"]["nodes"][0]["phase"] in {"Ready", "Running"}
    assert model["status"]["model"]["digest"] == progress["digest"]
    assert not [name for name in shared.processes() if "training" in name], "a training that is done needs no workers"


SLOW = """
import time
from halimede.training.trainers.perceptron import Perceptron

class Slow(Perceptron):
    def train(self, data, weights):
        time.sleep(1.0)
        return super().train(data, weights)
"""


def file_model(name: str, path: Path, form: str = "python") -> dict[str, Any]:
    """Return a Model whose file is a script, an archive or weights."""
    return resource("Model", name, url=path.as_uri(), format=form)


async def gone(client: Client, name: str) -> None:
    """Delete a training, and wait until it is gone."""
    await client.delete(PLURAL, name)

    async def is_gone() -> bool:
        return all(each["metadata"]["name"] != name for each in (await client.list(PLURAL))[0])

    await eventually(is_gone, 60, 0.1)


def workers_of(system: System, name: str) -> list[str]:
    return [each for each in system.processes() if each.startswith(f"worker:{name}.")]


async def test_the_class_comes_in_an_archive_and_a_deletion_in_mid_round_stops_all_workers(
    shared: System, tmp_path: Path
) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    with zipfile.ZipFile(tmp_path / "slow.zip", "w") as packed:
        packed.write(script, "code/slow.py")
    client = shared.client
    await client.apply(file_model("slow-file", script))
    await client.apply(file_model("slow-zip", tmp_path / "slow.zip"))
    for archive, entry in (("slow-file", "slow.py:Slow"), ("slow-zip", "code/slow.py:Slow")):
        code = {"entry": entry, "archive": {"name": archive}}
        await client.apply(training("archived", trainer=code, rounds=500))
        await until(client, "archived", lambda s: (s.get("training") or {}).get("evaluated", 0) >= 1)
        assert len(workers_of(shared, "archived")) == 4
        await gone(client, "archived")
        assert workers_of(shared, "archived") == []


async def test_an_edit_in_mid_round_continues_with_the_new_number_of_rounds(shared: System, tmp_path: Path) -> None:
    client, script, gate = shared.client, tmp_path / "gated.py", tmp_path / "gate"
    script.write_text(gated_trainer(gate))
    await client.apply(file_model("gated", script))
    code = {"entry": "gated.py:Gated", "archive": {"name": "gated"}}
    await client.apply(training("edited", trainer=code, rounds=1000))
    await until(client, "edited", lambda s: (s.get("training") or {}).get("round") == 2)
    await client.apply(training("edited", trainer=code, rounds=5))
    # the second round lasts until the edit is there
    await until(client, "edited", lambda s: (s.get("training") or {}).get("rounds") == 5)
    gate.touch()
    found = await until(client, "edited", lambda s: s.get("phase") == "Done")
    assert found["training"]["rounds"] == 5
    assert found["training"]["evaluated"] == 6
    assert found["observedGeneration"] == 2
    await gone(client, "edited")


async def test_bad_samples_and_bad_code_are_conditions_that_end_when_they_are_mended(
    shared: System, tmp_path: Path
) -> None:
    client = shared.client
    pictures = training_data.write(tmp_path / "good", most=30)
    data = tmp_path / "data"
    data.mkdir()
    await client.apply(dataset(0, data, name="changing"))
    alone = [{"name": "t0", "dataset": {"name": "changing"}, "template": template("edge0")}]
    await client.apply(training("mended", trainers=alone, minClients=1))
    # an empty folder is no Dataset that can be counted
    found = await until(client, "mended", lambda s: reason(s) in {"DatasetNotReady", "DatasetEmpty"})
    assert found["phase"] == "Pending"
    shutil.copytree(pictures[0] / "3", data / "3")
    found = await until(client, "mended", lambda s: reason(s) == "DatasetOneClass")
    assert found["phase"] == "Pending"
    assert "all samples have one class" in found["conditions"][-1]["message"]
    shutil.copytree(pictures[0], data, dirs_exist_ok=True)
    await until(client, "mended", lambda s: s.get("phase") == "Done")
    await gone(client, "mended")

    broken = tmp_path / "broken.py"
    broken.write_text("import a_module_that_does_not_exist\n")
    await client.apply(file_model("broken", broken))
    code = {"entry": "broken.py:Digits", "archive": {"name": "broken"}}
    await client.apply(training("broken", trainer=code))
    found = await until(client, "broken", lambda s: reason(s) == "TrainerInvalid")
    assert found["phase"] == "Failed"
    assert "a_module_that_does_not_exist" in found["conditions"][-1]["message"]
    assert "Traceback" not in str(found)
    await client.apply(training("broken", rounds=1))  # without that code
    await until(client, "broken", lambda s: s.get("phase") == "Done")
    await gone(client, "broken")


async def test_what_a_training_names_and_is_not_there_is_a_condition(shared: System) -> None:
    client = shared.client
    lacking = training("lacking", model={"name": "nothing"}, initial={"name": "no-weights"})
    lacking["spec"]["trainers"][0]["dataset"] = {"name": "no-data"}
    lacking["spec"]["trainers"][1]["template"]["spec"]["nodeName"] = "no-node"
    await client.apply(lacking)
    found = await until(client, "lacking", lambda s: reason(s) == "ModelNotFound")
    text = found["conditions"][-1]["message"]
    for missing in ("default/models/nothing", "no-weights", "no-data", "no-node"):
        assert missing in text
    await gone(client, "lacking")


async def test_first_weights_come_from_a_model_and_wrong_ones_are_a_condition(shared: System, tmp_path: Path) -> None:
    client = shared.client
    weights = Perceptron(hidden="").initial_weights((64,), 10)
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_bytes(encode({name: tensor * 0 for name, tensor in weights.items()}))
    wrong.write_bytes(b"no tensors")
    await client.apply(file_model("right-weights", right, "tensors"))
    await client.apply(file_model("wrong-weights", wrong, "tensors"))
    code = {"entry": "Perceptron", "parameters": [{"key": "hidden", "value": ""}]}
    await client.apply(training("initial", trainer=code, initial={"name": "wrong-weights"}, rounds=1))
    found = await until(client, "initial", lambda s: reason(s) == "InitialWeightsInvalid")
    assert found["phase"] == "Failed"
    assert "give a file of tensors that fit the trainer" in found["conditions"][-1]["message"]
    await client.apply(training("initial", trainer=code, initial={"name": "right-weights"}, rounds=1))
    found = await until(client, "initial", lambda s: s.get("phase") == "Done")
    await gone(client, "initial")
