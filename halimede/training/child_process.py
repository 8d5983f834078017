"""Runs one step of a user's trainer in a child process, within limits; whatever it does becomes a result."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, BinaryIO, Literal

import msgspec

from halimede.messages import TensorSpec
from halimede.messages.file_facts import MEMORY_WORDS
from halimede.system.child_process import bare_environment, ended_within, memory_file
from halimede.training.child_messages import TrainingResult, TrainingTask
from halimede.training.settings import TrainingSettings
from halimede.training.tensor_file import size_limit

#: seconds for the child to start and to write its result, beyond its limit: normally it ends itself in time
START_S = 30.0
#: seconds of the clock for a second of processor time: other processes go first
CLOCK_FACTOR = 4
#: bytes of its result beyond the tensors: metrics and texts, or what an ONNX model has besides its weights
MORE_BYTES = 16 * 1024**2
TAIL = 4096


#: what runs one step of a trainer: ``run_step``, or a script's own process
Step = Callable[..., Awaitable[TrainingResult]]


async def run_step(
    settings: TrainingSettings,
    do: Literal["describe", "train", "evaluate", "initial", "export", "compare"],
    **more: Any,
) -> TrainingResult:
    """Run one step in a child process; it ends with this call, also if that is cancelled. See ``TrainingTask``."""
    job, limits = settings.job, settings.job.limits
    task = TrainingTask(
        do=do,
        parent=os.getpid(),
        entry=job.entry,
        archive=settings.archive,
        parameters=job.parameters,
        model_spec=msgspec.json.encode(settings.worker.model).decode(),
        data=str(settings.data),
        since_s=job.since_s,
        reference=settings.reference,
        present=settings.worker.model_path,
        memory_bytes=limits.memory_mb * 1024**2,
        seconds=limits.seconds,
        clock_s=limits.seconds * CLOCK_FACTOR,
        cores=limits.cores,
        written_bytes=most_bytes(more.get("specs", ())),
        **more,
    )
    try:
        return await _run(task)
    except OSError as error:
        return TrainingResult(reason="TrainingFailed", message=f"the training process could not be started: {error}")


def most_bytes(specs: Sequence[TensorSpec]) -> int:
    """Return the most bytes of a result; that of first weights has no specs yet."""
    return MORE_BYTES + (2 * size_limit(specs) if specs else 1024**3)


async def _run(task: TrainingTask) -> TrainingResult:
    with contextlib.ExitStack() as files:
        given, output, errors = (files.enter_context(memory_file()) for _ in range(3))
        given.write(msgspec.msgpack.encode(task))
        given.seek(0)
        code = await ended_within(_start(task, given, output, errors), task.clock_s + START_S)
        output.seek(0)
        errors.seek(max(0, errors.seek(0, os.SEEK_END) - TAIL))
        return verdict(code, output.read(), errors.read().decode(errors="replace"), task)


def _start(task: TrainingTask, given: BinaryIO, output: BinaryIO, errors: BinaryIO) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "halimede.training.child"],
        stdin=given,
        stdout=output,
        stderr=errors,
        cwd="/",
        env={**bare_environment(), "OMP_NUM_THREADS": str(task.cores), "OPENBLAS_NUM_THREADS": str(task.cores)},
        start_new_session=True,
    )


def verdict(code: int | None, output: bytes, errors: str, task: TrainingTask) -> TrainingResult:
    """Return the result of a child by its exit code (None: it was killed), its output and its last error lines."""
    if code == 0:
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.msgpack.decode(output, type=TrainingResult)
    if code is None or -code in {signal.SIGALRM, signal.SIGXCPU}:
        limit = f"{task.seconds:g} s of processor time, {task.clock_s:g} s of the clock"
        text = f"{task.entry} was not done within {limit}: simplify it, or raise seconds"
        return TrainingResult(reason="TrainingTooSlow", message=text)
    if code == -signal.SIGKILL or any(word in errors for word in MEMORY_WORDS):
        text = f"it needs more than {task.memory_bytes // 1024**2} MiB: raise memoryMb"
        return TrainingResult(reason="OutOfMemory", message=text)
    last = next((line.strip()[:300] for line in reversed(errors.splitlines()) if line.strip()), "")
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return TrainingResult(
        reason="TrainingFailed", message=f"{task.entry} ended its process ({how}){last and f': {last}'}"
    )
