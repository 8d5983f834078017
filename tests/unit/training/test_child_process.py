"""A step of a user's trainer runs in a child process, and whatever it does becomes a result with a reason."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from halimede.system.process_limits import can_raise_priority
from halimede.training.child_process import MORE_BYTES, TrainingProcess, run_step
from halimede.training.settings import TrainingSettings
from halimede.training.tensor_file import decode
from halimede.training.weights import digest_of
from tests.simulated import eventually
from tests.training_world import LABELS, shares, write
from tests.unit.training.parties import party_settings

pytestmark = pytest.mark.timeout(120)

HOSTILE = """
import os, pathlib
from halimede.training.trainers.perceptron import Perceptron

class Writes(Perceptron):
    def train(self, data, weights):
        pathlib.Path("FOLDER/written").write_text("x")
        return super().train(data, weights)

class Spins(Perceptron):
    def train(self, data, weights):
        while True: pass

class Allocates(Perceptron):
    def train(self, data, weights):
        bytearray(4 * 1024**3)

class Raises(Perceptron):
    def train(self, data, weights):
        raise RuntimeError("no luck")

class Diverges(Perceptron):
    def train(self, data, weights):
        return {name: tensor * float("nan") for name, tensor in weights.items()}, {}

class Reshapes(Perceptron):
    def train(self, data, weights):
        return {name: tensor[..., None] for name, tensor in weights.items()}, {}

class Measures(Perceptron):
    def evaluate(self, data, weights):
        return {"accuracy": float("inf")}

class Counts(Perceptron):
    calls = 0

    def train(self, data, weights):
        Counts.calls += 1
        found, _ = super().train(data, weights)
        return found, {"calls": Counts.calls, "server": os.getppid(), "samples": len(data)}

class Leaves(Perceptron):
    def train(self, data, weights):
        if not os.fork():
            os.setsid()
            os.execv("/bin/sleep", ["sleep", "600.25"])
        return super().train(data, weights)

class Stays(Leaves):
    def train(self, data, weights):
        super().train(data, weights)
        while True: pass

class Fails(Perceptron):
    def train(self, data, weights):
        if data.seed == 1:
            os.abort()
        return Counts.train(Counts(), data, weights)

class Polite(Perceptron):
    def train(self, data, weights):
        found, _ = super().train(data, weights)
        secrets = sum(name.startswith("HALIMEDE") for name in os.environ)
        return found, {"policy": os.sched_getscheduler(0), "session": os.getsid(0), "secrets": secrets}
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a module with trainers, which child processes find."""
    name = f"trainers_{digest_of(str(tmp_path).encode())[:8]}"
    (tmp_path / f"{name}.py").write_text(HOSTILE.replace("FOLDER", str(tmp_path)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HALIMEDE_CREDENTIALS", "/secret")
    return name


def settings(folder: Path, entry: str = "Perceptron", **limits: float) -> TrainingSettings:
    rows, classes = shares(1, 200)[0]
    training = {"trainers": {"t0": "edge0"}, "entry": entry, "limits": limits}
    data = write(folder / "samples.npz", rows, classes)
    return party_settings("trainer", "t0", folder, data, training, labels=LABELS)


def children() -> set[str]:
    """Return the processes that this one has started."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


async def trained(told: TrainingSettings) -> tuple[str, str, dict[str, float]]:
    first = await run_step(told, "initial", shape=[64])
    assert first.reason == ""
    result = await run_step(told, "train", weights=first.content, specs=first.specs, seed=1)
    return result.reason, result.message, result.metrics


async def test_a_step_returns_the_difference_and_metrics(tmp_path: Path) -> None:
    told = settings(tmp_path)
    described = await run_step(told, "describe")
    assert described.samples + described.held_out == 200
    assert described.shape == [64]
    first = await run_step(told, "initial", shape=[64])
    results = [await run_step(told, "train", weights=first.content, specs=first.specs, seed=1) for _ in range(2)]
    assert results[0].content == results[1].content
    assert any(np.abs(tensor).max() > 0 for tensor in decode(results[0].content, first.specs).values())
    assert results[0].evaluation["accuracy"] < 0.5
    model = await run_step(told, "export", weights=first.content, specs=first.specs)
    assert len(model.content) > 1000


async def test_first_weights_may_be_large_although_nobody_knows_their_size_yet(tmp_path: Path) -> None:
    small = settings(tmp_path)
    job = msgspec.structs.replace(small.job, parameters={"hidden": "65536"})
    found = await run_step(dataclasses.replace(small, job=job), "initial", shape=[64])
    assert (found.reason, found.message) == ("", "")
    assert sum(np.prod(spec.shape) for spec in found.specs) == 65_536 * (64 + 1) + 10 * (65_536 + 1)
    assert len(found.content) > MORE_BYTES + 1024**2


@pytest.mark.parametrize(
    ("entry", "reason", "text"),
    [
        ("Writes", "TrainingFailed", "Permission"),
        ("Raises", "TrainingFailed", "RuntimeError: no luck"),
        ("Allocates", "OutOfMemory", "raise memoryMb"),
        ("Spins", "TrainingTooSlow", "raise seconds"),
        ("Diverges", "WeightsNotFinite", "not finite"),
        ("Reshapes", "WeightsShape", "other names, types or shapes"),
        ("Measures", "TrainingFailed", "finite numbers"),
        ("Missing", "TrainerInvalid", "spec.trainer.entry"),
    ],
)
async def test_what_fails_has_a_reason(tmp_path: Path, code: str, entry: str, reason: str, text: str) -> None:
    result = await run_step(settings(tmp_path, f"{code}:{entry}", memoryMb=512, seconds=60), "initial", shape=[64])
    if entry != "Missing":
        told = settings(tmp_path, f"{code}:{entry}", memoryMb=512, seconds=1 if entry == "Spins" else 60)
        result = await run_step(told, "train", weights=result.content, specs=result.specs)
    assert result.reason == reason
    assert text in result.message
    assert not (tmp_path / "written").exists()


async def test_a_cancelled_step_leaves_no_process(tmp_path: Path, code: str) -> None:
    told = settings(tmp_path, f"{code}:Stays", seconds=600)
    first = await run_step(told, "initial", shape=[64])
    before = children()
    step = asyncio.create_task(run_step(told, "train", weights=first.content, specs=first.specs))
    await eventually(lambda: bool(sleeping()), 60)
    assert children() > before
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert children() == before
    assert not sleeping()


async def test_a_step_computes_when_nobody_else_does_and_has_no_credentials(tmp_path: Path, code: str) -> None:
    reason, message, metrics = await trained(settings(tmp_path, f"{code}:Polite"))
    assert (reason, message) == ("", "")
    # some kernels compare the policies of processes only within a session
    policy = os.SCHED_IDLE if can_raise_priority() else os.SCHED_BATCH
    assert metrics == {"policy": policy, "session": os.getsid(0), "secrets": 0}


@pytest.fixture
def kept(tmp_path: Path, code: str) -> Iterator[Callable[..., TrainingProcess]]:
    """Return what makes a process for all steps of a trainer."""
    with contextlib.ExitStack() as processes:

        def make(entry: str, **limits: float) -> TrainingProcess:
            return processes.enter_context(
                contextlib.closing(TrainingProcess(settings(tmp_path, f"{code}:{entry}", **limits)))
            )

        yield make


async def test_steps_have_one_process_and_none_leaves_anything_for_the_next(
    tmp_path: Path, kept: Callable[..., TrainingProcess]
) -> None:
    process, before = kept("Counts"), children()
    first = await process.step("initial", shape=[64])
    results = [await process.step("train", weights=first.content, specs=first.specs, seed=1) for _ in range(3)]
    assert [result.metrics["calls"] for result in results] == [1, 1, 1]
    assert {result.metrics["server"] for result in results} == {int(each) for each in children() - before}
    assert len({result.content for result in results}) == 1
    process.close()
    assert children() == before


async def test_samples_that_change_between_two_steps_are_read_again(
    tmp_path: Path, kept: Callable[..., TrainingProcess]
) -> None:
    process = kept("Counts")
    rows, classes = shares(1, 200)[0]
    first = await process.step("initial", shape=[64])
    path = tmp_path / "samples.npz"
    for number in (200, 150, 199):
        write(path, rows[:number], classes[:number])
        result = await process.step("train", weights=first.content, specs=first.specs)
        assert result.samples + result.held_out == number
        assert result.metrics["samples"] == result.samples
    path.unlink()
    gone = await process.step("train", weights=first.content, specs=first.specs)
    assert gone.reason == "DatasetEmpty"


async def test_a_step_that_fails_has_another_process_after_it(kept: Callable[..., TrainingProcess]) -> None:
    process = kept("Fails")
    first = await process.step("initial", shape=[64])
    servers = set()
    for seed in (0, 1, 0):
        result = await process.step("train", weights=first.content, specs=first.specs, seed=seed)
        assert result.reason == ("TrainingFailed" if seed == 1 else "")
        servers.add(result.metrics.get("server", 0))
    assert len(servers) == 3


async def test_a_process_that_was_killed_between_steps_is_started_again(kept: Callable[..., TrainingProcess]) -> None:
    process, before = kept("Counts"), children()
    assert (await process.step("describe")).reason == ""
    (server,) = children() - before
    os.kill(int(server), signal.SIGKILL)
    os.waitid(os.P_PID, int(server), os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 (it ends at once)
    assert (await process.step("describe")).reason == ""
    assert children().isdisjoint({server})


async def test_a_step_leaves_no_process_behind(kept: Callable[..., TrainingProcess]) -> None:
    process = kept("Leaves")
    first = await process.step("initial", shape=[64])
    assert (await process.step("train", weights=first.content, specs=first.specs)).reason == ""
    assert not sleeping()


def sleeping() -> list[str]:
    """Return the processes that ``Leaves`` has left."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"600.25" in path.read_bytes():
                found.append(path.parent.name)
    return found
