"""Builds a worker of any role from its settings, and runs it until it is stopped (``serve``).

A mistake of the user (in model, mining, source or estimator) raises one WorkerError with a reason, after it was
reported to the local controller.
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
from halimede.tracing.export import open_exporter
from halimede.worker.errors import WorkerError, as_mistake
from halimede.worker.joint_inference import joint_inference
from halimede.worker.metrics import WorkerMetrics
from halimede.worker.model_reload import ModelOpener, ModelReloader, UnfitError, desired_of
from halimede.worker.roles import BusFactory, RoleJob, WorkerContext, wait_unless_stopped
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
    """Run the worker until ``stop`` is set, then let it answer what it has accepted, within ``settings.grace_s``.

    Args:
        settings: those of the worker.
        connect: makes connections to the broker.
        stop: the caller sets it.
        estimator: a user's class or object that replaces the model; None: ``settings.estimator``, or without that the
            runtime of the model's format.
        job: what the worker does; None: joint inference.

    Raises WorkerError for a user's mistake, BusError, and what a defect raises, perhaps in an ExceptionGroup.

    """
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
    """Run the worker with its reports to the local controller; ``serve`` sends the final one."""
    metrics = WorkerMetrics(settings, [bus])
    http_server = HttpServer(settings.http, health=metrics.health(), registry=registry(settings.role, metrics.collect))
    async with contextlib.AsyncExitStack() as stack, http_server, asyncio.TaskGroup() as group:
        reporter.http = http_server.url
        background = [group.create_task(reporter.run(), name="reports")]
        ledger = metrics.ledger = await open_ledger(settings, stack)
        reporter.troubles += [(SUBSCRIPTION_REFUSED, metrics.refusal), (DISK_FULL, lambda: ledger.trouble)]
        try:
            desired = await asyncio.to_thread(_first_model, settings)
            opening = await wait_unless_stopped(stop, _open_model(settings, estimator, desired, job))
            if opening is not None:
                opener, loaded = opening
                slot = metrics.slot = ModelSlot(loaded)
                failing = "CloudModelFailing" if settings.role == "cloud" else "EdgeModelFailing"
                reporter.troubles.append((failing, slot.failure))
                stack.push_async_callback(slot.close)
                if settings.model_file and opener.can_reopen:
                    reloader = ModelReloader(slot, desired, opener, reporter.touch)
                    reporter.model = lambda: reloader.model
                    background.append(group.create_task(reloader.run(settings.model_file), name="swaps"))
                elif desired.digest and not settings.model_file:  # a pod has one model from its start to its end
                    loaded.desired = desired
                    reporter.model = slot.rollout.in_use
                reporter.counts = lambda: metrics.info(ledger)
                exporter = await stack.enter_async_context(open_exporter(settings.role, settings.names()))
                trace_buffer = TraceBuffer(exporter)
                await TraceServer(bus, trace_buffer, settings.role, settings.names()).start()
                context = WorkerContext(settings, connect, bus, slot, ledger, trace_buffer, metrics, stop, reporter)

                def ready() -> None:
                    metrics.ready = True
                    reporter.set("running")

                await job.run(context, ready)
        finally:
            metrics.ready = False
            ledger.settle()
            metrics.ledger = metrics.edge = metrics.cloud = metrics.offload = None
            metrics.collectors.clear()
            final = ledger.info()
            reporter.counts = lambda: final
        for task in background:
            task.cancel()


def _first_model(settings: WorkerSettings) -> DesiredModel:
    """Return the first desired model: of the desired-state file if it names one, else of the environment. Blocks.

    Raises InvalidFieldError if the file is not valid.
    """
    desired = read_desired(settings.model_file, "MODEL_FILE") if settings.model_file else None
    if desired and len(desired.models) == 1:
        return desired.models[0]
    return desired_of(settings.model_path, settings.model)


async def _open_model(
    settings: WorkerSettings, estimator: object | None, desired: DesiredModel, job: RoleJob
) -> tuple[ModelOpener, LoadedModel]:
    """Open the first model; return the opener of further models, and the model.

    Raises WorkerError if the model cannot be used, InvalidFieldError for the estimator, and what a user's code raises.
    """
    if estimator is None and settings.estimator:
        async with ModelThread("model") as thread:
            estimator = await thread.call(load_estimator, settings.estimator)
    opener = job.opener or ModelOpener(estimator, job.compose, settings.sessions, settings.threads)
    try:
        return opener, await opener.open(desired)
    except UnfitError as error:
        raise WorkerError(error.reason, str(error)) from error


async def open_ledger(settings: WorkerSettings, stack: contextlib.AsyncExitStack) -> Ledger:
    """Open the ledger, the file of the worker's counts, and close it at the end of ``stack``.

    Waits up to ``grace_s`` seconds while the worker's predecessor uses it. Raises LedgerBusyError after that,
    InvalidFieldError if it cannot be written.
    """
    clock = asyncio.get_running_loop()
    deadline = clock.time() + settings.grace_s
    while True:
        try:
            return stack.enter_context(Ledger(settings.state, settings.uid))
        except LedgerBusyError:
            if clock.time() >= deadline:
                raise
            await asyncio.sleep(LEDGER_RETRY_S)
