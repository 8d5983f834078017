"""Tries a model before it is used, in a child process that may crash, with limits of memory and time: ``try_model``.

The child (``python -m halimede.inference.trial``) reads the file, opens it and answers a sample of zeros. Any failure
that a hostile file causes becomes a ``Trial`` with a reason. The caller needs neither NumPy nor a model runtime; if
these are not installed, nothing is tried, and the result says so. The child leads its own process group, which ends
with the call.
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
from halimede.messages.file_facts import MEMORY_PHRASES, Trial, TrialJob, TrialReason, memory_text
from halimede.system.child_process import bare_environment, ended_within, memory_file
from halimede.system.process_limits import CLOCK_FACTOR

__all__ = ["Trial", "TrialLimits", "TrialReason", "not_installed", "try_model"]

#: packages without which no model is tried
NEEDED_PACKAGES = ("numpy", "onnxruntime", "PIL")
#: seconds for the start of the child, in addition to its limit by the clock, at which it ends itself
START_TIMEOUT_S = 30.0
#: most bytes of the child's output that are read, and last bytes of its standard error
MAX_OUTPUT_BYTES, ERROR_TAIL_BYTES = 1024 * 1024, 4096
#: begins of the last line of a child that could not import halimede
IMPORT_ERRORS = ("ImportError", "ModuleNotFoundError")


class TrialLimits(Struct, kw_only=True, frozen=True):
    """Limits of a model while it is opened and answers a sample.

    Attributes:
        memory_bytes: of address space, beyond what the process itself needs.
        seconds: of processor time; by the clock, CLOCK_FACTOR times as many, because other processes go first.

    """

    memory_bytes: Annotated[int, Meta(ge=1)] = 4 * 1024**3
    seconds: Annotated[float, Meta(gt=0)] = 60.0


async def try_model(path: Path, spec_json: str, limits: TrialLimits = TrialLimits()) -> Trial:  # noqa: B008 - frozen
    """Return the result of opening a model and answering a sample of zeros, in a child process.

    ``path``: the model's file or folder. ``spec_json``: the Model's spec as JSON; ``{}``: plain ONNX. Raises nothing
    because of the model. A format that only a user's estimator reads is skipped. Ends within the limits; cancelling
    ends the child.
    """
    form = format_of(_format_name(spec_json))
    needed = [*NEEDED_PACKAGES, *([form.package] if form and form.package else [])]
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        return Trial(ok=True, skipped=True, message=f"not tried: {', '.join(missing)} is not installed here")
    try:
        with contextlib.ExitStack() as files:
            job, output, errors = (files.enter_context(memory_file()) for _ in range(3))
            job.write(msgspec.json.encode(_job(path, spec_json, limits)))
            job.seek(0)
            code = await ended_within(_start(job, output, errors), limits.seconds * CLOCK_FACTOR + START_TIMEOUT_S)
            output.seek(0)
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - ERROR_TAIL_BYTES))
            return verdict(code, output.read(MAX_OUTPUT_BYTES), errors.read().decode(errors="replace"), limits)
    except OSError as error:
        return Trial(reason=TrialReason.FAILED, message=f"the trial process could not be started: {error}")


def not_installed(form: ModelFormat) -> str:
    """Return the message that the package of a format is missing here; empty if it is installed or none is needed."""
    if not form.package or importlib.util.find_spec(form.package) is not None:
        return ""
    need = f"the format {form.name} ({form.title}) needs the package {form.package}"
    return f"{need}, which is not installed here: run {form.install}"


def verdict(code: int | None, output: bytes, errors: str, limits: TrialLimits) -> Trial:
    """Return the result of a trial.

    ``code``: the child's exit code, negative for a signal; None: it was killed at the deadline. ``output``: of the
    child. ``errors``: the end of its standard error.
    """
    result = _read_trial(output)
    if code == 0 and result and (result.ok or result.reason):
        return result
    # the child reports each script of the model's processing before it runs: the message is then the script's name
    subject = (result and result.message) or "the model"
    if code is None and result is None:  # it ends itself in time once it has begun: nothing is known of the model
        return Trial(reason=TrialReason.FAILED, message="the trial did not begin in time: this machine is busy")
    if code is None or -code in {signal.SIGALRM, signal.SIGXCPU}:
        limit = f"{limits.seconds:g} s of processor time, {limits.seconds * CLOCK_FACTOR:g} s of the clock"
        return Trial(
            reason=TrialReason.SLOW, message=f"{subject} was not ready within {limit}: simplify it or raise the limit"
        )
    last = next((line.strip()[:300] for line in reversed(errors.splitlines()) if line.strip()), "")
    if code == -signal.SIGKILL or any(phrase in errors for phrase in MEMORY_PHRASES):
        return Trial(reason=TrialReason.MEMORY, message=memory_text(limits.memory_bytes))
    if last.startswith(IMPORT_ERRORS):
        return Trial(reason=TrialReason.FAILED, message=f"models cannot be tried here, repair the installation: {last}")
    ending = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return Trial(reason=TrialReason.CRASHED, message=f"{subject} ended its process ({ending}){last and f': {last}'}")


def _read_trial(output: bytes) -> Trial | None:
    """Return the Trial in the child's output; None if it is not one."""
    try:
        return msgspec.json.decode(output, type=Trial)
    except msgspec.DecodeError:
        return None


def _format_name(spec_json: str) -> str:
    """Return the name of the format of a spec; ONNX for an unreadable spec, which the trial reports."""
    with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
        return msgspec.json.decode(spec_json, type=_Format).format
    return ONNX.name


class _Format(Struct):
    """The only field of a spec that is read here."""

    format: str = ONNX.name


def _job(path: Path, spec_json: str, limits: TrialLimits) -> TrialJob:
    """Return what the child gets on its standard input."""
    return TrialJob(
        path=str(path.absolute()),
        spec=spec_json,
        parent=os.getpid(),
        memory_bytes=limits.memory_bytes,
        seconds=limits.seconds,
    )


def _start(job: BinaryIO, output: BinaryIO, errors: BinaryIO) -> subprocess.Popen[bytes]:
    """Start the child with these files as its standard input, output and error. Raises OSError."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "halimede.inference.trial"],
        stdin=job,
        stdout=output,
        stderr=errors,
        cwd="/",
        env=bare_environment(),
        process_group=0,
    )
