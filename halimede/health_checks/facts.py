"""What the checks are given: what GM answers of itself, its nodes and resources, and what the bus carries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

import msgspec

from halimede.api import kind_of
from halimede.api.placement import SERVICES
from halimede.messages import CameraStatus, DeadLetter, NodeInfo

#: the short names of the kinds of services with workers
SERVICE_KINDS = tuple(kind_of(plural).short_names[0] for plural in SERVICES)


class DegradedAnswers(msgspec.Struct, frozen=True, rename="camel"):
    """Answers of a service in the last minute, and those of them that are degraded. ``kind`` is its short name."""

    kind: str
    namespace: str
    name: str
    answered: int
    degraded: int


class QuietWorker(msgspec.Struct, frozen=True, rename="camel"):
    """A worker that its local controller takes as running, and the time of its last report."""

    namespace: str
    name: str
    node: str
    since: str


class RecentLetters(msgspec.Struct, frozen=True, rename="camel"):
    """The number of dead letters in the last minute, with the first of them."""

    number: int
    topic: str
    reason: str


class ManagerFacts(msgspec.Struct, frozen=True, rename="camel"):
    """What GM answers to ``version``. An older GM answers less: the rest has its defaults."""

    version: str = ""
    epoch: int = 0
    #: GM's clock
    time: str = ""
    #: what is wrong with its store; files of a store that was damaged
    store: str = ""
    quarantined: str = ""
    #: whether GM is connected to the broker
    connected: bool = True
    #: subscriptions and births that the broker refuses to GM, by filter or topic
    refused: list[str] = []
    #: services with degraded answers in the last minute, the largest share first
    degraded: list[DegradedAnswers] = []
    #: workers without a report for some seconds
    quiet: list[QuietWorker] = []
    #: seconds by which clocks of nodes are ahead of GM's, if that is much
    clocks: dict[str, float] = {}
    letters: RecentLetters | None = None

    @classmethod
    def of(cls, answer: Any) -> Self:
        """Return the facts in an answer of GM; fields that another version of GM writes otherwise are missing."""
        try:
            return msgspec.convert(answer, cls)
        except msgspec.ValidationError:
            version = answer.get("version") if isinstance(answer, Mapping) else answer
            return cls(version=str(version or ""))


@dataclass(frozen=True, slots=True)
class ClockComparison:
    """When the machine of the command asked GM for its time, and the seconds until the answer."""

    began: datetime
    took_s: float


@dataclass(frozen=True, slots=True)
class BusFacts:
    """What components publish: statuses of cameras with their topics, dead letters, stores of GMs that are online."""

    cameras: list[tuple[str, CameraStatus]] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    stores: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class SystemFacts:
    """All that the checks judge. ``resources`` are bodies with their status, by the short name of their kind."""

    now: datetime
    manager: ManagerFacts
    #: the version of the program that runs the checks
    version: str
    nodes: Sequence[NodeInfo] = ()
    resources: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    bus: BusFacts = BusFacts()
    #: None: GM itself runs the checks
    clock: ClockComparison | None = None
    #: whether this connection to the broker has TLS
    tls: bool = False

    def services(self) -> Iterator[Mapping[str, Any]]:
        """Yield the services with workers."""
        for kind in SERVICE_KINDS:
            yield from self.resources.get(kind, ())
