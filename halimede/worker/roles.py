"""The common parts of all workers, and the job of each role once its model is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from halimede.api.deferral import AS_IT_CAME, UploadEncoding
from halimede.bus import Announce, Bus
from halimede.errors import InvalidFieldError
from halimede.frames.transcode_policy import UploadFormat
from halimede.inference import Model
from halimede.messages import Count
from halimede.mining.calibration_file import RegionRule, read_artefact
from halimede.models.desired_state import read as read_desired
from halimede.offload.limits import CircuitBreaker
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import ModelSlot
from halimede.pipeline.responders import Origin
from halimede.pipeline.transcode import UploadEncoder
from halimede.pipeline.workers import RequestWorker
from halimede.stats.ledger import Ledger
from halimede.tracing import TraceBuffer
from halimede.worker import sources
from halimede.worker.metrics import WorkerMetrics, encoder_metrics
from halimede.worker.model_reload import ModelOpener
from halimede.worker.settings import WorkerSettings
from halimede.worker.sources import FrameSource
from halimede.worker.sources.poison_journal import PoisonJournal
from halimede.worker.status_reporter import DISK_FULL, SOURCE_FAILED, StatusReporter

T = TypeVar("T")
log = structlog.get_logger()


class BusFactory(Protocol):
    """Makes a connection to the bus; the caller enters its context."""

    def __call__(
        self,
        client_id: str,
        *,
        announce: Announce | None = None,
        receive_maximum: int | None = None,
        session_s: int = 0,
    ) -> Bus:
        """Return a connection with that client id, whose session lasts ``session_s`` after its end."""


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The parts of a worker of any role."""

    settings: WorkerSettings
    connect: BusFactory
    bus: Bus
    slot: ModelSlot
    ledger: Ledger
    trace_buffer: TraceBuffer
    metrics: WorkerMetrics
    stop: asyncio.Event
    reporter: StatusReporter


@dataclass(frozen=True, slots=True)
class RoleJob:
    """The job of a role, run once the model is open.

    Attributes:
        run: runs the job until the worker must stop, and drains; calls ``ready`` when it receives samples.
        announce: birth and will of its connection.
        compose: makes the worker's model from the opened model, in the model's thread.
        opener: opens its models; None: the default one.
        owner_kind: the kind of its service, for reports to the local controller.

    """

    run: Callable[[WorkerContext, Callable[[], None]], Awaitable[None]]
    announce: Announce | None = None
    compose: Callable[[Model], Model] | None = None
    opener: ModelOpener | None = None
    owner_kind: str = "jointinferenceservice"


def source_of(
    parts: WorkerContext,
    connect: Callable[[], Bus],
    *,
    group: str = "",
    durable: bool = False,
    camera: str = "",
    suspects: PoisonJournal | None = None,
) -> FrameSource:
    """Return the source of a worker's frames, over separate connections. Raises InvalidFieldError.

    ``group``: its workers share the frames of a camera; empty: the service's workers. ``durable``: a frame stays with
    its source until it is answered. ``camera``, ``suspects``: see ``SourceContext``.
    """
    settings = parts.settings

    def take_in() -> Bus:
        parts.metrics.connections.append(connect())
        return parts.metrics.connections[-1]

    source = sources.create(
        sources.SourceContext(
            settings.namespace,
            group or settings.service,
            settings.source,
            take_in,
            parts.bus.dead_letter,
            settings.data_prefix,
            settings.loop_source,
            settings.state,
            f"{settings.uid}/{settings.node}",
            durable,
            camera,
            suspects,
            partial(_has_successor, settings),
        )
    )
    parts.reporter.troubles += [(SOURCE_FAILED, lambda: source.trouble), (DISK_FULL, lambda: source.unrecorded)]
    parts.ledger.follow(Count.SKIPPED, lambda: source.skipped)
    parts.ledger.follow(Count.REJECTED, lambda: source.rejected)
    return source


def _has_successor(settings: WorkerSettings) -> bool:
    """Whether the local controller starts the worker again after this stop, with the same sessions."""
    try:
        desired = read_desired(settings.model_file, "MODEL_FILE") if settings.model_file else None
    except InvalidFieldError:
        return False
    return desired is not None and desired.successor


def origin(settings: WorkerSettings) -> Origin:
    """Return the identity of a worker for its results."""
    return Origin(settings.service, settings.worker, settings.node, settings.tier, settings.next_tier)


def region_rule(settings: WorkerSettings, calibration: Path | None) -> RegionRule | None:
    """Return how regions of hard frames are uploaded: by the calibration, else by the defaults; None: whole frames."""
    if settings.upload == "frame":
        return None
    return (read_artefact(calibration).regions if calibration else None) or RegionRule()


@asynccontextmanager
async def uploading(parts: WorkerContext, circuit: CircuitBreaker) -> AsyncIterator[UploadEncoder]:
    """Yield the encoder of samples for the next tier, behind ``circuit``; its thread starts with the first sample."""
    settings = parts.settings
    is_crop = settings.detector is not None and settings.upload_encoding == AS_IT_CAME
    encoding: UploadEncoding = "jpeg" if is_crop else settings.upload_encoding  # crops did not come in any encoding
    format_ = UploadFormat(encoding=encoding, max_bytes=settings.upload_max_bytes)
    async with ModelThread("upload") as thread:
        encoder = UploadEncoder(format_, thread, circuit, parts.bus, region_rule(settings, settings.calibration))
        parts.metrics.more.append(partial(encoder_metrics, encoder))
        yield encoder


async def serve_requests(parts: WorkerContext, worker: RequestWorker, ready: Callable[[], None]) -> None:
    """Answer requests until the worker must stop, then drain; ``ready`` is called once requests arrive."""
    stats, times, bus, ledger = worker.intake.stats, worker.intake.times, parts.bus, parts.ledger
    ledger.follow(Count.SERVED, lambda: stats.served)
    ledger.follow(Count.BATCHES, lambda: times.batch.count)
    ledger.follow(Count.REJECTED, lambda: bus.stats.rejected + stats.unfit)
    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(worker.run(), name="requests"),
            group.create_task(parts.slot.watch(parts.settings.model_timeout_s), name="model watch"),
        ]
        parts.metrics.cloud = worker
        await unless(parts.stop, worker.intake.ready.wait())
        ready()
        await parts.stop.wait()
        await worker.drain(parts.settings.grace_s)
        for task in running:
            task.cancel()


async def drain(grace_s: float, taking: asyncio.Task[None], drain: Callable[[float], Awaitable[bool]]) -> None:
    """Stop the source, then answer all accepted samples, within the grace period."""
    clock = asyncio.get_running_loop()
    until = clock.time() + grace_s
    await asyncio.wait([taking], timeout=grace_s / 3)  # the source may be waiting for capacity that only draining frees
    if not await drain(max(until - clock.time(), 0)):
        log.warning("samples not answered in the grace period")


async def unless(stop: asyncio.Event, work: Awaitable[T]) -> T | None:
    """Return the result of ``work``, or None if the worker is stopped first."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        stopping.cancel()
