"""Limits of a training step: what its process is told, and how the ends of that process are named."""

from __future__ import annotations

import signal
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from halimede.api.model import ModelSpec
from halimede.errors import InvalidFieldError
from halimede.messages import Compression, TensorSpec
from halimede.system.process_limits import CLOCK_FACTOR
from halimede.training import child
from halimede.training.child_messages import TrainingResult, TrainingTask
from halimede.training.child_process import MOST_BYTES, TrainingProcess, most_bytes, verdict
from halimede.training.data import SampleCache
from halimede.training.tensor_file import size_limit, value_count
from halimede.training.trainer import import_trainer
from tests.unit.training.parties import party_settings

MIB = 1024**2
SPECS = [TensorSpec(name="a", dtype="float32", shape=[10, 3]), TensorSpec(name="b", dtype="float64", shape=[5])]
TASK = TrainingTask(
    do="train", entry="m:T", parameters={}, model_spec="{}", memory_bytes=16 * MIB + 1, seconds=1.5, clock_s=6.0,
    written_bytes=1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("code", "errors", "reason"),
    [
        (None, "", "TrainingTooSlow"),
        (-signal.SIGALRM, "", "TrainingTooSlow"),
        (-signal.SIGPROF, "", "TrainingTooSlow"),
        (-signal.SIGXCPU, "", "TrainingTooSlow"),
        (-signal.SIGKILL, "", "OutOfMemory"),
        (1, "MemoryError: no room", "OutOfMemory"),
        (-signal.SIGSEGV, "", "TrainingFailed"),
        (1, "", "TrainingFailed"),
        (0, "", "TrainingFailed"),
        (signal.SIGALRM, "", "TrainingFailed"),
        (signal.SIGKILL, "", "TrainingFailed"),
    ],
)
def test_each_end_of_a_step_has_its_reason(code: int | None, errors: str, reason: str) -> None:
    assert verdict(code, b"garbage", errors, TASK).reason == reason


def test_the_text_of_an_end_states_the_limit_or_the_last_error() -> None:
    assert verdict(None, b"", "", TASK).message == (
        "m:T was not done within 1.5 s of processor time, 6 s of the clock: simplify it, or raise seconds"
    )
    assert verdict(-9, b"", "", TASK).message == "it needs more than 16 MiB: raise memoryMb"
    assert verdict(3, b"", "first\nlast\n \n", TASK).message == "m:T ended its process (exit code 3): last"
    assert verdict(-11, b"", "\n", TASK).message == "m:T ended its process (SIGSEGV)"
    assert verdict(-1, b"", "", TASK).message == "m:T ended its process (SIGHUP)"


def test_a_result_counts_only_of_a_step_that_ended_well() -> None:
    output = msgspec.msgpack.encode(TrainingResult(samples=5))
    assert verdict(0, output, "MemoryError", TASK) == TrainingResult(samples=5)
    assert verdict(1, output, "", TASK).reason == "TrainingFailed"


def test_a_result_may_have_two_files_of_its_tensors_and_what_belongs_to_a_model() -> None:
    assert most_bytes(SPECS) == 16 * MIB + 2 * size_limit(SPECS)
    assert most_bytes(()) == 16 * MIB + 1024**3
    assert MOST_BYTES == 16 * MIB + 2 * 1024**3


async def test_the_task_of_a_step_has_the_limits_of_its_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tasks: list[TrainingTask] = []

    async def run(_: Any, task: TrainingTask) -> TrainingResult:
        tasks.append(task)
        return TrainingResult()

    monkeypatch.setattr(TrainingProcess, "_run", run)
    limits = {"memoryMb": 32, "seconds": 7.0, "cores": 3}
    training = {"trainers": {"t0": "edge0"}, "entry": "m:T", "limits": limits, "sinceS": 5.0}
    settings = party_settings("trainer", "t0", tmp_path, tmp_path, training)
    worker = replace(settings.worker, model_path="/present")
    await TrainingProcess(replace(settings, worker=worker, reference="/first")).step("train", specs=SPECS)
    (task,) = tasks
    assert (task.memory_bytes, task.seconds, task.cores) == (32 * MIB, 7.0, 3)
    assert (task.clock_s, task.written_bytes) == (7.0 * CLOCK_FACTOR, most_bytes(SPECS))
    assert (task.do, task.entry, task.since_s) == ("train", "m:T", 5.0)
    assert (task.present, task.reference) == ("/present", "/first")


@pytest.mark.parametrize(
    ("error", "reason", "text"),
    [
        ("MemoryError()", "OutOfMemory", "it needs more than 16 MiB: raise memoryMb"),
        ("RuntimeError('std::bad_alloc')", "OutOfMemory", "it needs more than 16 MiB: raise memoryMb"),
        ("RuntimeError('no luck')", "TrainingFailed", "no luck"),
    ],
)
def test_what_a_trainer_raises_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, error: str, reason: str, text: str
) -> None:
    def fails(*_: object) -> TrainingResult:
        raise eval(error)

    monkeypatch.setattr(child, "_carry_out", fails)
    result = child.carry_out(TASK, SampleCache())
    assert result.reason == reason
    assert text in result.message


def test_a_long_message_of_a_failure_is_cut_to_a_thousand_characters() -> None:
    assert len(child._failure("TrainingFailed", "x" * 1000).message) == 1000
    long = child._failure("TrainingFailed", "begin" + "x" * 5000 + "end").message
    assert len(long) <= 1000
    assert long.startswith("begin")
    assert long.endswith("end")


@pytest.mark.parametrize(
    ("size", "share", "count"), [(0, 0.5, 0), (1, 0.01, 1), (10, 0.25, 3), (10, 1.0, 10), (100, 0.5, 50), (3, 0.5, 2)]
)
def test_an_update_has_a_share_of_the_values_and_at_least_one(size: int, share: float, count: int) -> None:
    assert value_count(size, Compression(top_k=share)) == count


@pytest.mark.parametrize(("do", "reads"), [("train", True), ("describe", True), ("initial", False), ("export", False)])
def test_the_process_that_stays_reads_the_samples_of_the_steps_that_need_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, do: Any, reads: bool
) -> None:
    paths: list[Path] = []
    monkeypatch.setattr(SampleCache, "read", lambda _, path, *__: paths.append(path))
    spec = msgspec.json.encode(ModelSpec(url="/none", format="onnx", labels=["a"])).decode()
    task = msgspec.structs.replace(TASK, do=do, entry="Perceptron", model_spec=spec, data=str(tmp_path / "x.npz"))
    child._prepare(task, SampleCache())
    assert paths == [tmp_path / "x.npz"] * reads


def test_an_archive_without_the_entrys_file_names_the_first_five_that_it_has(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as packed:
        for number in range(7):
            packed.writestr(f"m{number}.py", "")
    with pytest.raises(InvalidFieldError, match=r"it has m0\.py, m1\.py, m2\.py, m3\.py, m4\.py$"):
        import_trainer("other.py:T", str(tmp_path / "code.zip"))
