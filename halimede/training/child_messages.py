"""The messages between a training worker and its child process, as msgpack: a task, and its result.

The child runs the user's trainer. So the worker itself loads no code of a user, and keeps its connection to the broker
whatever that code does.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Annotated, Literal

from msgspec import Meta, Struct

from halimede.messages import TensorSpec
from halimede.messages.base import NonNegative, Short, Text
from halimede.messages.training import MOST_TENSORS, Document, Metrics

#: the open files that the worker sends for a task: the task, and those for its result and for printed messages
FILES_PER_TASK = 3
#: what the child sends when a task has ended: the exit code of the process that carried it out
EXIT_CODE = Layout("=i")


class TrainingTask(Struct, kw_only=True):
    """One step of a trainer. Paths are text, and empty for none.

    Attributes:
        do: ``describe`` counts the samples. ``evaluate`` evaluates ``weights``; ``train`` also trains them, after that.
            ``initial`` makes the first weights. ``export`` makes the ONNX model of ``weights``. ``compare`` compares a
            candidate with the present model.
        entry: name of the trainer's class, or of its entry point.
        archive: path of the file with the trainer's class; empty: it is installed.
        parameters: the trainer's parameters.
        model_spec: the Model's spec, as JSON.
        data: path of a data set, or of the folder with the samples that a service keeps.
        since_s: kept samples count from this time on, in seconds since 1970.
        until_ns: files of a folder that changed after this time, in nanoseconds since 1970, do not count; None: all do.
        last_kept: name of the newest kept sample that counts; None: all do.
        reference: path of the first data set, of which some samples are added to kept ones.
        present: path of the present model, for ``compare``.
        candidate: path of the trained ONNX model, for ``compare``.
        weights: a file of tensors.
        specs: the tensors that it has.
        shape: shape of a sample, for ``initial``.
        seed: for the trainer's random numbers.
        round_parameters: parameters of the round for the trainer, such as FedProx's ``mu``.
        memory_bytes: limit of memory.
        seconds: limit of processor time of each core.
        clock_s: limit of time by the clock, in seconds.
        cores: cores that the step may use.
        written_bytes: limit of the result's size.

    """

    do: Literal["describe", "train", "evaluate", "initial", "export", "compare"]
    entry: str
    archive: str = ""
    parameters: dict[str, str]
    model_spec: str
    data: str = ""
    since_s: float = 0.0
    until_ns: int | None = None
    last_kept: str | None = None
    reference: str = ""
    present: str = ""
    candidate: str = ""
    weights: bytes = b""
    specs: list[TensorSpec] = []
    shape: list[int] = []
    seed: int = 0
    round_parameters: dict[str, float] = {}
    memory_bytes: int
    seconds: float
    clock_s: float
    cores: int = 1
    written_bytes: int


class TrainingResult(Struct, kw_only=True):
    """The result of a task.

    Attributes:
        reason: why the task failed; empty: it did not.
        message: a description of the failure.
        samples: the number of samples to train on.
        held_out: the number of held-out samples.
        shape: the shape of a sample.
        specs: the tensors of first weights.
        metrics: the trainer's metrics of its training.
        evaluation: its metrics on held-out samples, with the weights before the training.
        content: a file of tensors (``initial``: weights; ``train``: their change), or the ONNX model (``export``).
        evidence: the comparison with the present model as JSON.
        calibration: the calibration of the candidate as JSON; empty: none.

    """

    reason: Short = ""
    message: Text = ""
    samples: NonNegative = 0
    held_out: NonNegative = 0
    shape: Annotated[list[int], Meta(max_length=8)] = []
    specs: Annotated[list[TensorSpec], Meta(max_length=MOST_TENSORS)] = []
    metrics: Metrics = {}
    evaluation: Metrics = {}
    content: bytes = b""
    evidence: Document = ""
    calibration: Document = ""
