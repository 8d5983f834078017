"""The child process of a training worker: ``python -m halimede.training.child``, for ``child_process``.

It reads one TrainingTask from standard input and writes one TrainingResult to standard output. In between it runs the
user's trainer, when no other process needs the processor, within limits of memory, time and output. Where the kernel
has Landlock, the trainer can write no file and use no TCP. It ends with its parent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from halimede.api.model import ModelSpec
from halimede.errors import HalimedeError, InvalidFieldError
from halimede.messages.file_facts import MEMORY_WORDS
from halimede.system.child_process import end_with_parent
from halimede.system.landlock import forbid_writing
from halimede.system.process_limits import ProcessLimits, limit_process, run_when_idle
from halimede.training.candidate import compare_step
from halimede.training.child_messages import TrainingResult, TrainingTask
from halimede.training.data import NodeData, TrainingDataError, read_data
from halimede.training.kept_data import is_kept, read_kept, with_replay
from halimede.training.tensor_file import decode, encode
from halimede.training.trainer import Trainer, TrainingData, load_trainer
from halimede.training.weights import Weights, WeightsError, check_finite, difference, specs_of

#: limits of the message, and of its metrics
MAX_TEXT, MAX_METRICS, MAX_KEY = 1000, 32, 64


def main() -> None:
    """Carry out one task."""
    task = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=TrainingTask)
    if not end_with_parent(task.parent):
        return
    output = os.dup(1)
    os.dup2(2, 1)  # what the trainer prints must not go into the result
    run_when_idle(task.cores)
    forbid_writing()
    limit_process(ProcessLimits(task.memory_bytes, task.seconds * task.cores, task.clock_s, task.written_bytes))
    content = memoryview(msgspec.msgpack.encode(carry_out(task)))
    while content:
        content = content[os.write(output, content) :]


def carry_out(task: TrainingTask) -> TrainingResult:
    """Return the result of a task; what fails in it becomes a reason."""
    try:
        return _carry_out(task)
    except TrainingDataError as error:
        return _failed(error.reason, error)
    except WeightsError as error:
        return _failed(f"Weights{error.reason}", error)
    except InvalidFieldError as error:
        return _failed("TrainerInvalid", error)
    except MemoryError:
        return _failed("OutOfMemory", f"it needs more than {task.memory_bytes // 1024**2} MiB: raise memoryMb")
    except HalimedeError as error:
        return _failed("TrainingFailed", error)
    except Exception as error:  # noqa: BLE001  # of the user's code
        if any(word in str(error) for word in MEMORY_WORDS):
            return _failed("OutOfMemory", f"it needs more than {task.memory_bytes // 1024**2} MiB: raise memoryMb")
        return _failed("TrainingFailed", f"{task.entry} raised {type(error).__name__}: {error}")


def _carry_out(task: TrainingTask) -> TrainingResult:
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
    found = _samples(task, spec)
    result = TrainingResult(
        samples=len(found.train), held_out=len(found.held_out), shape=list(found.train.samples.shape[1:])
    )
    if task.do == "describe":
        return result
    weights = decode(task.weights, task.specs)
    if len(found.held_out):
        result.evaluation = _metrics(trainer.evaluate(found.held_out, _copy(weights)))
    if task.do == "train":
        result.content, result.metrics = _train(task, trainer, found, weights)
    return result


def _samples(task: TrainingTask, spec: ModelSpec) -> NodeData:
    """Return the samples of a data set, or those that a service keeps, together with some of the first data set."""
    path = Path(task.data)
    if not is_kept(path):
        return read_data(path, spec)
    reference = read_data(Path(task.reference), spec) if task.reference else None
    return with_replay(read_kept(path, spec, task.since_s).node, reference)


def _compare(task: TrainingTask, spec: ModelSpec) -> TrainingResult:
    """Compare a trained model with the present one."""
    kept = read_kept(Path(task.data), spec, task.since_s)
    reference = read_data(Path(task.reference), spec) if task.reference else None
    evidence, calibration = compare_step(Path(task.candidate), task.present, spec, kept, reference)
    return TrainingResult(evidence=evidence, calibration=calibration)


def _train(task: TrainingTask, trainer: Trainer, found: NodeData, weights: Weights) -> tuple[bytes, dict[str, float]]:
    data: TrainingData = replace(found.train, seed=task.seed, parameters=task.round_parameters)
    trained, metrics = trainer.train(data, _copy(weights))
    delta = difference(trained, weights)
    check_finite(delta)
    return encode(delta), _metrics(metrics)


def _copy(weights: Weights) -> Weights:
    """Return a copy: a trainer may change what it is given."""
    return {name: tensor.copy() for name, tensor in weights.items()}


def _export(trainer: Trainer, weights: Weights) -> bytes:
    """Return the ONNX model. It is written to a file without a name, since no other one may be written."""
    with os.fdopen(os.memfd_create("model"), "w+b") as file:
        trainer.export(weights, Path(f"/proc/self/fd/{file.fileno()}"))
        file.seek(0)
        return file.read()


def _metrics(found: Mapping[str, float]) -> dict[str, float]:
    """Return a user's metrics. Raises HalimedeError for a value that is no finite number."""
    metrics = {str(key)[:MAX_KEY]: float(value) for key, value in list(found.items())[:MAX_METRICS]}
    for key, value in metrics.items():
        if value != value or value in {float("inf"), float("-inf")}:  # noqa: PLR0124 (NaN)
            raise HalimedeError(f"metric {key!r} is {value}: the trainer must return finite numbers")
    return metrics


def _failed(reason: str, message: object) -> TrainingResult:
    return TrainingResult(reason=reason, message=str(message)[:MAX_TEXT])


if __name__ == "__main__":
    main()
