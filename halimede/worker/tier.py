"""The job of a tier between edge and cloud: it answers as a cloud worker does, and asks the next tier what is hard.

Its own rule says what is hard, its own budget how much of that goes up. All of it happens beside its batches; where
the next tier has no answer in time, its own goes back, and says why.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec
import structlog
from prometheus_client.metrics_core import Metric

from halimede.errors import DecodeError, InvalidFieldError
from halimede.frames import load_will
from halimede.frames.channel import inference
from halimede.frames.deferring import Choice
from halimede.frames.encodings import decode
from halimede.frames.limits import ServerLimits
from halimede.frames.reasons import OffloadError, Reason
from halimede.frames.server import CloudServer
from halimede.frames.uploading_write import Uploads
from halimede.messages import Frame, Prediction, Reply
from halimede.mining import Miner, Verdict, judge, judge_sample
from halimede.mining import create as create_miner
from halimede.mining.mixture import mix
from halimede.observe.metrics import counter, gauge
from halimede.offload import OffloadClient
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.upload_policy import triage as deferral
from halimede.pipeline.upload_policy.triage import Decision, Triage
from halimede.stats.ledger import Count, Ledger
from halimede.tracing import Record
from halimede.tracing.steps import OFFLOAD
from halimede.worker.figures import CIRCUIT
from halimede.worker.job import Job, Parts
from halimede.worker.runtime import leave, main
from halimede.worker.settings import Settings, read
from halimede.worker.uploads import uploading

log = structlog.get_logger()

#: how a rule's field is called in errors of mining, which knows edge workers alone
AT_EDGE = "spec.edgeWorker"


def run_tier(estimator: object | None = None) -> None:
    """Run the worker of a tier between edge and cloud until SIGTERM or SIGINT; as ``run_edge``."""
    leave(main("tier", estimator, prepare=_prepare))


def _prepare(environ: Mapping[str, str], own_estimator: bool) -> tuple[Settings, Job]:  # noqa: FBT001  # of Prepare
    settings = read("cloud", environ, own_estimator=own_estimator, mines=True)
    for name, value in (("TIER", settings.tier), ("NEXT_TIER", settings.next_tier)):
        if not value:
            raise InvalidFieldError(name, value, "it is required of a tier: the local controller sets it")
    return settings, tier(settings)


def tier(settings: Settings) -> Job:
    """Return what a worker of a tier does."""
    will = load_will(settings.namespace, settings.service, settings.worker)
    return Job(_run, lambda: will)


class Passing:
    """Decides what the next tier is asked, asks it, and counts (``Defers`` of the server).

    ``beside`` starts what nobody waits for.
    """

    def __init__(
        self,
        miner: Miner,
        triage: Triage,
        offload: OffloadClient,
        ledger: Ledger,
        decoder: ModelThread | None = None,
        *,
        uploads: Uploads,
        beside: asyncio.TaskGroup,
    ) -> None:
        self._miner = miner
        self._triage = triage
        self._offload = offload
        self._ledger = ledger
        self._uploads = uploads
        #: where samples are decoded that are judged as they are; None: what the model says of them is
        self._decoder = decoder
        self._beside = beside

    def choose(self, frame: Frame, prediction: Prediction | None, until: float, trace: Record) -> Choice:
        """Decide on a sample that the own model has answered, or failed on."""
        if prediction is None:
            decision = self._triage.forced(self._uploads.size(frame))
        elif self._decoder:
            return Choice(partial(self._look, self._decoder, frame, prediction, until, trace))
        else:
            decision = self._decide(judge(self._miner, prediction), frame, prediction, until)
        return self._follow(decision, frame, prediction, until, trace)

    def abandon(self) -> None:
        """Wait for the next tier no more."""
        self._offload.abandon()

    async def _look(
        self, decoder: ModelThread, frame: Frame, prediction: Prediction, until: float, trace: Record
    ) -> Reply | None:
        """Decide by the sample itself."""
        try:
            image = await decoder.call(decode, frame)
        except DecodeError as error:
            verdict = Verdict(hard=True, error=str(error))
        else:
            verdict = await decoder.call(judge_sample, self._miner, image)
        decision = self._decide(verdict, frame, prediction, until)
        choice = self._follow(decision, frame, prediction, until, trace)
        if choice.reason:
            raise OffloadError(Reason(choice.reason))
        return await choice.ask() if choice.ask else None

    def _decide(self, verdict: Verdict, frame: Frame, prediction: Prediction, until: float) -> Decision:
        self._ledger.add(Count.MINING_ERRORS, int(verdict.error is not None))
        left = until - asyncio.get_running_loop().time()
        return self._triage.decide(verdict, prediction, self._uploads.size(frame), left, time.monotonic())

    def _follow(
        self, decision: Decision, frame: Frame, prediction: Prediction | None, until: float, trace: Record
    ) -> Choice:
        self._ledger.add(Count.HARD, int(decision.hard))
        if not decision.ask:
            self._ledger.add(Count.WITHHELD, int(decision.reason is not None))
            return Choice(reason=decision.reason or "")
        if decision.audit and prediction is not None:
            auditing = self._audit(decision, frame, prediction, until)
            self._beside.create_task(auditing, name=f"audit {frame.id.hex()}")
            return Choice()
        return Choice(partial(self._ask, decision, frame, prediction, until, trace))

    async def _ask(
        self, decision: Decision, frame: Frame, prediction: Prediction | None, until: float, trace: Record
    ) -> Reply:
        """Return the next tier's answer, mixed with the own one where that is wanted. Raises OffloadError."""
        reply = await self._go(decision, frame, until, trace)
        said = reply.prediction
        if self._triage.mixture is None or prediction is None or said is None:
            return reply
        try:
            mixed = mix(self._triage.mixture, prediction, said)
        except Exception:
            # answers of models may be of any form: one that cannot be mixed is the next tier's
            log.exception("answers not mixed", frame=frame.id.hex())
            return reply
        self._ledger.add(Count.OVERRULED, int(mixed.label != said.label))
        return msgspec.structs.replace(reply, prediction=mixed)

    async def _audit(self, decision: Decision, frame: Frame, prediction: Prediction, until: float) -> None:
        """Find out what the next tier says of a sample whose answer has left already."""
        try:
            said = (await self._go(decision, frame, until)).prediction
        except OffloadError as error:
            log.debug("no audit", frame=frame.id.hex(), reason=error.reason)
            return
        except Exception:
            # a defect in asking on is no reason to end the worker
            log.exception("audit failed", frame=frame.id.hex())
            return
        if said is not None:
            self._ledger.add(Count.AUDITED)
            self._ledger.add(Count.AUDIT_AGREED, int(self._triage.compare(prediction, said)))

    async def _go(self, decision: Decision, frame: Frame, until: float, trace: Record | None = None) -> Reply:
        """Ask the next tier, and count what went up. Raises OffloadError."""
        began, left = time.monotonic(), until - asyncio.get_running_loop().time()
        reply, reason, sent, size = None, Reason.DEADLINE, False, 0
        try:
            if left <= 0:
                raise OffloadError(reason, "no time is left for the next tier")
            upload = await self._uploads.write(frame, left)
            size = upload.frame.data.nbytes
            left = until - asyncio.get_running_loop().time()
            reply = upload.read(await self._offload.ask(upload.frame, left, trace))
            sent = True
        except OffloadError as error:
            reason, sent = error.reason, error.sent
            raise
        finally:
            now, late = time.monotonic(), reason is Reason.DEADLINE
            answered = reply is not None
            self._triage.ended(decision, now - began, now, sent=sent, answered=answered, timed_out=late)
            if sent:
                self._ledger.add(Count.DEFERRED, int(not decision.audit))
                self._ledger.add(Count.UPLOADED_BYTES, size)
            if trace:
                trace.step(OFFLOAD, began, now, reply.worker if reply else "", "" if reply else str(reason), sent)
        return reply

    def figures(self) -> Iterator[Metric]:
        """Return what Prometheus gets of a tier beside what it gets of a cloud worker."""
        yield counter("worker_deferred_samples", "Samples that a tier passed on.", self._ledger[Count.DEFERRED])
        state = CIRCUIT[self._offload.circuit.state]
        yield gauge("worker_circuit_state", "Way to the next tier: 0 closed, 1 half open, 2 open.", state)
        credits_ = [({"cloud_worker": name}, n) for name, n in sorted(self._offload.credits_left().items())]
        yield gauge("worker_cloud_credits", "What each worker of the next tier can take, as this one knows.", credits_)


async def _run(parts: Parts, ready: Callable[[], None]) -> None:
    """Serve until ``stop``, then drain; ``ready`` is called when it takes samples."""
    settings, ledger, bus = parts.settings, parts.ledger, parts.bus
    miner = _miner(settings)
    gone_up = ledger[Count.DEFERRED] + ledger[Count.AUDITED]
    triage = deferral.create(settings, miner, random.random, uploaded=gone_up, samples=ledger[Count.SERVED])
    names = (settings.namespace, settings.service, settings.worker)
    offload = OffloadClient(bus, inference(*names, tier=settings.next_tier))
    ledger.follow(Count.LATE, lambda: offload.late)
    ledger.follow(Count.UNASKED, lambda: offload.unknown)
    async with (
        ModelThread("decode") as thread,
        uploading(parts, offload.circuit) as uploads,
        asyncio.TaskGroup() as group,
    ):
        decoder = thread if settings.hem_mode == "mining-then-inference" else None
        passing = Passing(miner, triage, offload, ledger, decoder, uploads=uploads, beside=group)
        channel = inference(*names, tier=settings.tier)
        limits = ServerLimits(batch=settings.batch, delay_s=settings.delay_s)
        server = CloudServer(bus, parts.slot, channel, limits=limits, book=parts.book, defer=passing)
        ledger.follow(Count.SERVED, lambda: server.stats.served)
        ledger.follow(Count.BATCHES, lambda: server.stats.batches)
        ledger.follow(Count.REJECTED, lambda: bus.stats.rejected + server.stats.unfit)
        await offload.start()
        serving = group.create_task(server.run(), name="server")
        watching = group.create_task(parts.slot.watch(settings.model_timeout_s), name="model watch")
        parts.figures.cloud = server
        parts.figures.triage = triage
        parts.figures.more.append(passing.figures)
        ready()
        await parts.stop.wait()
        await server.drain(settings.grace_s)
        offload.abandon()  # audits, which nobody waits for
        watching.cancel()
        serving.cancel()


def _miner(settings: Settings) -> Miner:
    """Return the rule by which the next tier is asked. Raises InvalidFieldError, on the tier's own field."""
    try:
        return create_miner(settings.hem_name, settings.hem_parameters, settings.calibration, settings.hem_mode)
    except InvalidFieldError as error:
        field = error.field.replace(AT_EDGE, f"spec.tiers[{settings.tier}]", 1)
        raise InvalidFieldError(field, error.value, error.fix) from error
