"""The facts that the checks judge: ``SystemFacts``, from GM's answers and from messages that components publish."""

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
    """How many answers of a service in the last minute were degraded: the edge answered a hard sample alone."""

    #: the short name of the service's kind, such as ``ji``
    kind: str
    namespace: str
    name: str
    #: answers in the last minute, and the degraded ones of them
    answered: int
    degraded: int


class QuietWorker(msgspec.Struct, frozen=True, rename="camel"):
    """A worker whose reports are overdue, while its local controller takes it as running."""

    namespace: str
    name: str
    node: str
    #: ISO time of its last report
    since: str


class RecentLetters(msgspec.Struct, frozen=True, rename="camel"):
    """The dead letters (messages that their receiver could not read) of the last minute."""

    number: int
    #: topic of the first one, and why it could not be read
    topic: str
    reason: str


class ManagerFacts(msgspec.Struct, frozen=True, rename="camel"):
    """What GM answers to ``version``. Fields that an older GM does not know have their defaults."""

    #: GM's version of halimede
    version: str = ""
    #: GM's epoch, which each of its starts raises: nodes follow the highest
    epoch: int = 0
    #: ISO time of GM's clock; empty: unknown
    time: str = ""
    #: why GM cannot write its store; empty: it can
    store: str = ""
    #: the renamed files of a store that was damaged; empty: none
    quarantined: str = ""
    #: whether GM is connected to the broker
    connected: bool = True
    #: subscriptions and births (first messages of a connection) that the broker refuses to GM, by filter or topic
    refused: list[str] = []
    #: services with degraded answers in the last minute, the largest share first
    degraded: list[DegradedAnswers] = []
    #: workers without a report for some seconds
    quiet: list[QuietWorker] = []
    #: seconds by which clocks of nodes are ahead of GM's (negative: behind), by node; only large differences
    clocks: dict[str, float] = {}
    #: None: no dead letter in the last minute
    letters: RecentLetters | None = None

    @classmethod
    def of(cls, answer: Any) -> Self:
        """Return the facts in an answer of GM: an object, or of an old GM its version as text.

        If a field has another type than here, only the version is read.
        """
        try:
            return msgspec.convert(answer, cls)
        except msgspec.ValidationError:
            version = answer.get("version") if isinstance(answer, Mapping) else answer
            return cls(version=str(version or ""))


@dataclass(frozen=True, slots=True)
class ClockComparison:
    """When this machine requested GM's time (with its zone), and the seconds until the answer."""

    began: datetime
    took_s: float


@dataclass(frozen=True, slots=True)
class BusFacts:
    """The messages of components that a command has received."""

    #: statuses of cameras, each after its topic
    cameras: list[tuple[str, CameraStatus]] = field(default_factory=list)
    #: in the order of their arrival
    dead_letters: list[DeadLetter] = field(default_factory=list)
    #: the ids of the stores of GMs that are online: one for each GM
    online_stores: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class SystemFacts:
    """All that the checks judge."""

    #: the time of the program that runs the checks, with its zone
    now: datetime
    manager: ManagerFacts
    #: the version of the program that runs the checks
    version: str
    nodes: Sequence[NodeInfo] = ()
    #: bodies with their status, by the short name of their kind, such as ``ji``
    resources: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    bus: BusFacts = BusFacts()
    #: None: GM itself runs the checks
    clock: ClockComparison | None = None
    #: whether this connection to the broker has TLS
    tls: bool = False

    def services(self) -> Iterator[Mapping[str, Any]]:
        """Yield the bodies of all resources of kinds with workers."""
        for kind in SERVICE_KINDS:
            yield from self.resources.get(kind, ())
