"""The interface of frame sources and their registry. A new source is one file with ``@register``."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from halimede.api.jointinference import FrameSourceSpec
from halimede.bus import Bus, Packet
from halimede.errors import InvalidFieldError
from halimede.system.modules import import_siblings
from halimede.tracing import TraceContext
from halimede.worker.sources.poison_journal import PoisonJournal


class FrameSink(Protocol):
    """Takes the frames of sources."""

    async def offer(
        self,
        payload: bytes | memoryview,
        camera: str,
        *,
        id_: bytes | None = None,
        patient: bool = False,
        parent: TraceContext | None = None,
        answered: Callable[[], None] | None = None,
        file: str = "",
        arrived: float = math.inf,
    ) -> None:
        """Submit a frame; returns once it is accepted (or known already), which waits for capacity.

        ``patient``: the source loses nothing by waiting, so delay the frame while hard samples wait for the cloud
        instead of degrading it. ``parent``: the trace that came with the frame. ``answered`` is called after its result
        is published: until then the source may give the frame to another worker, and it is not counted as accepted.
        ``file``: the name of the picture's file, from ``file_name``. ``arrived``: loop time from which its age counts,
        infinite if it must not be dropped by its age (``EdgeLimits``). Raises DecodeError for an unreadable frame.
        """


@dataclass(frozen=True, slots=True)
class SourceContext:
    """The parameters of a source. ``connect`` makes a new bus connection, which the source enters.

    ``dead_letter`` publishes a refused frame, with the reason, to operators. ``state`` is a folder that outlives the
    worker, and ``life`` identifies the service's uid and the node: pictures answered in another life are answered
    again. ``durable``: the session of a connection outlives it, and the broker keeps a frame until it is answered.
    ``camera``: name of the one camera of a folder or a URL; empty: derived from its path. ``suspects``: the journal of
    redelivered frames. ``successor`` returns at the stop whether the worker's next process continues the session.
    """

    namespace: str
    service: str
    spec: FrameSourceSpec
    connect: Callable[[], Bus]
    dead_letter: Callable[[Packet, str], Awaitable[None]]
    data_prefix: str = ""
    loop: bool = False
    state: Path | None = None
    life: str = ""
    durable: bool = False
    camera: str = ""
    suspects: PoisonJournal | None = None
    successor: Callable[[], bool] = lambda: False


class FrameSource(ABC):
    """A source of frames."""

    #: skipped frames so far: there was no capacity, and they could not wait
    skipped: int = 0
    #: messages so far that were not accepted as a frame, such as oversized ones
    rejected: int = 0
    #: whether it stopped before all of its frames were answered; another worker can take them over
    unfinished: bool = False

    #: why it cannot record on disk which frames were answered, empty if it can
    unrecorded: str = ""

    @property
    def trouble(self) -> str:
        """Why no frames arrive, empty if they do. The source retries, so the worker continues."""
        return ""

    async def ready(self) -> None:
        """Return once the source receives frames."""
        return

    @abstractmethod
    async def run(self, intake: FrameSink, stop: asyncio.Event) -> None:
        """Submit frames until ``stop``; then finish those in progress and return."""


S = TypeVar("S", bound=type[FrameSource])

_sources: dict[str, type[FrameSource]] = {}


def register(name: str) -> Callable[[S], S]:
    """Register a source for this field of the service's ``source``. It is made from a SourceContext."""

    def add(source: S) -> S:
        if name in _sources:
            raise ValueError(f"source {name} is registered twice")
        _sources[name] = source
        return source

    return add


def create(context: SourceContext) -> FrameSource:
    """Return the source that the service's spec specifies. Raises InvalidFieldError."""
    import_siblings(__name__)
    for name in context.spec.kinds:
        return _sources[name](context)  # type: ignore[call-arg]  # registered classes take a SourceContext
    raise InvalidFieldError("spec.edgeWorker.source", context.spec, "give one of cameras, path and url")
