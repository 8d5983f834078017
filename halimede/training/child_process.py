"""Runs steps of a user's trainer in a child process, within limits. Whatever a step does, it has a TrainingResult."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, BinaryIO, Literal

import msgspec

from halimede.errors import shorten_middle
from halimede.messages import TensorSpec
from halimede.messages.file_facts import MEMORY_PHRASES
from halimede.system.child_process import bare_environment, end_descendants, memory_file, wait_exit
from halimede.system.process_limits import CLOCK_FACTOR
from halimede.training.child_messages import EXIT_CODE, TrainingResult, TrainingTask
from halimede.training.settings import TrainingSettings
from halimede.training.tensor_file import size_limit
from halimede.training.weights import MAX_WEIGHTS

#: seconds beyond a step's limit for the child to start and to write its result
START_S = 30.0
#: bytes of a result besides its tensors: metrics and texts, or what an ONNX model has besides its weights
MORE_BYTES = 16 * 1024**2
#: bytes of any file that the child writes
MOST_BYTES = MORE_BYTES + 2 * MAX_WEIGHTS
#: bytes at the end of printed messages that a failed result may quote
ERROR_BYTES = 4096
#: options of waitid(2) that tell whether a child has ended, without reaping it
ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT

#: kinds of steps: ``TrainingTask`` describes them
StepKind = Literal["describe", "train", "evaluate", "initial", "export", "compare"]
#: runs one step of a trainer: ``TrainingProcess.step``, or a script's own process
Step = Callable[..., Awaitable[TrainingResult]]


class TrainingProcess:
    """The child process of one worker. The first step starts it, and the first step after a failure starts a new one.

    Call ``step`` for one step at a time, and ``close`` at the end.
    """

    def __init__(self, settings: TrainingSettings) -> None:
        self._settings = settings
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

    async def step(self, do: StepKind, **more: Any) -> TrainingResult:
        """Run one step and return its result; a failure is a result with a reason.

        ``more``: further fields of its ``TrainingTask``, such as ``weights`` and their ``specs`` for ``train``, or
        ``shape`` for ``initial``. If the step fails or is cancelled, ``close`` ends the process.
        """
        settings, limits = self._settings, self._settings.job.limits
        task = TrainingTask(
            do=do,
            entry=settings.job.entry,
            archive=settings.archive,
            parameters=settings.job.parameters,
            model_spec=msgspec.json.encode(settings.worker.model).decode(),
            data=str(settings.data),
            since_s=settings.job.since_s,
            reference=settings.reference,
            present=settings.worker.model_path,
            memory_bytes=limits.memory_mb * 1024**2,
            seconds=limits.seconds,
            clock_s=limits.seconds * CLOCK_FACTOR,
            cores=limits.cores,
            written_bytes=most_bytes(more.get("specs", ())),
            **more,
        )
        failed = True
        try:
            result = await self._run(task)
            failed = bool(result.reason)
        except OSError as error:
            text = f"the training process could not be started: {error}"
            return TrainingResult(reason="TrainingFailed", message=text)
        finally:
            if failed:
                self.close()
        return result

    async def _run(self, task: TrainingTask) -> TrainingResult:
        """Return the result of a task. Raises OSError if the process cannot be started."""
        with contextlib.ExitStack() as files:
            task_file, output, errors = (files.enter_context(memory_file()) for _ in range(3))
            task_file.write(msgspec.msgpack.encode(task))
            task_file.seek(0)
            code = await self._code(task, task_file, output, errors)
            output.seek(0)
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - ERROR_BYTES))
            return verdict(code, output.read(), errors.read().decode(errors="replace"), task)

    async def _code(self, task: TrainingTask, task_file: BinaryIO, output: BinaryIO, errors: BinaryIO) -> int | None:
        """Return the exit code of a step, or of the child if the child ended; None: it took too long."""
        child, connection = self._ensure_started(task, errors)
        try:
            async with asyncio.timeout(task.clock_s + START_S):
                if status := await _exchange(connection, [task_file.fileno(), output.fileno(), errors.fileno()]):
                    return int(EXIT_CODE.unpack(status)[0])
                await wait_exit(child.pid)
        except TimeoutError:
            return None
        self.close()
        return child.returncode

    def _ensure_started(self, task: TrainingTask, errors: BinaryIO) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Return the child and the connection to it; start one if there is none or it has ended. Raises OSError."""
        if self._child is not None and os.waitid(os.P_PID, self._child.pid, ENDED) is not None:
            self.close()
        if self._child is None or self._connection is None:
            self._connection, theirs = socket.socketpair()
            self._connection.settimeout(0)
            with theirs:
                self._child = _start(task, theirs, errors, has_share=bool(self._settings.job.cpu_share))
        return self._child, self._connection

    def close(self) -> None:
        """End the child, and all processes that it started, if there is one. Blocks for some seconds at most."""
        if self._connection is not None:
            self._connection.close()
        if self._child is not None:
            end_descendants(self._child.pid)
            # the child was not reaped yet, so no other process can have its group id
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        self._child = self._connection = None


async def run_step(settings: TrainingSettings, do: StepKind, **more: Any) -> TrainingResult:
    """Run one step in a new child process, which ends with this call, and return its result.

    A failure is a result with a reason. ``more``: further fields of the step's ``TrainingTask``.
    """
    with contextlib.closing(TrainingProcess(settings)) as process:
        return await process.step(do, **more)


async def _exchange(connection: socket.socket, files: list[int]) -> bytes:
    """Send the open files of a task; return the packed exit code of its step, empty if the child has ended."""
    with contextlib.suppress(ConnectionError):
        socket.send_fds(connection, [b"\0"], files)
        return await asyncio.get_running_loop().sock_recv(connection, EXIT_CODE.size)
    return b""


def _start(
    task: TrainingTask, connection: socket.socket, errors: BinaryIO, *, has_share: bool
) -> subprocess.Popen[bytes]:
    """Start the child. ``has_share``: it is promised a share of a core. Raises OSError."""
    arguments = map(str, [os.getpid(), task.cores, int(has_share), task.memory_bytes, MOST_BYTES])
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "halimede.training.child", *arguments],
        stdin=connection.fileno(),
        stdout=errors,
        stderr=errors,
        cwd="/",
        env={**bare_environment(), "OMP_NUM_THREADS": str(task.cores), "OPENBLAS_NUM_THREADS": str(task.cores)},
        process_group=0,
    )


def most_bytes(specs: Sequence[TensorSpec]) -> int:
    """Return the most bytes of a result with tensors of these specs; without specs, those of any first weights."""
    return MORE_BYTES + (2 * size_limit(specs) if specs else MAX_WEIGHTS)


def verdict(code: int | None, output: bytes, errors: str, task: TrainingTask) -> TrainingResult:
    """Return the result of a step by its exit code (None: it took too long), its output, and its printed messages."""
    if code == 0:
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.msgpack.decode(output, type=TrainingResult)
    if code is None or -code in {signal.SIGALRM, signal.SIGPROF, signal.SIGXCPU}:
        limit = f"{task.seconds:g} s of processor time, {task.clock_s:g} s of the clock"
        text = f"{task.entry} was not done within {limit}: simplify it, or raise seconds"
        return TrainingResult(reason="TrainingTooSlow", message=text)
    if code == -signal.SIGKILL or any(text in errors for text in MEMORY_PHRASES):
        text = f"it needs more than {task.memory_bytes // 1024**2} MiB: raise memoryMb"
        return TrainingResult(reason="OutOfMemory", message=text)
    last = next((shorten_middle(line.strip(), 300) for line in reversed(errors.splitlines()) if line.strip()), "")
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    text = f"{task.entry} ended its process ({how}){last and f': {last}'}"
    return TrainingResult(reason="TrainingFailed", message=text)
