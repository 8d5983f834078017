"""The job of a tier between edge and cloud: it answers requests, and requests the next tier for hard samples.

Its own mining rule decides which samples are hard, its own budget how many of them are uploaded. Requests to the next
tier run in parallel to its model calls. If the next tier does not answer in time, this tier's answer counts, with the
reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from halimede.api.mining import BEFORE
from halimede.errors import InvalidFieldError
from halimede.messages.counters import Count
from halimede.mining import Miner
from halimede.mining import create as create_miner
from halimede.offload import OffloadClient
from halimede.offload.channel import inference
from halimede.offload.load_advertiser import load_will
from halimede.pipeline.escalation import Escalation
from halimede.pipeline.intake import RequestLimits
from halimede.pipeline.upload_policy.policy import create as create_policy
from halimede.pipeline.workers import RequestWorker
from halimede.worker.main import leave, main
from halimede.worker.roles import RoleJob, WorkerContext, open_encoder, serve_requests
from halimede.worker.settings import WorkerSettings, read
from halimede.worker.status_reporter import CALIBRATION_DIFFERS
from halimede.worker.threshold_file import keeping_thresholds, read_thresholds
from halimede.worker.version_calibration import pixels_trouble

#: prefix of fields in errors of mining, which knows only edge workers
EDGE_FIELD = "spec.edgeWorker"


def run_tier(estimator: object | None = None) -> None:
    """Run the worker of a tier between edge and cloud until SIGTERM or SIGINT.

    ``estimator`` is a class or an instance with ``predict`` and, if it loads something, ``load``. Without one, the
    environment names the estimator or the model file (ONNX unless MODEL_SPEC has another format). All other settings
    come from the environment (docs/reference/environment.md). After a user's mistake it prints one line and exits with
    code 2.
    """
    leave(main("tier", estimator, prepare=_prepare))


def _prepare(environ: Mapping[str, str], own_estimator: bool) -> tuple[WorkerSettings, RoleJob]:  # noqa: FBT001  # of Prepare
    """Return the settings and the job of a tier's worker. Raises InvalidFieldError."""
    settings = read("cloud", environ, own_estimator=own_estimator, mines=True)
    for name, value in (("TIER", settings.tier), ("NEXT_TIER", settings.next_tier)):
        if not value:
            raise InvalidFieldError(name, value, "it is required for a tier: the local controller sets it")
    return settings, tier(settings)


def tier(settings: WorkerSettings) -> RoleJob:
    """Return the job of a tier's worker."""
    will = load_will(settings.namespace, settings.service, settings.worker)
    return RoleJob(_run, lambda: will)


async def _run(context: WorkerContext, ready: Callable[[], None]) -> None:
    """Answer requests until ``context.stop`` is set, then drain; ``ready`` is called once requests arrive.

    Raises InvalidFieldError for the rule of mining.
    """
    settings, ledger, bus = context.settings, context.ledger, context.bus
    miner = _miner(settings)
    # hard samples that the next tier did not take stay charged to the budget
    uploaded = max(ledger[Count.DEFERRED] + ledger[Count.AUDITED], ledger[Count.HARD] - ledger[Count.WITHHELD])
    policy = create_policy(
        settings,
        miner,
        random.random,
        uploaded=uploaded,
        samples=ledger[Count.SERVED],
        thresholds=read_thresholds(settings),
    )
    names = (settings.namespace, settings.service, settings.worker)
    offload = OffloadClient(bus, inference(*names, tier=settings.next_tier))
    ledger.follow(Count.LATE, lambda: offload.late)
    ledger.follow(Count.UNASKED, lambda: offload.unknown)
    async with open_encoder(context, offload.circuit) as encoder, keeping_thresholds(settings, policy.thresholds):
        worker = RequestWorker(
            bus,
            context.slot,
            inference(*names, tier=settings.tier),
            limits=RequestLimits(batch=settings.batch, delay_s=settings.delay_s),
            trace_buffer=context.trace_buffer,
            escalation=Escalation(offload, ledger, policy=policy, encoder=encoder),
            miner=miner,
            mines_samples=settings.hem_mode == BEFORE,
            ledger=ledger,
        )
        trouble = (CALIBRATION_DIFFERS, lambda: pixels_trouble(settings.calibration, context.slot.current.desired))
        context.reporter.troubles.append(trouble)
        await offload.start()
        context.metrics.offload, context.metrics.policy = offload, policy
        await serve_requests(context, worker, ready)
        offload.abandon()  # abandon audits: no requester waits for them


def _miner(settings: WorkerSettings) -> Miner:
    """Return the mining rule of the tier. Raises InvalidFieldError, which names the tier's own field."""
    try:
        return create_miner(settings.hem_name, settings.hem_parameters, settings.calibration, settings.hem_mode)
    except InvalidFieldError as error:
        field = error.field.replace(EDGE_FIELD, f"spec.tiers[{settings.tier}]", 1)
        raise InvalidFieldError(field, error.value, error.fix) from error
