"""The base class of frame sources, what they get and where frames go, and their registry.

A new source is a new module in this package with a class under ``@register``.
"""

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
    """Takes the frames of sources: the intake of an edge worker."""

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
        """Submit a frame; return once it is accepted, or dropped: it is known already or too old.

        This waits for capacity, without a deadline.

        Args:
            payload: a picture's file, or a packed frame.
            camera: the frame's camera.
            id_: the frame's id, 16 bytes; None: that in the payload, or a new one.
            patient: the source loses nothing by waiting: the frame waits while hard samples wait for the cloud, and is
                not degraded.
            parent: the trace that came with the frame; None: none came.
            answered: is called after the frame's result was published, or the frame was dropped because of its age.
                Until then the source may give the frame to another worker, and it does not count as accepted. None: it
                counts at once.
            file: the name of the picture's file; empty: it has none.
            arrived: loop time from which its age counts; infinity: it is not dropped because of its age.

        Raises DecodeError for an unreadable frame.

        """


@dataclass(frozen=True, slots=True)
class SourceContext:
    """What a source gets from its worker.

    Attributes:
        namespace: that of the service.
        group: name of the group of workers that share the frames of a camera.
        spec: the source's spec.
        connect: makes a new connection to the broker, which the source enters.
        dead_letter: publishes a refused frame, with the reason, to operators.
        data_prefix: is put before a path in the spec.
        loop: a folder or file is repeated without end.
        state: the worker's folder, which survives restarts; None: nothing is stored.
        life: identifies the service's uid and the node: pictures that were answered in another life are answered again.
        durable: the broker keeps a frame until it is answered, also when the connection ends.
        camera: name of the one camera of a folder or a URL; empty: derived from its path.
        suspects: the journal of frames that may crash workers; None: there is none.
        successor: returns, at the stop, whether the worker's next process continues the session.

    """

    namespace: str
    group: str
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
    """A source of frames, made from a SourceContext. A worker calls ``run`` once, in a task.

    Attributes:
        skipped: frames so far that were left out, because there was no capacity and they could not wait.
        rejected: messages so far that were not accepted as a frame, such as oversized ones.
        unfinished: it stopped before all its frames were answered; another worker can take them over.
        unrecorded: why it cannot record on disk which frames were answered; empty if it can.

    """

    skipped: int = 0
    rejected: int = 0
    unfinished: bool = False
    unrecorded: str = ""

    @property
    def trouble(self) -> str:
        """Why no frames arrive, for users; empty if they do. The source tries again, so the worker continues."""
        return ""

    async def ready(self) -> None:
        """Return once frames can arrive; without an override at once."""
        return

    @abstractmethod
    async def run(self, intake: FrameSink, stop: asyncio.Event) -> None:
        """Submit frames to ``intake`` until ``stop`` is set; then finish those in progress and return."""


S = TypeVar("S", bound=type[FrameSource])

_sources: dict[str, type[FrameSource]] = {}


def register(name: str) -> Callable[[S], S]:
    """Return a decorator that registers a source for this field of the service's ``source``.

    Raises ValueError if the field has one.
    """

    def add(source: S) -> S:
        if name in _sources:
            raise ValueError(f"source {name} is registered twice")
        _sources[name] = source
        return source

    return add


def create(context: SourceContext) -> FrameSource:
    """Return the source that the spec in a context names. Raises InvalidFieldError if it names none.

    The source's class may raise InvalidFieldError as well.
    """
    import_siblings(__name__)
    for name in context.spec.kinds:
        return _sources[name](context)  # type: ignore[call-arg]  # registered classes take a SourceContext
    raise InvalidFieldError("spec.edgeWorker.source", context.spec, "give one of cameras, path and url")
