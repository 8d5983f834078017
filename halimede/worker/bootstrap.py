"""Builds a worker from its settings, runs it until it is stopped, and drains it within its grace period.

Each mistake of a user (model, mining, source, estimator) raises one WorkerError with a reason, after it was reported to
the local controller.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from halimede.bus import Bus
from halimede.errors import HalimedeError
from halimede.inference import load_estimator
from halimede.models.desired_state import DesiredModel
from halimede.models.desired_state import read as read_desired
from halimede.observe import HttpServer
from halimede.observe.metrics import registry
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.stats.ledger import Ledger, LedgerBusyError
from halimede.tracing import TraceBuffer, TraceServer
from halimede.tracing.export import exporting
from halimede.worker.errors import WorkerError, as_mistake
from halimede.worker.joint_inference import joint_inference
from halimede.worker.metrics import WorkerMetrics
from halimede.worker.model_reload import ModelOpener, ModelReloader, UnfitError, desired_of
from halimede.worker.roles import BusFactory, RoleJob, WorkerContext, unless
from halimede.worker.settings import WorkerSettings
from halimede.worker.status_reporter import DISK_FULL, SUBSCRIPTION_REFUSED, StatusReporter

log = structlog.get_logger()

#: seconds between two attempts to open the ledger while the worker's predecessor drains
LEDGER_RETRY_S = 0.2


async def serve(
    settings: WorkerSettings,
    connect: BusFactory,
    stop: asyncio.Event,
    estimator: object | None = None,
    job: RoleJob | None = None,
) -> None:
    """Run the worker until ``stop`` is set, then drain it. Raises WorkerError for a user's mistake."""
    job = job or joint_inference(settings)
    async with connect(settings.client_id(), announce=job.announce) as bus:
        reporter = StatusReporter(bus, settings, owner_kind=job.owner_kind, tier=settings.tier)
        try:
            await _run(settings, connect, stop, estimator, bus=bus, reporter=reporter, job=job)
        except (HalimedeError, ExceptionGroup) as error:
            mistake = as_mistake(error)
            if mistake is None:
                raise
            await reporter.publish_final("failed", mistake.reason, str(mistake))
            raise mistake from error
        await reporter.publish_final("completed")


async def _run(
    settings: WorkerSettings,
    connect: BusFactory,
    stop: asyncio.Event,
    estimator: object | None,
    *,
    bus: Bus,
    reporter: StatusReporter,
    job: RoleJob,
) -> None:
    metrics = WorkerMetrics(settings, [bus])
    shown = HttpServer(settings.http, health=metrics.health(), registry=registry(settings.role, metrics.collect))
    async with contextlib.AsyncExitStack() as stack, shown, asyncio.TaskGroup() as group:
        reporter.http = shown.url
        others = [group.create_task(reporter.run(), name="reports")]
        ledger = metrics.ledger = await open_ledger(settings, stack)
        reporter.troubles += [(SUBSCRIPTION_REFUSED, metrics.refusal), (DISK_FULL, lambda: ledger.trouble)]
        try:
            wish = await asyncio.to_thread(_first, settings)
            opened = await unless(stop, _open(settings, estimator, wish, job))
            if opened is not None:
                opener, loaded = opened
                slot = metrics.slot = ModelSlot(loaded)
                failing = "CloudModelFailing" if settings.role == "cloud" else "EdgeModelFailing"
                reporter.troubles.append((failing, slot.failing))
                stack.push_async_callback(slot.close)
                if settings.model_file and opener.again:
                    swapper = ModelReloader(slot, wish, opener, reporter.touch)
                    reporter.model = lambda: swapper.model
                    others.append(group.create_task(swapper.run(settings.model_file), name="swaps"))
                elif wish.digest and not settings.model_file:  # a pod has one model from its start to its end
                    loaded.desired = wish
                    reporter.model = slot.rollout.in_use
                reporter.counts = lambda: metrics.info(ledger)
                trace_buffer = TraceBuffer(await stack.enter_async_context(exporting(settings.role, settings.names())))
                await TraceServer(bus, trace_buffer, settings.role, settings.names()).start()
                parts = WorkerContext(settings, connect, bus, slot, ledger, trace_buffer, metrics, stop, reporter)

                def ready() -> None:
                    metrics.ready = True
                    reporter.set("running")

                await job.run(parts, ready)
        finally:
            metrics.ready = False
            ledger.settle()
            metrics.ledger = metrics.edge = metrics.cloud = metrics.offload = None
            metrics.more.clear()
            final = ledger.info()
            reporter.counts = lambda: final
        for task in others:
            task.cancel()


def _first(settings: WorkerSettings) -> DesiredModel:
    """Return the first model: that of the desired-state file if set, else that of the environment."""
    desired = read_desired(settings.model_file, "MODEL_FILE") if settings.model_file else None
    if desired and len(desired.models) == 1:
        return desired.models[0]
    return desired_of(settings.model_path, settings.model)


async def _open(
    settings: WorkerSettings, estimator: object | None, wish: DesiredModel, job: RoleJob
) -> tuple[ModelOpener, LoadedModel]:
    """Open the first model; return it, and the opener of further ones."""
    if estimator is None and settings.estimator:
        async with ModelThread("model") as thread:
            estimator = await thread.call(load_estimator, settings.estimator)
    opener = job.opener or ModelOpener(estimator, job.compose, settings.sessions, settings.threads)
    try:
        return opener, await opener.open(wish)
    except UnfitError as error:
        raise WorkerError(error.reason, str(error)) from error


async def open_ledger(settings: WorkerSettings, stack: contextlib.AsyncExitStack) -> Ledger:
    """Open the ledger; wait while the worker's predecessor drains and uses it."""
    clock = asyncio.get_running_loop()
    until = clock.time() + settings.grace_s
    while True:
        try:
            return stack.enter_context(Ledger(settings.state, settings.uid))
        except LedgerBusyError:
            if clock.time() >= until:
                raise
            await asyncio.sleep(LEDGER_RETRY_S)
