"""What workers of all roles have in common: their parts (``WorkerContext``), the form of a role's job (``RoleJob``).

The functions are for jobs: they make the frame source and the upload encoder, and serve and drain.
"""

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
    """Makes a connection to the broker; the caller enters its context."""

    def __call__(
        self,
        client_id: str,
        *,
        announce: Announce | None = None,
        receive_maximum: int | None = None,
        session_s: int = 0,
    ) -> Bus:
        """Return a connection with this client id.

        Args:
            client_id: the connection's name, and its client id unless its ``session_id`` is set before it is entered.
            announce: returns birth and will of the connection; None: it has neither.
            receive_maximum: most messages in flight to this client; None: the default.
            session_s: seconds for which the broker keeps the session after the connection has ended.

        """


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The parts of a worker of any role.

    Attributes:
        settings: those of the worker.
        connect: makes further connections to the broker.
        bus: the worker's connection.
        slot: its model, and the model's canary.
        ledger: its counts.
        trace_buffer: the traces of its last frames.
        metrics: its metrics.
        stop: is set when the worker must stop.
        reporter: sends its reports to the local controller.

    """

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
        run: runs the job until the worker must stop, and drains; calls its second argument when it receives samples.
        announce: returns birth and will of the worker's connection; None: it has neither.
        compose: makes the worker's model from the opened model, in the model's thread; None: the opened one is it.
        opener: opens the worker's models; None: a ``ModelOpener`` with ``compose``.
        owner_kind: the kind of its service, for reports to the local controller.

    """

    run: Callable[[WorkerContext, Callable[[], None]], Awaitable[None]]
    announce: Announce | None = None
    compose: Callable[[Model], Model] | None = None
    opener: ModelOpener | None = None
    owner_kind: str = "jointinferenceservice"


def source_of(
    context: WorkerContext,
    connect: Callable[[], Bus],
    *,
    group: str = "",
    durable: bool = False,
    camera: str = "",
    suspects: PoisonJournal | None = None,
) -> FrameSource:
    """Return the source of a worker's frames. Raises InvalidFieldError if the spec names none, or an unusable one.

    Its troubles are added to the worker's reports, its counters to the ledger, and its connection to the metrics.

    Args:
        context: the worker's parts.
        connect: makes the source's own connection to the broker.
        group: the workers of a group share the frames of a camera; empty: the service is the group.
        durable: a frame stays with its source until it is answered.
        camera: name of the one camera of a folder or a URL; empty: derived from its path.
        suspects: the journal of frames that may crash workers; None: there is none.

    """
    settings = context.settings

    def take_in() -> Bus:
        context.metrics.connections.append(connect())
        return context.metrics.connections[-1]

    source = sources.create(
        sources.SourceContext(
            settings.namespace,
            group or settings.service,
            settings.source,
            take_in,
            context.bus.dead_letter,
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
    context.reporter.troubles += [(SOURCE_FAILED, lambda: source.trouble), (DISK_FULL, lambda: source.unrecorded)]
    context.ledger.follow(Count.SKIPPED, lambda: source.skipped)
    context.ledger.follow(Count.REJECTED, lambda: source.rejected)
    return source


def _has_successor(settings: WorkerSettings) -> bool:
    """Whether the local controller starts the worker again after this stop, with the same sessions. Blocks."""
    try:
        desired = read_desired(settings.model_file, "MODEL_FILE") if settings.model_file else None
    except InvalidFieldError:
        return False
    return desired is not None and desired.successor


def origin(settings: WorkerSettings) -> Origin:
    """Return the identity of a worker that its results contain."""
    return Origin(settings.service, settings.worker, settings.node, settings.tier, settings.next_tier)


def region_rule(settings: WorkerSettings, calibration: Path | None) -> RegionRule | None:
    """Return how regions of hard frames are uploaded; None if the service uploads whole frames.

    ``calibration``: the file with the rule; without a file, or a rule in it, the defaults apply.
    """
    if settings.upload == "frame":
        return None
    return (read_artefact(calibration).regions if calibration else None) or RegionRule()


@asynccontextmanager
async def open_encoder(context: WorkerContext, circuit: CircuitBreaker) -> AsyncIterator[UploadEncoder]:
    """Yield the encoder of samples for the next tier, whose thread starts with the first sample.

    ``circuit``: while it is open, nothing is encoded.
    """
    settings = context.settings
    is_crop = settings.detector is not None and settings.upload_encoding == AS_IT_CAME
    encoding: UploadEncoding = "jpeg" if is_crop else settings.upload_encoding  # crops did not come in any encoding
    format_ = UploadFormat(encoding=encoding, max_bytes=settings.upload_max_bytes)
    async with ModelThread("upload") as thread:
        encoder = UploadEncoder(format_, thread, circuit, context.bus, region_rule(settings, settings.calibration))
        context.metrics.collectors.append(partial(encoder_metrics, encoder))
        yield encoder


async def serve_requests(context: WorkerContext, worker: RequestWorker, ready: Callable[[], None]) -> None:
    """Answer requests until ``context.stop`` is set, then drain; ``ready`` is called once requests arrive."""
    stats, times, bus, ledger = worker.intake.stats, worker.intake.times, context.bus, context.ledger
    ledger.follow(Count.SERVED, lambda: stats.served)
    ledger.follow(Count.BATCHES, lambda: times.batch.count)
    ledger.follow(Count.REJECTED, lambda: bus.stats.rejected + stats.unfit)
    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(worker.run(), name="requests"),
            group.create_task(context.slot.watch(context.settings.model_timeout_s), name="model watch"),
        ]
        context.metrics.cloud = worker
        await wait_unless_stopped(context.stop, worker.intake.ready.wait())
        ready()
        await context.stop.wait()
        await worker.drain(context.settings.grace_s)
        for task in running:
            task.cancel()


async def drain(grace_s: float, source_task: asyncio.Task[None], answer: Callable[[float], Awaitable[bool]]) -> None:
    """Wait for the end of a source that must stop, then answer all accepted samples, within ``grace_s`` seconds.

    The source has a third of this time. ``answer``: answers the samples within the seconds that are its argument, and
    returns whether it has answered all; samples without an answer are logged.
    """
    clock = asyncio.get_running_loop()
    deadline = clock.time() + grace_s
    await asyncio.wait([source_task], timeout=grace_s / 3)  # it may wait for capacity that only draining frees
    if not await answer(max(deadline - clock.time(), 0)):
        log.warning("samples not answered in the grace period")


async def wait_unless_stopped(stop: asyncio.Event, work: Awaitable[T]) -> T | None:
    """Return the result of ``work``; cancel it and return None if ``stop`` is set first. Raises what it raises."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        stopping.cancel()
