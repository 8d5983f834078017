"""Tries a model before it is used: in a child process that may crash, with limits of memory and time.

The child (``python -m halimede.inference.trial``) reads the file, opens it and answers a first sample. Any failure that
a hostile file causes becomes a reason. The caller needs neither NumPy nor a model runtime; if these are not installed,
nothing is tried, and the result reports that. The child leads its own process group, which ends with the call.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta, Struct

from halimede.api.model_formats import ONNX, ModelFormat, format_of
from halimede.messages.file_facts import MEMORY_WORDS, Trial, TrialJob, TrialReason, too_much
from halimede.system.child_process import bare_environment, ended_within, memory_file
from halimede.system.process_limits import CLOCK_FACTOR

__all__ = ["Trial", "TrialLimits", "TrialReason", "not_installed", "try_model"]

NEEDED = ("numpy", "onnxruntime", "PIL")
#: seconds for the child to start and to answer, beyond its limit: normally it ends itself in time
START_S = 30.0
#: bytes of its output that are read
MAX_OUTPUT = 1024 * 1024
TAIL = 4096
IMPORT_WORDS = ("ImportError", "ModuleNotFoundError")


class TrialLimits(Struct, kw_only=True, frozen=True):
    """Limits of a model while it is opened and answers a first sample, beyond the needs of the process itself.

    ``seconds``: of processor time. It may take four times that by the clock, because other processes go first.
    """

    memory_bytes: Annotated[int, Meta(ge=1)] = 4 * 1024**3
    seconds: Annotated[float, Meta(gt=0)] = 60.0


async def try_model(path: Path, spec_json: str, limits: TrialLimits = TrialLimits()) -> Trial:  # noqa: B008 - frozen
    """Open a model's file by its Model spec (JSON; ``{}`` for none) in a child process, and answer a first sample.

    Never raises because of the model. A spec of a format that only a user's estimator reads is skipped.
    Cancelling ends the child.
    """
    form = format_of(_format(spec_json))
    needed = [*NEEDED, *([form.package] if form and form.package else [])]
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        return Trial(ok=True, skipped=True, message=f"not tried: {', '.join(missing)} is not installed here")
    try:
        with contextlib.ExitStack() as files:
            job, output, errors = (files.enter_context(memory_file()) for _ in range(3))
            job.write(msgspec.json.encode(_job(path, spec_json, limits)))
            job.seek(0)
            code = await ended_within(_start(job, output, errors), limits.seconds * CLOCK_FACTOR + START_S)
            output.seek(0)
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - TAIL))
            return verdict(code, output.read(MAX_OUTPUT), errors.read().decode(errors="replace"), limits)
    except OSError as error:
        return Trial(reason=TrialReason.FAILED, message=f"the trial process could not be started: {error}")


def not_installed(form: ModelFormat) -> str:
    """Return that the package of a format is missing here, and how to install it; empty if it is installed."""
    if not form.package or importlib.util.find_spec(form.package) is not None:
        return ""
    needs = f"the format {form.name} ({form.title}) needs the package {form.package}"
    return f"{needs}, which is not installed here: run {form.install}"


def verdict(code: int | None, output: bytes, errors: str, limits: TrialLimits) -> Trial:
    """Return the result of a trial by the child's exit code (None: it was killed), its output and its last stderr."""
    result = _decoded(output)
    if code == 0 and result and (result.ok or result.reason):
        return result
    # while a script runs, its name is there
    what = (result and result.message) or "the model"
    if code is None and result is None:  # it ends itself in time once it has begun: nothing is known of the model
        return Trial(reason=TrialReason.FAILED, message="the trial did not begin in time: this machine is busy")
    if code is None or -code in {signal.SIGALRM, signal.SIGXCPU}:
        limit = f"{limits.seconds:g} s of processor time, {limits.seconds * CLOCK_FACTOR:g} s of the clock"
        return Trial(
            reason=TrialReason.SLOW, message=f"{what} was not ready within {limit}: simplify it or raise the limit"
        )
    last = next((line.strip()[:300] for line in reversed(errors.splitlines()) if line.strip()), "")
    if code == -signal.SIGKILL or any(phrase in errors for phrase in MEMORY_WORDS):
        return Trial(reason=TrialReason.MEMORY, message=too_much(limits.memory_bytes))
    if last.startswith(IMPORT_WORDS):
        return Trial(reason=TrialReason.FAILED, message=f"models cannot be tried here, repair the installation: {last}")
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return Trial(reason=TrialReason.CRASHED, message=f"{what} ended its process ({how}){last and f': {last}'}")


def _decoded(output: bytes) -> Trial | None:
    try:
        return msgspec.json.decode(output, type=Trial)
    except msgspec.DecodeError:
        return None


def _format(spec_json: str) -> str:
    """Return the format of a spec; that of an unreadable one is left to the trial."""
    with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
        return msgspec.json.decode(spec_json, type=_Format).format
    return ONNX.name


class _Format(Struct):
    format: str = ONNX.name


def _job(path: Path, spec_json: str, limits: TrialLimits) -> TrialJob:
    return TrialJob(
        path=str(path.absolute()),
        spec=spec_json,
        parent=os.getpid(),
        memory_bytes=limits.memory_bytes,
        seconds=limits.seconds,
    )


def _start(job: BinaryIO, output: BinaryIO, errors: BinaryIO) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "halimede.inference.trial"],
        stdin=job,
        stdout=output,
        stderr=errors,
        cwd="/",
        env=bare_environment(),
        process_group=0,
    )
