"""A learning loop on one machine, as its user sees it: a stream that drifts, and a model that answers it again."""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from halimede import topics
from halimede.frames.payloads import new_id, pack
from halimede.messages import Frame
from halimede.training.trainer import TrainingData
from halimede.training.trainers.perceptron import Perceptron
from tests import bad_trainers
from tests.e2e.resources import resource
from tests.e2e.running import System, running
from tests.e2e.shell import environment, type_line
from tests.e2e.test_documentation import commands
from tests.e2e.test_training_model import TRAINING_S, status
from tests.e2e.test_training_model import until as until_status
from tests.integration.gm_world import template
from tests.integration.workers import PREPROCESS
from tests.kept_samples import drifted
from tests.training_world import LABELS, digits
from tests.waiting import patience

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
SERVICES = "jointinferenceservices"
#: samples of one camera in ten seconds are held out together: with few cameras, chance may hold out hardly any
CAMERAS = 24
SETTINGS = {
    "triggers": {"pauseS": 0},
    "gate": {"least": 40, "leastStratum": 5},
    "canary": {"least": 15, "mostLoss": 0.2, "percent": 30},
    "labelled": 300,
    "easy": 40,
    "leastStratum": 20,
    "auditShare": 0.5,
    "afterAudits": 20,
}


def names_of(cameras: str) -> list[str]:
    return [f"{cameras}{i}" for i in range(CAMERAS)]


def write_models(folder: Path) -> None:
    """Train a small model on the stream before the drift, and a big one on all."""
    rows, labels = digits()
    rows, labels = rows[:900], labels[:900]
    both = np.concatenate([rows, drifted(rows)]), np.concatenate([labels, labels])
    for name, hidden, data in (("small", "16", (rows, labels)), ("big", "128", both)):
        trainer = Perceptron(hidden=hidden, epochs="30")
        weights, _ = trainer.train(TrainingData(*data, 10), trainer.initial_weights((64,), 10))  # type: ignore[call-arg]
        trainer.export(weights, folder / f"{name}.onnx")


def model(name: str, path: Path, form: str = "onnx") -> dict[str, Any]:
    processing = {
        "labels": LABELS,
        "preprocess": PREPROCESS,
        "postprocess": {"task": "classification", "output": "probabilities"},
    }
    return resource("Model", name, url=path.as_uri(), format=form, **(processing if form == "onnx" else {}))


def service(name: str = "digits", small: str = "small", node: str = "edge0", cameras: str = "cam") -> dict[str, Any]:
    edge = {
        "model": {"name": small},
        "hardExampleMining": {"name": "Margin", "parameters": [{"key": "threshold_margin", "value": "0.6"}]},
        "source": {"cameras": names_of(cameras)},
        "auditShare": 0.2,
        "deadlineMs": 5000,
        "keepHardSamples": {},
        "template": template(node),
    }
    cloud = {"model": {"name": "big"}, "template": template("cloud0")}
    return resource("JointInferenceService", name, edgeWorker=edge, cloudWorker=cloud)


def training(
    loop: Mapping[str, Any] = MappingProxyType({}),
    *,
    name: str = "again",
    of: str = "digits",
    node: str = "edge0",
    **changes: Any,
) -> dict[str, Any]:
    spec = {
        "model": {"name": "small"},
        "trainer": {"parameters": [{"key": "hidden", "value": "32"}, {"key": "epochs", "value": "20"}]},
        "aggregator": {"template": template("cloud0")},
        "trainers": [{"name": node, "hardSamples": {"service": of}, "template": template(node)}],
        "rounds": 1,
        "loop": {"service": {"name": of}, **SETTINGS, **loop},
    }
    return resource("TrainingModel", name, **{**spec, **changes})


@dataclass
class Stream:
    """Digits from several cameras, which drift as long as ``drift`` is set."""

    drift: bool
    pause_s: float = 0.012
    cameras: str = "cam"
    #: the digit of each frame, and whether it was drifted
    truth: dict[str, tuple[str, bool]] = field(default_factory=dict)

    async def run(self, system: System) -> None:
        """Publish digits, each with some noise, until cancelled."""
        rows, labels = digits()
        rows, labels, chance, cameras = rows[900:], labels[900:], np.random.default_rng(0), names_of(self.cameras)
        while True:
            chosen, number = chance.integers(len(rows)), len(self.truth)
            row = (drifted(rows[chosen]) if self.drift else rows[chosen]) + chance.normal(0, 0.02, 64)
            picture = io.BytesIO()
            Image.fromarray((row.clip(0, 1) * 240).astype(np.uint8).reshape(8, 8)).save(picture, format="PNG")
            camera = cameras[number % len(cameras)]
            data = memoryview(picture.getvalue())
            frame = Frame(id=new_id(), camera=camera, sequence=number, encoding="png", data=data)
            system.sent[frame.id.hex()] = number
            self.truth[frame.id.hex()] = LABELS[labels[chosen]], self.drift
            await system.bus.publish(topics.CAMERA_FRAME.at(ns="default", camera=camera), pack(frame))
            await asyncio.sleep(self.pause_s)


@contextlib.asynccontextmanager
async def answering(tmp_path: Path, stream: Stream) -> AsyncIterator[System]:
    write_models(tmp_path)
    async with running(tmp_path / "home", "edge0,cloud0") as system:
        for name in ("small", "big"):
            await system.client.apply(model(name, tmp_path / f"{name}.onnx"))
        await system.client.apply(service())
        await system.follow("digits")
        await system.until_running()
        sending = asyncio.create_task(stream.run(system))
        try:
            yield system
        finally:
            sending.cancel()


async def until(system: System, *states: str, rounds: int = 0) -> dict[str, Any]:
    """Wait for a state of the loop, or for the end of a round."""

    def done(progress: dict[str, Any]) -> bool:
        loop = progress.get("loop") or {}
        return loop.get("state") in states or bool(rounds and len(loop.get("history", [])) >= rounds)

    return await until_status(system.client, "again", done)


async def test_a_round_from_the_trigger_to_the_rollout_survives_kills_of_gm(tmp_path: Path) -> None:
    async with answering(tmp_path, Stream(drift=True)) as system:
        await system.client.apply(training())
        await until(system, "Collecting")
        for line in commands("docs/learning-loop.md"):
            assert "again" in await type_line(line, environment(system.home))
        for state in ("Labelling", "Training", "Judging", "Canary"):
            await until(system, state, "RolledOut", "Withdrawn", rounds=1)
            system.processes()["gm"].kill()
        found = await until(system, "Never", rounds=1)
        record = found["loop"]["history"][0]
        assert (record["outcome"], record["trigger"]) == ("RolledOut", "Command"), found["loop"]
        assert record["gain"]["low"] > 0
        spec = (await system.client.get("models", "small"))["spec"]
        assert spec["targetVersion"] == record["version"]
        version = next(each for each in spec["versions"] if each["version"] == record["version"])
        assert version["url"] == f"bus://gm/sha256/{version['sha256']}"
        found = await until(system, "Collecting")
        assert found["loop"]["history"][0]["after"]["value"] > 0.5
        assert found["loop"]["round"] == 1, "no round was done twice"
        used = {result.model for result in list(system.results.values())[-50:] if result.by == "edge"}
        assert used == {record["version"]}
        assert not [name for name in system.processes() if "training" in name]


async def test_two_loops_of_one_gm_end_their_rounds_alone_and_edit_only_their_own_model(tmp_path: Path) -> None:
    """One service has drifted and gets a better version; at the same time the other one's candidate is refused."""
    write_models(tmp_path)
    async with running(tmp_path / "home", "edge0,edge1,cloud0") as system:
        client = system.client
        for name, file in (("small-a", "small"), ("small-b", "small"), ("big", "big")):
            await client.apply(model(name, tmp_path / f"{file}.onnx"))
        await client.apply(model("trainers", Path(bad_trainers.__file__), "python"))
        await client.apply(service("a", "small-a", "edge0", "left"))
        await client.apply(service("b", "small-b", "edge1", "right"))
        for name in "ab":
            await until_status(client, name, lambda service: service.get("phase") == "Running", plural=SERVICES)
        async with asyncio.TaskGroup() as group:
            streams = [Stream(drift=True, cameras="left", pause_s=0.02), Stream(drift=False, cameras="right")]
            sending = [group.create_task(stream.run(system)) for stream in streams]
            worse = {"entry": "bad_trainers.py:Worse", "archive": {"name": "trainers"}, "parameters": []}
            await client.apply(training({"command": 1}, name="loop-a", of="a", model={"name": "small-a"}))
            other = {"of": "b", "node": "edge1", "model": {"name": "small-b"}, "trainer": worse}
            await client.apply(training({"command": 1}, name="loop-b", **other))
            versions: dict[str, set[str]] = {"a": set(), "b": set()}
            rounds = dict[str, Any]()
            end = time.monotonic() + patience(TRAINING_S)
            while len(rounds) < len(versions):
                assert time.monotonic() < end, (rounds, [await status(client, f"loop-{name}") for name in versions])
                await asyncio.sleep(0.2)
                for name, seen in versions.items():
                    spec = (await client.get("models", f"small-{name}"))["spec"]
                    seen |= {each["version"] for each in spec.get("versions", ())}
                    history = ((await status(client, f"loop-{name}")).get("loop") or {}).get("history")
                    rounds |= {name: history[0]} if history else {}
            for task in sending:
                task.cancel()
        assert rounds["a"]["outcome"] == "RolledOut", str(rounds)
        assert rounds["b"]["outcome"] == "Withdrawn", str(rounds)
        assert rounds["b"]["reason"] in {"CandidateWorse", "CandidateNotBetter"}, str(rounds)
        for name, seen in versions.items():
            trained = {each for each in seen if each.startswith("loop-")}
            assert trained <= {rounds[name]["version"]}
            assert rounds[name]["version"].startswith(f"loop-{name}-")
        specs = {name: (await client.get("models", f"small-{name}"))["spec"] for name in versions}
        assert specs["a"]["targetVersion"] == rounds["a"]["version"]
        assert specs["b"].get("targetVersion", "") in versions["b"] - {rounds["b"]["version"]}
