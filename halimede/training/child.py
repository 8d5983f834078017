"""The child process of a training worker: ``python -m halimede.training.child``; ``child_process`` starts it.

Its standard input is a connection to the worker. For each task it receives three open files: the TrainingTask, one for
the TrainingResult, and one for printed messages. It keeps the trainer's libraries and the samples in memory, and forks
for each task: so a step starts at once, has limits of its own, and leaves nothing for the next step. The trainer has
lower priority than other processes, and limits of memory, time and output. Where the kernel has Landlock, it can
neither write files nor use TCP. The child ends with the worker.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from halimede.api.model import ModelSpec
from halimede.errors import HalimedeError, InvalidFieldError, describe_exception, shorten_middle
from halimede.messages.file_facts import MEMORY_PHRASES
from halimede.system.child_process import end_children
from halimede.system.landlock import forbid_writing
from halimede.system.prctl import adopt_orphans, end_with_parent
from halimede.system.process_limits import (
    ProcessLimits,
    limit_file_size,
    limit_memory,
    limit_process,
    limited_time,
    run_in_background,
)
from halimede.training.child_messages import EXIT_CODE, FILES_PER_TASK, TrainingResult, TrainingTask
from halimede.training.data import NodeData, SampleCache, TrainingDataError, read_data
from halimede.training.kept_data import is_kept, read_kept, with_replay
from halimede.training.tensor_file import decode, encode
from halimede.training.trainer import Trainer, TrainingData, import_trainer, load_trainer
from halimede.training.weights import Weights, WeightsError, check_finite, difference, specs_of

#: kinds of tasks that need no samples
WITHOUT_SAMPLES = frozenset({"initial", "export"})
#: most characters of a result's message; most metrics of it, and most characters of their names
MAX_TEXT, MAX_METRICS, MAX_KEY = 1000, 32, 64
#: divisor: kept samples may take 1/8 of a step's memory; the training set takes as much, its copies three times that
PART_OF_MEMORY = 8


def main() -> None:
    """Carry out tasks until the worker closes the connection.

    The arguments of the command line are numbers: the worker's process id, the cores, 1 if the process is promised a
    share of a core (else 0), most bytes of memory, and most bytes of a written file.
    """
    parent, cores, has_share, memory_bytes, written_bytes = map(int, sys.argv[1:])
    if not end_with_parent(parent):
        return
    adopt_orphans()
    run_in_background(cores, has_share=bool(has_share))
    forbid_writing()
    limit_memory(memory_bytes)
    limit_file_size(written_bytes)
    tempfile.tempdir = os.sep  # libraries such as PyTorch look for a folder, and fail if they may write to none
    samples = SampleCache()
    with socket.socket(fileno=os.dup(0)) as connection, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        while files := socket.recv_fds(connection, 1, FILES_PER_TASK)[1]:
            code = _step(connection, samples, *files)
            end_children()
            connection.sendall(EXIT_CODE.pack(code))


def _step(connection: socket.socket, samples: SampleCache, task_file: int, output: int, errors: int) -> int:
    """Carry out one task in a forked process; return its exit code (negative: the signal that ended it).

    The last three arguments are descriptors of the task's files, which this function closes.
    """
    for stream in (1, 2):
        os.dup2(errors, stream)  # what the trainer prints must not go into the result
    os.close(errors)
    with open(task_file, "rb") as file:
        task = msgspec.msgpack.decode(file.read(), type=TrainingTask)
    with limited_time(task.seconds * task.cores, task.clock_s), contextlib.suppress(Exception):
        _prepare(task, samples)
    server, process = os.getpid(), os.fork()
    if not process:
        connection.close()
        os._exit(_run_forked(server, output, task, samples))
    os.close(output)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _prepare(task: TrainingTask, samples: SampleCache) -> None:
    """Import the trainer's libraries and read the samples, for this step and later ones.

    Raises any exception; the step itself will raise it again and report it.
    """
    if task.do == "compare":
        import halimede.training.candidate  # noqa: F401, PLC0415  # a quarter of the start, for comparisons alone
    import_trainer(task.entry, task.archive)
    if task.do not in WITHOUT_SAMPLES and not is_kept(Path(task.data)):
        samples.read(Path(task.data), msgspec.json.decode(task.model_spec, type=ModelSpec), _until_ns(task))


def _run_forked(server: int, output: int, task: TrainingTask, samples: SampleCache) -> int:
    """Write the result of a task, in the forked process; return its exit code."""
    try:
        if not end_with_parent(server):
            return 1
        limit_process(ProcessLimits(task.memory_bytes, task.seconds * task.cores, task.clock_s, task.written_bytes))
        content = memoryview(msgspec.msgpack.encode(carry_out(task, samples)))
        while content:
            content = content[os.write(output, content) :]
    except BaseException:  # noqa: BLE001  # nothing of the parent's may run here
        traceback.print_exc()
        return 1
    return 0


def carry_out(task: TrainingTask, samples: SampleCache) -> TrainingResult:
    """Return the result of a task; an exception becomes the reason of a failed result."""
    try:
        return _carry_out(task, samples)
    except TrainingDataError as error:
        return _failure(error.reason, error)
    except WeightsError as error:
        return _failure(f"Weights{error.reason}", error)
    except InvalidFieldError as error:
        return _failure("TrainerInvalid", error)
    except MemoryError:
        return _failure("OutOfMemory", f"it needs more than {task.memory_bytes // 1024**2} MiB: raise memoryMb")
    except HalimedeError as error:
        return _failure("TrainingFailed", error)
    except Exception as error:  # noqa: BLE001  # of the user's code
        if any(text in str(error) for text in MEMORY_PHRASES):
            return _failure("OutOfMemory", f"it needs more than {task.memory_bytes // 1024**2} MiB: raise memoryMb")
        return _failure("TrainingFailed", f"{task.entry} raised {describe_exception(error)}")


def _carry_out(task: TrainingTask, samples: SampleCache) -> TrainingResult:
    """Return the result of a task. Raises HalimedeError, or what the user's trainer raises."""
    spec = msgspec.json.decode(task.model_spec, type=ModelSpec)
    if task.do == "compare":
        return _compare(task, spec)
    trainer = load_trainer(task.entry, task.parameters, task.archive)
    match task.do:
        case "initial":
            weights = trainer.initial_weights(tuple(task.shape), len(spec.labels))
            check_finite(weights)
            return TrainingResult(content=encode(weights), specs=specs_of(weights))
        case "export":
            return TrainingResult(content=_export(trainer, decode(task.weights, task.specs)))
    data = _samples(task, spec, samples)
    shape = list(data.train.samples.shape[1:])
    result = TrainingResult(samples=len(data.train), held_out=len(data.held_out), shape=shape)
    if task.do == "describe":
        return result
    weights = decode(task.weights, task.specs)
    if len(data.held_out):
        result.evaluation = _metrics(trainer.evaluate(data.held_out, _copy(weights)))
    if task.do == "train":
        result.content, result.metrics = _train(task, trainer, data, weights)
    return result


def _samples(task: TrainingTask, spec: ModelSpec, samples: SampleCache) -> NodeData:
    """Return the samples of a data set, or kept samples of a service together with some of the first data set.

    Raises TrainingDataError.
    """
    path = Path(task.data)
    if not is_kept(path):
        return samples.read(path, spec, _until_ns(task))
    reference = read_data(Path(task.reference), spec, _until_ns(task)) if task.reference else None
    most_bytes = task.memory_bytes // PART_OF_MEMORY
    kept_samples = read_kept(path, spec, task.since_s, most_bytes=most_bytes, last=task.last_kept)
    return with_replay(kept_samples.node, reference)


def _until_ns(task: TrainingTask) -> float:
    """Return the time in nanoseconds since 1970 up to which files count; infinity: all count."""
    return math.inf if task.until_ns is None else task.until_ns


def _compare(task: TrainingTask, spec: ModelSpec) -> TrainingResult:
    """Return the comparison of a trained model with the present one. Raises HalimedeError."""
    from halimede.training.candidate import compare_step  # noqa: PLC0415  # only comparisons need it

    samples = read_kept(Path(task.data), spec, task.since_s, most_bytes=task.memory_bytes // PART_OF_MEMORY)
    reference = read_data(Path(task.reference), spec) if task.reference else None
    evidence, calibration = compare_step(Path(task.candidate), task.present, spec, samples, reference)
    return TrainingResult(evidence=evidence, calibration=calibration)


def _train(
    task: TrainingTask, trainer: Trainer, node_data: NodeData, weights: Weights
) -> tuple[bytes, dict[str, float]]:
    """Train weights; return the file of the change that the training made to them, and the trainer's metrics.

    Raises WeightsError if the trained weights are other tensors or not finite, and what the trainer raises.
    """
    data: TrainingData = replace(node_data.train, seed=task.seed, parameters=task.round_parameters)
    trained, metrics = trainer.train(data, _copy(weights))
    delta = difference(trained, weights)
    check_finite(delta)
    return encode(delta), _metrics(metrics)


def _copy(weights: Weights) -> Weights:
    """Return a copy of weights, because a trainer may change the arrays that it gets."""
    return {name: tensor.copy() for name, tensor in weights.items()}


def _export(trainer: Trainer, weights: Weights) -> bytes:
    """Return the ONNX model of weights. The trainer writes it to a file in memory: it can write no other files."""
    with os.fdopen(os.memfd_create("model"), "w+b") as file:
        trainer.export(weights, Path(f"/proc/self/fd/{file.fileno()}"))
        file.seek(0)
        return file.read()


def _metrics(values: Mapping[str, float]) -> dict[str, float]:
    """Return the first MAX_METRICS metrics of a user's trainer. Raises HalimedeError unless they are finite numbers."""
    metrics = {str(key)[:MAX_KEY]: float(value) for key, value in list(values.items())[:MAX_METRICS]}
    for key, value in metrics.items():
        if not math.isfinite(value):
            raise HalimedeError(f"metric {key!r} is {value}: the trainer must return finite numbers")
    return metrics


def _failure(reason: str, message: object) -> TrainingResult:
    """Return the result of a failed task."""
    return TrainingResult(reason=reason, message=shorten_middle(str(message), MAX_TEXT))


if __name__ == "__main__":
    main()
