"""What a training worker and its child process exchange (msgpack): a result for each task.

The child runs the user's trainer. So the worker itself loads no code of a user, and keeps its connection whatever that
code does.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import Annotated, Literal

from msgspec import Meta, Struct

from halimede.messages import TensorSpec
from halimede.messages.base import NonNegative, Short, Text
from halimede.messages.training import MOST_TENSORS, Document, Metrics

#: files that come with a task: for the task, its result, and messages
FILES = 3
#: exit code of a step
STATUS = Layout("=i")


class TrainingTask(Struct, kw_only=True):
    """One step of a trainer, in a process of its own.

    ``describe`` reads the samples. ``train`` trains ``weights`` and evaluates them as they were given, ``evaluate``
    only evaluates. ``initial`` makes the first weights for samples of ``shape``. ``export`` makes the ONNX model.
    ``compare`` compares the ONNX model at ``candidate`` with the one at ``present``. Kept samples count since
    ``since_s``; ``reference`` has those of the stream as it was. Samples that came after the begin of a round are left
    out: files of a folder that changed after ``until_ns``, and kept ones after the document ``last_kept``.
    """

    do: Literal["describe", "train", "evaluate", "initial", "export", "compare"]
    entry: str
    #: the file with the trainer's class; empty: it is installed
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
    #: processor time of each core, and time of the clock
    seconds: float
    clock_s: float
    cores: int = 1
    written_bytes: int


class TrainingResult(Struct, kw_only=True):
    """The result of a task. ``reason`` is empty after success. ``content``: a file of tensors, or the ONNX model.

    ``evidence`` and ``calibration`` are those of a compared model (JSON).
    """

    reason: Short = ""
    message: Text = ""
    samples: NonNegative = 0
    held_out: NonNegative = 0
    shape: Annotated[list[int], Meta(max_length=8)] = []
    #: of first weights
    specs: Annotated[list[TensorSpec], Meta(max_length=MOST_TENSORS)] = []
    metrics: Metrics = {}
    evaluation: Metrics = {}
    content: bytes = b""
    evidence: Document = ""
    calibration: Document = ""
