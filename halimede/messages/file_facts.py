"""Facts of a node about a model, a dataset or its serving: measured there, shown in the status.

A node reports them once for each state; GM forwards them unchanged. The messages of a trial, in which a child process
checks a model's file, are here because the requesting process must not import a model runtime.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from halimede.messages.base import Message, Millis, NonNegative, Short, Text, Time

Digest = Annotated[str, Meta(max_length=64)]
#: texts of libraries' errors when memory is exhausted
MEMORY_WORDS = ("bad_alloc", "bad allocation", "MemoryError", "Cannot allocate memory", "Failed to allocate memory")


class TensorInfo(Message, kw_only=True):
    """One input or output of a model, as its file declares it."""

    name: Annotated[Short, Meta(description="The name of it.")]
    datatype: Annotated[Short, Meta(description="Element type in the words of the Open Inference Protocol: FP32, ...")]
    shape: Annotated[list[int], Meta(max_length=16, description="Extent of each axis; -1 where it is open.")] = []


class ModelFacts(Message, kw_only=True):
    """The file of a model on a node: what was verified, its size, and its declared inputs and outputs."""

    digest: Annotated[Digest, Meta(description="SHA-256 of the content.")] = ""
    size: Annotated[NonNegative, Meta(description="Bytes of the content.")] = 0
    since: Annotated[Time, Meta(description="When it came to be there.")] = ""
    inputs: Annotated[list[TensorInfo], Meta(max_length=32, description="The model's inputs.")] = []
    outputs: Annotated[list[TensorInfo], Meta(max_length=32, description="The model's outputs.")] = []
    done: Annotated[NonNegative, Meta(description="While it is on its way: bytes that are here.")] = 0
    rate: Annotated[NonNegative, Meta(description="While it is on its way: bytes a second.")] = 0


class ClassCount(Message, kw_only=True):
    """The number of samples of one class in a dataset."""

    name: Annotated[Short, Meta(description="The class.")]
    count: Annotated[NonNegative, Meta(description="Its samples (of a detection dataset: its objects).")]


class BrokenEntry(Message, kw_only=True):
    """An entry of a dataset that cannot be used."""

    name: Annotated[Text, Meta(description="The file, or the file and line.")]
    reason: Annotated[Text, Meta(description="Why, and what to do.")]


class DatasetFacts(Message, kw_only=True):
    """The content of a dataset, as counted by the node that has it."""

    number_of_samples: Annotated[NonNegative, Meta(description="How many samples there are.")] = 0
    size: Annotated[NonNegative, Meta(description="Bytes of the content.")] = 0
    classes: Annotated[
        list[ClassCount], Meta(max_length=1000, description="Samples a class, most frequent first; of 1000 at most.")
    ] = []
    number_of_classes: Annotated[NonNegative, Meta(description="How many classes there are.")] = 0
    number_broken: Annotated[NonNegative, Meta(description="Entries that cannot be used.")] = 0
    broken: Annotated[list[BrokenEntry], Meta(max_length=20, description="The first of them.")] = []
    counted_at: Annotated[Time, Meta(description="When this was counted.")] = ""
    listing: Annotated[
        Digest, Meta(description="SHA-256 of the list of its files, which other nodes copy (spec.syncTo).")
    ] = ""


class ModelInUse(Message, kw_only=True):
    """The model that a worker or server uses, and whether it accepted the latest desired one.

    ``refused``: the digest that it did not accept; ``reason`` and ``message`` have the cause. ``mark`` identifies
    the desired state that this report answers.
    """

    digest: Annotated[Digest, Meta(description="SHA-256 of the model in use.")] = ""
    version: Annotated[Short, Meta(description="Its version.")] = ""
    canary_version: Annotated[Short, Meta(description="The version that a share of requests goes to.")] = ""
    refused: Annotated[Digest, Meta(description="SHA-256 of the one that was not taken.")] = ""
    reason: Annotated[Short, Meta(description="Why it was not, in one word.")] = ""
    message: Annotated[Text, Meta(description="Why it was not, in words.")] = ""
    mark: Annotated[Short, Meta(description="Which wish this is the answer to: the mark of the wish.")] = ""


class TrialReason(StrEnum):
    """Why a model did not stand its trial: the ``reason`` of a condition."""

    #: reading it could run foreign code, or access other files
    UNSAFE = "UnsafeModel"
    #: it is not a supported model, or does not fit its spec
    INVALID = "ModelInvalid"
    #: a script of its pre- or post-processing cannot be loaded, or fails on a first sample
    SCRIPT = "ScriptInvalid"
    MEMORY = "TooMuchMemory"
    SLOW = "TooSlow"
    CRASHED = "ModelCrashed"
    #: the trial had no result; a repetition may succeed
    FAILED = "TrialFailed"


#: the reason of a Model that is Ready although pictures reach it on another range than it was probably trained on
INPUT_NOT_SCALED = "InputNotScaled"
#: reasons of a Model that is Ready although the content of its URL has changed since. The message has both digests, or
#: why the new content cannot be used
CONTENT_CHANGED, CONTENT_UNUSABLE = "ContentChanged", "ContentUnusable"
#: reasons of a Dataset that is Ready although there is no usable sample in it, or its files list the same samples
NO_SAMPLES, SAMPLES_REPEATED = "NoSamples", "SamplesRepeated"


class TrialJob(Message, kw_only=True):
    """The model to try: its file, its spec as JSON, and the limits. ``parent``: the process that waits for it."""

    path: str
    spec: str
    parent: NonNegative
    memory_bytes: NonNegative
    seconds: Annotated[float, Meta(gt=0)]


class Trial(Message, kw_only=True):
    """What came of it. ``ok``: nothing speaks against the model. ``skipped``: so it is since nothing was tried.

    ``warning``: what is often a mistake of its user, and no reason to refuse the model.
    """

    ok: bool = False
    skipped: bool = False
    reason: Short = ""
    message: Text = ""
    warning: Text = ""
    inputs: Annotated[list[TensorInfo], Meta(max_length=32)] = []
    outputs: Annotated[list[TensorInfo], Meta(max_length=32)] = []
    #: duration of opening it and answering its first samples
    seconds: Millis = 0.0
    #: peak memory, in addition to that of a process without a model
    memory_bytes: NonNegative = 0


def too_much(memory_bytes: int) -> str:
    """Return the message that a model needs more memory than its limit."""
    return f"the model wants more than {memory_bytes / 1024**2:.0f} MiB of memory: make it smaller or raise the limit"
