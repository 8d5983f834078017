"""What GM knows of one node: what it should hold, what it holds, and what is being sent to make both the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from halimede.api import Resource
from halimede.names import Key
from halimede.system.backoff import exponential

#: seconds between two sends of what is not acknowledged
FIRST_RESEND, LAST_RESEND = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class SentVersion:
    """A uid in a generation."""

    uid: str
    generation: int

    @classmethod
    def of(cls, resource: Resource[Any]) -> SentVersion:
        """Return that of a resource."""
        return cls(resource.metadata.uid, resource.metadata.generation)

    def covers(self, other: SentVersion) -> bool:
        """Whether whoever holds this needs no ``other``."""
        return self.uid == other.uid and self.generation >= other.generation


@dataclass(slots=True)
class Attempt:
    """Something that is to be sent, for the first time or again."""

    due: float
    count: int = 0

    def sent(self, now: float, patience: float = 0.0) -> None:
        """Wait longer each time; ``patience``: seconds that its answer may take because of others."""
        self.count += 1
        self.due = now + exponential(self.count, FIRST_RESEND + patience, LAST_RESEND)


@dataclass(slots=True, eq=False)
class SyncReply:
    """The answer to one sync, and how many messages it has taken so far."""

    count: int = 0


@dataclass(slots=True)
class NodeState:
    """What GM knows of one node: what it should hold, what it holds, and the difference that is being sent."""

    wanted: dict[Key, Resource[Any] | None] = field(default_factory=dict)
    held: dict[Key, SentVersion] = field(default_factory=dict)
    inserts: dict[Key, Attempt] = field(default_factory=dict)
    deletes: dict[tuple[Key, str], tuple[int, Attempt]] = field(default_factory=dict)
    #: the sync that waits for its answer
    sync: SyncReply | None = None
    #: nothing is sent before, unless a sync comes
    silent_until: float = 0.0
