"""The child process that tries a model before use: ``python -m halimede.inference.trial``, for ``models.model_trial``.

It reads one TrialJob (JSON) from standard input and writes one Trial (JSON) to standard output, which is a file. In
between it opens the model as a server would, and answers a sample of zeros. Its limits: address space (RLIMIT_AS)
beyond what it needs when all libraries are loaded, processor time, and a timer that ends the process in any case. It
leaves no core dump and no large file, and ends with its parent. Where the kernel has Landlock, neither the model nor a
script of it can write a file or use TCP.

If the process dies, its parent derives the reason from the exit code. While a script runs, standard output has a Trial
that names the script, so that the parent knows what did not return.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from halimede.api.base import convert
from halimede.api.model import ModelSpec
from halimede.api.model_formats import format_of
from halimede.api.processing import check_postprocess
from halimede.errors import InvalidFieldError, shorten_middle
from halimede.inference import preprocess
from halimede.inference.file_model import make_model
from halimede.inference.graph_input import scale_warning
from halimede.inference.model import Array, ModelError, SampleError
from halimede.inference.scripts import bind
from halimede.inference.session import Declared, import_runtime, open_session
from halimede.inference.tensor_model import Port, TensorModel
from halimede.inference.tensor_ports import choose_input
from halimede.messages.file_facts import MEMORY_PHRASES, TensorInfo, Trial, TrialJob, TrialReason, memory_text
from halimede.system.landlock import forbid_writing
from halimede.system.prctl import end_with_parent
from halimede.system.process_limits import CLOCK_FACTOR, ProcessLimits, limit_process, memory_statistic

#: the process's niceness: a trial yields the processor to workers
NICE = 10
#: most bytes of a file that the process writes; it writes only its answer
MAX_WRITTEN = 1024 * 1024
#: lengths that are tried for open axes: pictures need some pixels for a convolution to fit
EXTENTS = (1, 32, 224)
#: limits of the message Trial: tensors of a side, axes of a tensor, characters of a name and of the message
MAX_TENSORS, MAX_AXES, MAX_NAME, MAX_TEXT = 32, 16, 256, 4096


def main() -> None:
    """Read the job, try its model and write the answer; do nothing if the parent has ended already."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=TrialJob)
    if not end_with_parent(job.parent):
        return
    answers = os.dup(1)
    os.dup2(2, 1)  # libraries must not write into the answer
    os.nice(NICE)

    def write(trial: Trial) -> None:
        """Replace the content of standard output."""
        os.ftruncate(answers, 0)
        os.pwrite(answers, msgspec.json.encode(trial), 0)

    write(attempt(job, lambda running: write(Trial(message=shorten_middle(running, MAX_TEXT)))))


def attempt(job: TrialJob, report: Callable[[str], None]) -> Trial:
    """Return the result of trying a model within the limits of its job, which from then on apply to this process.

    ``report`` is called with the name of each script before it runs, and with an empty text after it. What is wrong
    with the model is in the Trial; this function raises nothing for it.
    """
    try:
        spec = _spec(job)
        if format_of(spec.format) is None:
            return Trial(
                ok=True, skipped=True, message=f"not tried: only a user's estimator reads the format {spec.format!r}"
            )
        check_postprocess(spec.postprocess)
        import_runtime(spec.format)  # libraries need more address space than models: they load before it is limited
    except (InvalidFieldError, ModelError) as error:
        return _refusal(TrialReason.INVALID, str(error))
    began, before = time.monotonic(), memory_statistic("VmRSS")
    forbid_writing()
    limit_process(ProcessLimits(job.memory_bytes, job.seconds, job.seconds * CLOCK_FACTOR, MAX_WRITTEN))
    try:
        inputs, outputs = _try(Path(job.path), spec, report)
    except MemoryError:
        return _refusal(TrialReason.MEMORY, memory_text(job.memory_bytes))
    except (ModelError, SampleError, InvalidFieldError) as error:
        if any(phrase in str(error) for phrase in MEMORY_PHRASES):
            return _refusal(TrialReason.MEMORY, memory_text(job.memory_bytes))
        return _refusal(error.reason if isinstance(error, ModelError) else TrialReason.INVALID, str(error))
    return Trial(
        ok=True,
        warning=scale_warning(Path(job.path), spec),
        inputs=inputs,
        outputs=outputs,
        seconds=time.monotonic() - began,
        memory_bytes=max(0, memory_statistic("VmHWM") - before),
    )


def _try(path: Path, spec: ModelSpec, report: Callable[[str], None]) -> tuple[list[TensorInfo], list[TensorInfo]]:
    """Open and run the model, and return its inputs and outputs. Raises ModelError, SampleError, InvalidFieldError."""
    session = open_session(path, spec.format, threads=1)
    spec = bind(spec, path, report)
    model = TensorModel(session)
    _smoke(model, session.get_inputs(), spec)
    if spec.preprocess or spec.postprocess or spec.labels:
        make_model(session, spec)
    return _tensor_infos(model.inputs), _tensor_infos(model.outputs)


def _smoke(model: TensorModel, declared: Sequence[Declared], spec: ModelSpec) -> None:
    """Answer one sample of zeros. Raises ModelError if the model fails on it, unless its axes are open.

    With open axes nothing may fit, which is no error of the model; but too little memory is one.
    """
    has_open_axes = any(-1 in (port.shape or ())[1:] for port in model.inputs.values())
    for feeds in _feeds(model, declared, spec):
        try:
            model.run(feeds, list(model.outputs))
        except SampleError as error:
            if not has_open_axes or any(phrase in str(error) for phrase in MEMORY_PHRASES):
                raise ModelError(f"the model fails on a sample of zeros: {error}") from error
        else:
            return


def _feeds(model: TensorModel, declared: Sequence[Declared], spec: ModelSpec) -> Iterator[dict[str, Array]]:
    """Yield samples of zeros by input, the most fitting first: what the pre-processing produces, then small ones.

    Raises ModelError if the pre-processing sets a size, and the model's input cannot be chosen.
    """
    for channels in (3, 1):
        frame = preprocess.blank(spec.preprocess, channels)
        if frame is not None:
            port = choose_input(declared)
            with contextlib.suppress(SampleError):
                yield {port.name: port.fit(preprocess.apply(spec.preprocess, frame))[np.newaxis]}
    for extent in EXTENTS:
        yield {name: _zeros(port, extent) for name, port in model.inputs.items()}


def _zeros(port: Port, extent: int) -> Array:
    """Return one row of zeros or of empty texts; other open axes have the length ``extent``."""
    shape = port.closed_shape(1, extent)
    return np.full(shape, "", object) if port.datatype == "BYTES" else np.zeros(shape, port.dtype)


def _tensor_infos(ports: dict[str, Port]) -> list[TensorInfo]:
    """Return inputs or outputs within the limits of the message."""
    return [
        TensorInfo(name=port.name[:MAX_NAME], datatype=port.datatype, shape=list(port.shape or ())[:MAX_AXES])
        for port in list(ports.values())[:MAX_TENSORS]
    ]


def _spec(job: TrialJob) -> ModelSpec:
    """Return the spec in a job, completed by its path. Raises InvalidFieldError."""
    try:
        spec: Any = msgspec.json.decode(job.spec)
    except msgspec.DecodeError as error:
        raise InvalidFieldError("spec", job.spec, f"it is no JSON: {error}") from error
    if isinstance(spec, dict):
        spec = {"url": job.path, "format": "onnx", **spec}
    return convert(spec, ModelSpec, "spec")


def _refusal(reason: TrialReason, message: str) -> Trial:
    """Return the result of a failed trial, with its message shortened."""
    return Trial(reason=reason, message=shorten_middle(message, MAX_TEXT))


if __name__ == "__main__":
    main()
    gc.freeze()  # skips the final collection: a fifth of the whole run time
