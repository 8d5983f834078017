"""What a node reports of a model's file, of a dataset, and of the model that a worker uses: shown in the status.

A node reports these facts when they change; GM forwards them unchanged. The messages of a trial (a child process opens
a model's file and answers first samples) are here because the process that requests it must not import a model runtime.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from halimede.messages.base import Message, NonNegative, Short, Text, Time

#: a SHA-256, hexadecimal; empty: unknown, or none
Digest = Annotated[str, Meta(max_length=64)]
#: phrases of libraries' errors when memory is exhausted
MEMORY_PHRASES = ("bad_alloc", "bad allocation", "MemoryError", "Cannot allocate memory", "Failed to allocate memory")


class TensorInfo(Message, kw_only=True):
    """One input or output of a model, as its file declares it."""

    name: Annotated[Short, Meta(description="The tensor's name.")]
    datatype: Annotated[Short, Meta(description="Element type in the words of the Open Inference Protocol: FP32, ...")]
    shape: Annotated[list[int], Meta(max_length=16, description="Extent of each axis; -1 where it is open.")] = []


class ModelFacts(Message, kw_only=True):
    """The file of a model on a node: what was verified, its size, and its declared inputs and outputs."""

    digest: Annotated[Digest, Meta(description="SHA-256 of the content.")] = ""
    size: Annotated[NonNegative, Meta(description="Bytes of the content.")] = 0
    since: Annotated[Time, Meta(description="When the node got the file.")] = ""
    inputs: Annotated[list[TensorInfo], Meta(max_length=32, description="The model's inputs.")] = []
    outputs: Annotated[list[TensorInfo], Meta(max_length=32, description="The model's outputs.")] = []
    done: Annotated[NonNegative, Meta(description="While the node downloads the file: bytes so far.")] = 0
    rate: Annotated[NonNegative, Meta(description="While the node downloads the file: bytes a second.")] = 0


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
    """The model that a worker or server uses, and whether it accepted the latest desired model."""

    digest: Annotated[Digest, Meta(description="SHA-256 of the model in use.")] = ""
    version: Annotated[Short, Meta(description="Its version.")] = ""
    canary_version: Annotated[Short, Meta(description="The version that a share of requests goes to.")] = ""
    refused: Annotated[Digest, Meta(description="SHA-256 of the desired model that was not accepted.")] = ""
    reason: Annotated[Short, Meta(description="Why it was not accepted, in one word.")] = ""
    message: Annotated[Text, Meta(description="Why it was not accepted, in words.")] = ""
    mark: Annotated[Short, Meta(description="The mark of the desired state that this report answers.")] = ""


class TrialReason(StrEnum):
    """Why a model failed its trial: the ``reason`` of a condition."""

    #: reading it could run foreign code, or access other files
    UNSAFE = "UnsafeModel"
    #: it is not a supported model, or does not fit its spec
    INVALID = "ModelInvalid"
    #: a script of its pre- or post-processing cannot be loaded, or fails on a first sample
    SCRIPT = "ScriptInvalid"
    #: it needs more memory than the limit
    MEMORY = "TooMuchMemory"
    #: it needs more processor time than the limit
    SLOW = "TooSlow"
    #: the child process died
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
    """A model to try, and the limits of the child process that tries it."""

    #: the path of the model's file
    path: str
    #: the spec of its Model, as JSON
    spec: str
    #: the id of the process that waits for the trial
    parent: NonNegative
    #: most bytes of memory, in addition to that of a process without a model
    memory_bytes: NonNegative
    #: most seconds of processor time
    seconds: Annotated[float, Meta(gt=0)]


class Trial(Message, kw_only=True):
    """The outcome of a trial."""

    #: there is no reason to refuse the model
    ok: bool = False
    #: the model was not tried
    skipped: bool = False
    #: why the model is refused, a ``TrialReason``; empty if ``ok``, and while the trial runs
    reason: Short = ""
    #: the same in words; if skipped, why; while the trial runs, the script that it calls
    message: Text = ""
    #: a likely mistake of its user that is no reason to refuse the model
    warning: Text = ""
    #: the declared inputs and outputs of the model
    inputs: Annotated[list[TensorInfo], Meta(max_length=32)] = []
    outputs: Annotated[list[TensorInfo], Meta(max_length=32)] = []
    #: seconds in which the model was opened and answered its first samples
    seconds: Annotated[float, Meta(ge=0)] = 0.0
    #: bytes of peak memory, in addition to that of a process without a model
    memory_bytes: NonNegative = 0


def memory_text(memory_bytes: int) -> str:
    """Return the message that a model needs more memory than its limit, ``memory_bytes``."""
    return f"the model wants more than {memory_bytes / 1024**2:.0f} MiB of memory: make it smaller or raise the limit"
