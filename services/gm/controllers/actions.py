"""What a plan may ask for. Plain values: the reconciler carries them out, in the order of the list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from halimede.api import Resource
from halimede.messages import Status
from halimede.names import Key
from services.gm.cluster.port import EventType, StoredResource
from services.gm.workloads.object_actions import Ensure, Remove

__all__ = [
    "Action",
    "ClearStatus",
    "Delivery",
    "Ensure",
    "Finalize",
    "Forget",
    "Hold",
    "Keep",
    "RecordEvent",
    "Remove",
    "Send",
    "WriteStatus",
]


@dataclass(frozen=True, slots=True)
class Send:
    """The node shall hold this resource in this generation."""

    node: str
    resource: Resource[Any]


@dataclass(frozen=True, slots=True)
class Keep:
    """The node shall keep what it holds of this uid, in whichever generation: the present one has to wait."""

    node: str
    key: Key
    uid: str


@dataclass(frozen=True, slots=True)
class Forget:
    """The node shall not hold this resource (any more)."""

    node: str
    key: Key
    uid: str
    generation: int


@dataclass(frozen=True, slots=True)
class Hold:
    """The resource's deletion shall wait for the nodes: before anything of it is sent to one."""

    key: Key
    uid: str


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replace the resource's status and show it; that of ``second`` (see ``Cluster.seconds``) is not shown."""

    key: Key
    status: Status
    second: StoredResource | None = None


@dataclass(frozen=True, slots=True)
class ClearStatus:
    """Take the resource's status off its topic."""

    key: Key


@dataclass(frozen=True, slots=True)
class Finalize:
    """Let a deleted resource go."""

    key: Key
    uid: str


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Add to the event log."""

    type: EventType
    reason: str
    about: str
    message: str


Delivery = Send | Keep | Forget
Action = Delivery | Hold | Ensure | Remove | WriteStatus | ClearStatus | Finalize | RecordEvent
