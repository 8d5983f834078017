"""The job of a tier between edge and cloud: it answers as a cloud worker does, and asks the next tier what is hard.

Its own rule says what is hard, its own budget how much of that goes up. All of it happens beside its batches; where
the next tier has no answer in time, its own goes back, and says why.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from prometheus_client.metrics_core import Metric

from halimede.errors import InvalidFieldError
from halimede.messages.counters import Count, ExportedBy
from halimede.mining import Miner
from halimede.mining import create as create_miner
from halimede.mining.pre_inference import BEFORE
from halimede.observe.metrics import gauge, ledger_counters
from halimede.offload import OffloadClient
from halimede.offload.channel import inference
from halimede.offload.load_advertiser import load_will
from halimede.pipeline.escalation import Escalation
from halimede.pipeline.intake import RequestLimits
from halimede.pipeline.upload_policy import policy as deferral
from halimede.pipeline.workers import RequestWorker
from halimede.stats.ledger import Ledger
from halimede.worker.main import leave, main
from halimede.worker.metrics import CIRCUIT
from halimede.worker.roles import RoleJob, WorkerContext, count_requests, unless
from halimede.worker.settings import WorkerSettings, read
from halimede.worker.upload_encoder import uploading

#: how a rule's field is called in errors of mining, which knows edge workers alone
AT_EDGE = "spec.edgeWorker"


def run_tier(estimator: object | None = None) -> None:
    """Run the worker of a tier between edge and cloud until SIGTERM or SIGINT; as ``run_edge``."""
    leave(main("tier", estimator, prepare=_prepare))


def _prepare(environ: Mapping[str, str], own_estimator: bool) -> tuple[WorkerSettings, RoleJob]:  # noqa: FBT001  # of Prepare
    settings = read("cloud", environ, own_estimator=own_estimator, mines=True)
    for name, value in (("TIER", settings.tier), ("NEXT_TIER", settings.next_tier)):
        if not value:
            raise InvalidFieldError(name, value, "it is required of a tier: the local controller sets it")
    return settings, tier(settings)


def tier(settings: WorkerSettings) -> RoleJob:
    """Return what a worker of a tier does."""
    will = load_will(settings.namespace, settings.service, settings.worker)
    return RoleJob(_run, lambda: will)


def _metrics(offload: OffloadClient, ledger: Ledger) -> Iterator[Metric]:
    """Return what Prometheus gets of a tier beside what it gets of a cloud worker."""
    yield from ledger_counters(ledger, ExportedBy.TIER)
    state = CIRCUIT[offload.circuit.state]
    yield gauge("worker_circuit_state", "Way to the next tier: 0 closed, 1 half open, 2 open.", state)
    credits_ = [({"cloud_worker": name}, n) for name, n in sorted(offload.credits_left().items())]
    yield gauge("worker_cloud_credits", "What each worker of the next tier can take, as this one knows.", credits_)


async def _run(parts: WorkerContext, ready: Callable[[], None]) -> None:
    """Answer requests until ``stop``, then drain; ``ready`` is called when they are taken."""
    settings, ledger, bus = parts.settings, parts.ledger, parts.bus
    miner = _miner(settings)
    gone_up = ledger[Count.DEFERRED] + ledger[Count.AUDITED]
    policy = deferral.create(settings, miner, random.random, uploaded=gone_up, samples=ledger[Count.SERVED])
    names = (settings.namespace, settings.service, settings.worker)
    offload = OffloadClient(bus, inference(*names, tier=settings.next_tier))
    ledger.follow(Count.LATE, lambda: offload.late)
    ledger.follow(Count.UNASKED, lambda: offload.unknown)
    async with uploading(parts, offload.circuit) as encoder, asyncio.TaskGroup() as group:
        worker = RequestWorker(
            bus,
            parts.slot,
            inference(*names, tier=settings.tier),
            limits=RequestLimits(batch=settings.batch, delay_s=settings.delay_s),
            book=parts.book,
            escalation=Escalation(offload, ledger, policy=policy, encoder=encoder),
            miner=miner,
            mines_samples=settings.hem_mode == BEFORE,
            ledger=ledger,
        )
        count_requests(parts, worker)
        await offload.start()
        running = [
            group.create_task(worker.run(), name="requests"),
            group.create_task(parts.slot.watch(settings.model_timeout_s), name="model watch"),
        ]
        parts.figures.cloud = worker
        parts.figures.triage = policy
        parts.figures.more.append(partial(_metrics, offload, ledger))
        await unless(parts.stop, worker.intake.ready.wait())
        ready()
        await parts.stop.wait()
        await worker.drain(settings.grace_s)
        offload.abandon()  # audits, which nobody waits for
        for task in running:
            task.cancel()


def _miner(settings: WorkerSettings) -> Miner:
    """Return the rule by which the next tier is asked. Raises InvalidFieldError, on the tier's own field."""
    try:
        return create_miner(settings.hem_name, settings.hem_parameters, settings.calibration, settings.hem_mode)
    except InvalidFieldError as error:
        field = error.field.replace(AT_EDGE, f"spec.tiers[{settings.tier}]", 1)
        raise InvalidFieldError(field, error.value, error.fix) from error
