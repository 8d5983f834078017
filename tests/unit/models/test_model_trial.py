"""How a trial's end is read, and that its process never outlives whoever asked."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from halimede.api.model_formats import ONNX, format_of
from halimede.messages import TensorInfo
from halimede.models import model_trial
from halimede.models.model_trial import Trial, TrialLimits, TrialReason, not_installed, try_model, verdict
from tests.hostile_models import endless, harmless
from tests.lite_files import write_weigher
from tests.simulated import eventually

LIMITS = TrialLimits(memory_bytes=64 * 1024**2, seconds=5)


def without(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """Make a package appear as not installed."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))


@pytest.mark.parametrize(
    ("code", "said", "complained", "reason", "says"),
    [
        (None, b"", "", TrialReason.FAILED, "machine is busy"),
        (None, b'{"message": "post.py"}', "", TrialReason.SLOW, "post.py was not ready within 5 s"),
        (-signal.SIGALRM, b"", "", TrialReason.SLOW, "within 5 s"),
        (-signal.SIGXCPU, b"", "", TrialReason.SLOW, "within 5 s"),
        (-signal.SIGKILL, b"", "", TrialReason.MEMORY, "more than 64 MiB"),
        (-signal.SIGABRT, b"", "terminate called\n  what():  std::bad_alloc\n", TrialReason.MEMORY, "64 MiB"),
        (1, b"", "Traceback\nMemoryError\n", TrialReason.MEMORY, "64 MiB"),
        (-signal.SIGSEGV, b"", "", TrialReason.CRASHED, r"\(SIGSEGV\)$"),
        (3, b"", "oh\nno\n\n", TrialReason.CRASHED, r"\(exit code 3\): no$"),
        (0, b"half of", "", TrialReason.CRASHED, "exit code 0"),
        (1, b"", "Traceback\nImportError: libfoo.so\n", TrialReason.FAILED, "installation: ImportError: libfoo"),
    ],
)
def test_every_end_has_its_reason(code, said, complained, reason, says):
    trial = verdict(code, said, complained, LIMITS)
    assert (trial.ok, trial.skipped, trial.reason) == (False, False, reason)
    assert re.search(says, trial.message)


def test_an_answer_is_taken_as_it_was_said():
    trial = Trial(ok=True, seconds=1.5, inputs=[TensorInfo(name="x", datatype="FP32", shape=[-1])])
    assert verdict(0, msgspec.json.encode(trial), "warning", LIMITS) == trial


async def test_a_trial_that_a_busy_machine_did_not_even_begin_says_nothing_of_the_model(tmp_path, monkeypatch):
    monkeypatch.setattr(model_trial, "START_TIMEOUT_S", 0.0)
    trial = await try_model(harmless(tmp_path / "m.onnx"), "{}", TrialLimits(seconds=0.001))
    assert (trial.ok, trial.skipped, trial.reason) == (False, False, TrialReason.FAILED)


async def test_nothing_is_tried_where_nothing_could_run_it(tmp_path, monkeypatch):
    without(monkeypatch, "onnxruntime")
    trial = await try_model(tmp_path / "absent", "{}")
    assert (trial.ok, trial.skipped, trial.reason) == (True, True, "")
    assert "onnxruntime is not installed" in trial.message


@pytest.mark.parametrize(
    ("form", "package"), [("tflite", "ai_edge_litert"), ("TensorFlow", "tensorflow")], ids=["tflite", "tensorflow"]
)
async def test_a_model_whose_package_is_missing_is_not_tried(tmp_path, monkeypatch, form, package):
    without(monkeypatch, package)
    trial = await try_model(tmp_path / "absent", json.dumps({"format": form}))
    assert (trial.ok, trial.skipped, trial.message) == (True, True, f"not tried: {package} is not installed here")
    message = not_installed(format_of(form))
    assert f"needs the package {package}, which is not installed here: run pip install 'halimede[" in message
    assert message.endswith(f"{form.lower()}]'")
    assert not not_installed(ONNX)


async def test_a_lite_model_is_tried_and_described_like_an_onnx_model(tmp_path):
    trial = await try_model(write_weigher(tmp_path / "m.tflite"), '{"format": "tflite", "labels": ["dark", "bright"]}')
    assert (trial.ok, trial.skipped, trial.reason) == (True, False, "")
    assert trial.inputs == [TensorInfo(name="x", datatype="FP32", shape=[-1, 4])]
    assert trial.outputs == [TensorInfo(name="y", datatype="FP32", shape=[-1, 2])]


async def test_a_format_of_somebody_elses_is_left_to_its_estimator(tmp_path):
    trial = await try_model(tmp_path / "absent", '{"format": "pb"}')
    assert (trial.ok, trial.skipped) == (True, True)
    assert "estimator reads the format 'pb'" in trial.message


@pytest.mark.parametrize(
    ("write", "spec", "says"),
    [
        (harmless, "{", "spec: .*no JSON"),
        (harmless, "[]", "spec: "),
        (harmless, '{"format": 3}', r"spec\.format"),
        (harmless, '{"labels": ["a"]}', "4 classes and spec.labels names 1"),
        (harmless, '{"preprocess": [{"op": "resize", "width": 9, "height": 9}]}', "spec.preprocess does not fit"),
        (harmless, '{"postprocess": {"output": "z"}}', "no output 'z'"),
        (write_weigher, '{"format": "tflite", "labels": ["a", "b", "c"]}', "2 classes and spec.labels names 3"),
        (write_weigher, '{"format": "tflite", "postprocess": {"output": "z"}}', "no output 'z'"),
        (lambda path: path, "{}", "does not exist"),
    ],
)
async def test_a_spec_or_a_file_that_does_not_fit_is_invalid_with_the_reason(tmp_path, write, spec, says):
    trial = await try_model(write(tmp_path / "model"), spec)
    assert (trial.ok, trial.reason) == (False, TrialReason.INVALID)
    assert re.search(says, trial.message)


async def test_a_relative_path_is_that_of_the_caller(tmp_path, monkeypatch):
    harmless(tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    assert (await try_model(Path("m.onnx"), "{}")).ok


async def test_the_child_has_none_of_the_callers_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_ACCESS_KEY", "hidden")
    trial = asyncio.create_task(try_model(endless(tmp_path / "m.onnx"), "{}"))
    await eventually(lambda: len(children(os.getpid())) == 1, 30)
    (child,) = children(os.getpid())
    assert "SECRET_ACCESS_KEY" not in child.environ()
    assert not any("hidden" in value for value in child.environ().values())
    trial.cancel()
    await asyncio.wait([trial])


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGSEGV, TrialReason.CRASHED), (signal.SIGKILL, TrialReason.MEMORY)]
)
async def test_a_child_that_is_struck_down_is_an_answer(tmp_path, number, reason):
    trial = asyncio.create_task(try_model(endless(tmp_path / "m.onnx"), "{}"))
    await eventually(lambda: any(map(is_limited, children(os.getpid()))), 30)
    children(os.getpid())[0].send_signal(number)
    assert (await trial).reason == reason


async def test_it_ends_with_its_parent_even_when_that_is_killed(tmp_path):
    path = endless(tmp_path / "m.onnx")
    code = f"""
import asyncio
from pathlib import Path
from halimede.models.model_trial import try_model
asyncio.run(try_model(Path({json.dumps(str(path))}), "{{}}"))
"""
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        await eventually(lambda: any(map(is_limited, children(parent.pid))), 30)
        (child,) = children(parent.pid)
        parent.kill()
    await eventually(lambda: has_ended(child), 30)


def has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def children(parent: int) -> list[psutil.Process]:
    """Return the trials that a process has started."""
    processes = psutil.process_iter(["ppid", "cmdline"])
    own = [process for process in processes if process.info["ppid"] == parent]
    return [process for process in own if "halimede.inference.trial" in " ".join(process.info["cmdline"] or ())]


def is_limited(process: psutil.Process) -> bool:
    """Whether it has begun with the model."""
    try:
        return process.rlimit(psutil.RLIMIT_FSIZE)[0] != psutil.RLIM_INFINITY
    except psutil.NoSuchProcess:
        return False
