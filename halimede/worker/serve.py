"""Puts a worker together from its settings, runs it until it is told to stop, and drains it within its grace period.

Every mistake of a user (model, mining, source, estimator) leaves as one WorkerError with a reason, after it has been
reported to the local controller.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog

from halimede import topics
from halimede.bus import Announce, Bus
from halimede.errors import HalimedeError, InvalidFieldError, RefusedError
from halimede.frames import OffloadClient, load_will
from halimede.frames.compute import ModelStuckError, ModelThread
from halimede.frames.server import CloudServer
from halimede.frames.slot import Loaded, Slot
from halimede.inference import load_estimator
from halimede.mining import create as create_miner
from halimede.models.desired import DesiredModel
from halimede.models.desired import read as read_desired
from halimede.observe import HttpServer
from halimede.observe.metrics import registry
from halimede.tracing import Answers, Book
from halimede.tracing.export import exporting
from halimede.worker import sources
from halimede.worker.edge import EdgeLoop
from halimede.worker.figures import Figures
from halimede.worker.glimpses import Glimpses
from halimede.worker.ledger import Count, Ledger, LedgerBusyError
from halimede.worker.outbox import Outbox
from halimede.worker.report import Reporter
from halimede.worker.settings import Settings
from halimede.worker.swap import Opener, Swapper, UnfitError, as_wish

T = TypeVar("T")
log = structlog.get_logger()

#: camera frames that may be under way to a busy worker: they hold memory in the broker or here
INTAKE_RECEIVE_MAXIMUM = 16
#: seconds between two attempts to take over the ledger of a worker that is still draining
LEDGER_RETRY_S = 0.2

#: which reason a refused field stands for; the longest that fits counts
REASONS = {
    "spec.edgeWorker.hardExampleMining.name": "HardExampleMiningUnknown",
    "spec.edgeWorker.hardExampleMining": "HardExampleMiningInvalid",
    "spec.edgeWorker.source": "SourceInvalid",
    "ESTIMATOR": "EstimatorInvalid",
    "HALIMEDE_STATE": "StateUnusable",
}


class WorkerError(HalimedeError):
    """The worker cannot run as it was told to. ``reason`` is one word for conditions."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class Connect(Protocol):
    """Makes a connection to the bus; the caller enters it."""

    def __call__(self, client_id: str, *, announce: Announce | None = None, receive_maximum: int | None = None) -> Bus:
        """Return a connection under that client id."""


async def serve(settings: Settings, connect: Connect, stop: asyncio.Event, estimator: object | None = None) -> None:
    """Run the worker until ``stop`` is set, then drain it. Raises WorkerError for a mistake of the user's."""
    announce: Announce | None = None
    if settings.role == "cloud":
        will = load_will(settings.namespace, settings.service, settings.worker)
        announce = lambda: will  # noqa: E731
    async with connect(settings.client_id(), announce=announce) as bus:
        reporter = Reporter(bus, settings)
        try:
            await _run(settings, connect, stop, estimator, bus=bus, reporter=reporter)
        except (HalimedeError, ExceptionGroup) as error:
            mistake = as_mistake(error)
            if mistake is None:
                raise
            await reporter.last_words("failed", mistake.reason, str(mistake))
            raise mistake from error
        await reporter.last_words("completed")


def as_mistake(error: Exception) -> WorkerError | None:
    """Return the user's mistake behind an error or a group of them, None when it is a defect or a fault instead."""
    while isinstance(error, ExceptionGroup):
        error = next((e for e in error.exceptions if as_mistake(e) is None), error.exceptions[0])
    if isinstance(error, WorkerError):
        return error
    if isinstance(error, ModelStuckError):
        return WorkerError("ModelStuck", str(error))
    if isinstance(error, RefusedError):
        return WorkerError("BrokerRefused", str(error))
    if not isinstance(error, InvalidFieldError):
        return None
    fitting = [prefix for prefix in REASONS if error.field.startswith(prefix)]
    return WorkerError(REASONS[max(fitting, key=len)] if fitting else "Invalid", str(error))


@dataclass(frozen=True, slots=True)
class _Parts:
    """What both roles are made of."""

    settings: Settings
    connect: Connect
    bus: Bus
    slot: Slot
    ledger: Ledger
    book: Book
    figures: Figures
    stop: asyncio.Event


async def _run(
    settings: Settings, connect: Connect, stop: asyncio.Event, estimator: object | None, *, bus: Bus, reporter: Reporter
) -> None:
    figures = Figures(settings, [bus])
    shown = HttpServer(settings.http, health=figures.health(), registry=registry(settings.role, figures.collect))
    async with contextlib.AsyncExitStack() as stack, shown, asyncio.TaskGroup() as group:
        reporter.http = shown.url
        others = [group.create_task(reporter.run(), name="reports")]
        ledger = figures.ledger = await _open_ledger(settings, stack)
        try:
            wish = _first(settings)
            opened = await _unless(stop, _open(settings, estimator, wish))
            if opened is not None:
                opener, loaded = opened
                slot = figures.slot = Slot(loaded)
                stack.push_async_callback(slot.close)
                if settings.model_file and opener.again:
                    swapper = Swapper(slot, wish, opener, reporter.touch)
                    reporter.model = lambda: swapper.model
                    others.append(group.create_task(swapper.run(settings.model_file), name="swaps"))
                reporter.counts = lambda: figures.info(ledger)
                book = Book(await stack.enter_async_context(exporting(settings.role, settings.names())))
                await Answers(bus, book, settings.role, settings.names()).start()
                role = _edge if settings.role == "edge" else _cloud
                parts = _Parts(settings, connect, bus, slot, ledger, book, figures, stop)
                await role(parts, lambda: reporter.set("running"))
        finally:
            ledger.settle()
            figures.ledger = figures.edge = figures.cloud = None
            final = ledger.info()
            reporter.counts = lambda: final
        for task in others:
            task.cancel()


async def _edge(parts: _Parts, ready: Callable[[], None]) -> None:
    """Run the edge loop until ``stop``, then drain it; ``ready`` is called when it takes frames."""
    settings, ledger = parts.settings, parts.ledger
    miner = create_miner(settings.hem_name, settings.hem_parameters)
    intake = settings.client_id("intake")

    def take_in() -> Bus:
        parts.figures.connections.append(parts.connect(intake, receive_maximum=INTAKE_RECEIVE_MAXIMUM))
        return parts.figures.connections[-1]

    context = sources.Context(
        settings.namespace,
        settings.service,
        settings.source,
        take_in,
        parts.bus.dead_letter,
        settings.data_prefix,
        settings.loop_source,
        settings.state,
        f"{settings.uid}/{settings.node}",
    )
    source = sources.create(context)
    names = {"ns": settings.namespace, "service": settings.service}
    offload = OffloadClient(parts.bus, settings.namespace, settings.service, settings.worker)
    outbox = Outbox(parts.bus, topics.RESULT.at(**names))
    ledger.follow(Count.LATE, lambda: offload.late)
    ledger.follow(Count.UNASKED, lambda: offload.unknown)
    ledger.follow(Count.SKIPPED, lambda: source.skipped)
    ledger.follow(Count.REJECTED, lambda: source.rejected)
    async with ModelThread("decode") as decoder, asyncio.TaskGroup() as group:
        glimpses = Glimpses(parts.bus, decoder, settings) if settings.hard_samples else None
        loop = EdgeLoop(
            settings,
            slot=parts.slot,
            miner=miner,
            decoder=decoder,
            offload=offload,
            outbox=outbox,
            ledger=ledger,
            book=parts.book,
            glimpses=glimpses,
        )
        await offload.start()
        running = [group.create_task(outbox.run(), name="outbox"), group.create_task(loop.run(), name="edge loop")]
        if glimpses:
            running.append(group.create_task(glimpses.run(), name="glimpses"))
        taking = group.create_task(source.run(loop, parts.stop), name="source")
        watching = group.create_task(parts.slot.watch(settings.model_timeout_s), name="model watch")
        parts.figures.edge = (loop, offload, outbox)
        ready()
        await parts.stop.wait()
        await _drain(settings.grace_s, taking, loop.drain)
        for task in (taking, watching, *running):
            task.cancel()


async def _cloud(parts: _Parts, ready: Callable[[], None]) -> None:
    """Run the cloud server: see ``_edge``."""
    settings, bus = parts.settings, parts.bus
    server = CloudServer(
        bus,
        parts.slot,
        namespace=settings.namespace,
        service=settings.service,
        worker=settings.worker,
        book=parts.book,
    )
    parts.ledger.follow(Count.SERVED, lambda: server.stats.served)
    parts.ledger.follow(Count.BATCHES, lambda: server.stats.batches)
    parts.ledger.follow(Count.REJECTED, lambda: bus.stats.rejected + server.stats.unfit)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.run(), name="server")
        watching = group.create_task(parts.slot.watch(settings.model_timeout_s), name="model watch")
        parts.figures.cloud = server
        ready()
        await parts.stop.wait()
        await server.drain(settings.grace_s)
        watching.cancel()
        serving.cancel()


async def _drain(grace_s: float, taking: asyncio.Task[None], drain: Callable[[float], Awaitable[bool]]) -> None:
    """Let the source end, then answer what is inside, all within the grace period."""
    clock = asyncio.get_running_loop()
    until = clock.time() + grace_s
    await asyncio.wait([taking], timeout=grace_s / 3)  # it may be waiting for room that only draining makes
    if not await drain(max(until - clock.time(), 0)):
        log.warning("not everything was answered in the grace period; the rest is counted as lost")


def _first(settings: Settings) -> DesiredModel:
    """Return the model to begin with: the file's, where there is one, else that of the environment."""
    desired = read_desired(settings.model_file) if settings.model_file else None
    if desired and len(desired.models) == 1:
        return desired.models[0]
    return as_wish(settings.model_path, settings.model)


async def _open(settings: Settings, estimator: object | None, wish: DesiredModel) -> tuple[Opener, Loaded]:
    """Open the first model; return it, and what opens further ones."""
    if estimator is None and settings.estimator:
        async with ModelThread("model") as thread:
            estimator = await thread.call(load_estimator, settings.estimator)
    opener = Opener(estimator)
    try:
        return opener, await opener.open(wish)
    except UnfitError as error:
        raise WorkerError(error.reason, str(error)) from error


async def _open_ledger(settings: Settings, stack: contextlib.AsyncExitStack) -> Ledger:
    """Open the ledger; one that its predecessor still drains into is waited for."""
    clock = asyncio.get_running_loop()
    until = clock.time() + settings.grace_s
    while True:
        try:
            return stack.enter_context(Ledger(settings.state, settings.uid))
        except LedgerBusyError:
            if clock.time() >= until:
                raise
            await asyncio.sleep(LEDGER_RETRY_S)


async def _unless(stop: asyncio.Event, work: Awaitable[T]) -> T | None:
    """Return what ``work`` brings, or None when the worker is stopped first."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        stopping.cancel()
