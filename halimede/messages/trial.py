"""What one process asks another to find out about a model's file, and what it answers: lines between parent and child.

They are here since both sides need them, and the side that asks must not import what runs models.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from halimede.messages.base import Message, Millis, NonNegative, Short, Text
from halimede.messages.file_facts import TensorInfo

#: what libraries say when they get no memory
MEMORY_WORDS = ("bad_alloc", "bad allocation", "MemoryError", "Cannot allocate memory", "Failed to allocate memory")


class TrialReason(StrEnum):
    """Why a model did not stand its trial: the ``reason`` of a condition."""

    #: reading it could run somebody's code, or reach files that are not its own
    UNSAFE = "UnsafeModel"
    #: it is no model that runs here, or it does not fit its spec
    INVALID = "ModelInvalid"
    MEMORY = "TooMuchMemory"
    SLOW = "TooSlow"
    CRASHED = "ModelCrashed"
    #: nothing was found out about the model; the same trial may succeed later
    FAILED = "TrialFailed"


class TrialJob(Message, kw_only=True):
    """The model to try: its file, its spec as JSON, and the limits. ``parent``: the process that waits for it."""

    path: str
    spec: str
    parent: NonNegative
    memory_bytes: NonNegative
    seconds: Annotated[float, Meta(gt=0)]


class Trial(Message, kw_only=True):
    """What came of it. ``ok``: nothing speaks against the model. ``skipped``: so it is since nothing was tried."""

    ok: bool = False
    skipped: bool = False
    reason: Short = ""
    message: Text = ""
    inputs: Annotated[list[TensorInfo], Meta(max_length=32)] = []
    outputs: Annotated[list[TensorInfo], Meta(max_length=32)] = []
    #: how long opening it and answering its first samples took
    seconds: Millis = 0.0
    #: what it took at its peak, beyond a process without a model
    memory_bytes: NonNegative = 0


def too_much(memory_bytes: int) -> str:
    """Say that a model wants more memory than it may have."""
    return f"the model wants more than {memory_bytes / 1024**2:.0f} MiB of memory: make it smaller or raise the limit"
