"""The interface of frame sources and their registry. A new source is one file with ``@register``."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, TypeVar

from halimede.api.jointinference import FrameSourceSpec
from halimede.bus import Bus, Packet
from halimede.errors import InvalidFieldError
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
    ) -> None:
        """Submit a frame; returns once it is accepted (or known already), which waits for capacity.

        ``patient``: nothing is lost by waiting, so keep the frame back while hard samples wait for the cloud, rather
        than degrade it. ``parent``: the trace that the frame came with. ``answered`` is called once its result is out:
        until then the frame remains its source's to give to somebody else, and is not counted as accepted. Raises
        DecodeError for a frame that cannot be answered.
        """


@dataclass(frozen=True, slots=True)
class SourceContext:
    """What a source may need. ``connect`` makes a new bus connection, which the source enters.
    ``dead_letter`` puts what was refused, and why, where operators see it. ``state`` is a folder that outlives the
    worker, and ``life`` names the service's uid and the node: what was done in another life is to be done again.
    ``durable``: ``connect`` makes connections whose session outlives them, and a frame remains the broker's until it is
    answered. ``camera``: how the one camera that a folder or a URL is is called; none: after what it is.
    ``suspects``: what is known of frames that come again.
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


class FrameSource(ABC):
    """A source of frames."""

    #: frames that were passed over so far, because there was no room and they could not wait
    skipped: int = 0
    #: messages so far that never became a frame to hand over, such as oversized ones
    rejected: int = 0
    #: whether it has stopped before all that was its own to answer is answered; another worker can go on with it
    unfinished: bool = False

    #: why it cannot record on disk what was answered, empty if it can
    unrecorded: str = ""

    @property
    def trouble(self) -> str:
        """Why no frames arrive, empty if they do. The source keeps trying, so the worker continues."""
        return ""

    async def ready(self) -> None:
        """Return once the source receives frames."""
        return

    @abstractmethod
    async def run(self, intake: FrameSink, stop: asyncio.Event) -> None:
        """Submit frames until ``stop``; then finish the open ones and return."""


S = TypeVar("S", bound=type[FrameSource])

_sources: dict[str, type[FrameSource]] = {}


def register(name: str) -> Callable[[S], S]:
    """Register a source for the field ``name`` of the service's ``source``. It is made from a Context."""

    def add(source: S) -> S:
        if name in _sources:
            raise ValueError(f"source {name} is registered twice")
        _sources[name] = source
        return source

    return add


def create(context: SourceContext) -> FrameSource:
    """Return the source that the service's spec asks for. Raises InvalidFieldError."""
    discover()
    for name in context.spec.__struct_fields__:
        if getattr(context.spec, name):
            return _sources[name](context)  # type: ignore[call-arg]  # registered ones take a Context
    raise InvalidFieldError("spec.edgeWorker.source", context.spec, "give one of cameras, path and url")


@cache
def discover() -> None:
    """Import every module of this package once, so that each registers its source."""
    package = importlib.import_module(__name__.rpartition(".")[0])
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
