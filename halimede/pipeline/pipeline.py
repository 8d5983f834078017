"""The pipeline: a worker answers each sample with its model, or escalates it to the next tier.

Edge worker, tier, cloud worker, member of a multi-edge service and JointModel are configurations of this class: they
have different intakes, next tiers and responders. ``submit`` takes a sample; ``_consume`` is the loop.

A sample is in one of four states: it waits in the queue, is in the model, is at a peer or the next tier, or has its
answer. Each sample gets exactly one answer, or none if its deadline is over or it is too old.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import ParamSpec, Protocol

import structlog

from halimede.errors import DecodeError
from halimede.messages import Box, Load
from halimede.offload.errors import OffloadError, OffloadReason
from halimede.offload.service_rate import ServiceRate
from halimede.pipeline.escalation import SampleClient
from halimede.pipeline.inference import Inference, InferenceOutcome
from halimede.pipeline.model_queue import ModelQueue
from halimede.pipeline.model_slot import LoadedModel, ModelSlot
from halimede.pipeline.observer import Observer
from halimede.pipeline.sample import KEPT, Conclusion, Sample
from halimede.pipeline.upload_policy.policy import UploadDecision

P = ParamSpec("P")
log = structlog.get_logger()


class Abandonable(Protocol):
    """A client whose requests can be abandoned."""

    def abandon(self) -> None:
        """Expire all requests."""


class PeerClient(SampleClient, Protocol):
    """Sends samples to peers with spare capacity."""

    def elsewhere(self) -> bool:
        """Whether a peer would answer the next sample before this worker. Called for each sample."""


class CropRecognizer(Protocol):
    """Answers frames by the crops of the boxes that their model, a detector, has found."""

    def select(self, outcome: InferenceOutcome) -> Sequence[Box]:
        """Keep the boxes that will be cropped, and return them."""

    async def recognise(self, sample: Sample, outcome: InferenceOutcome, boxes: Sequence[Box]) -> Conclusion:
        """Return the answers to all crops of a frame."""


class Pipeline:
    """Answers samples with the models in ``slot``. ``run`` until cancelled; ``drain`` before that.

    ``rate`` is the model's service rate, ``infer`` runs a batch, ``observer`` records each batch. A sample may wait
    ``delay_s`` seconds for others of its batch. ``peers`` may run samples in place of the model here, in at most
    ``deadline_s`` seconds; None: there are none. ``crops``: the model is a detector, and this answers what it finds.
    """

    def __init__(
        self,
        slot: ModelSlot,
        rate: ServiceRate,
        infer: Inference,
        observer: Observer,
        *,
        delay_s: float = 0.0,
        peers: PeerClient | None = None,
        crops: CropRecognizer | None = None,
        deadline_s: float = math.inf,
    ) -> None:
        self.slot = slot
        self.rate = rate
        self.observer = observer
        self.peers = peers
        self._crops = crops
        #: samples without an answer; how many of them a peer or the next tier has
        self.inside = self.elsewhere = 0
        #: samples that are being prepared for the model
        self.preparing = 0
        self._infer = infer
        self._sessions = slot.lanes
        self._deadline_s = deadline_s
        self._queue = ModelQueue(rate, delay_s=delay_s)
        #: running model calls
        self._calls = 0
        #: the next iteration of the event loop begins with a model call (``_run_inline``)
        self._inline_due = False
        self._group: asyncio.TaskGroup | None = None
        self._left = asyncio.Event()

    @property
    def running(self) -> bool:
        """Whether the pipeline answers samples."""
        return self._group is not None

    def load(self) -> Load:
        """Return the number of pending samples, and the capacity for more."""
        pending = self.preparing + self.inside - self.elsewhere
        service_ms = round(self.rate.service_ms / self._sessions, 3)
        return Load(credits=max(0, self.rate.places - pending), service_ms=service_ms, queued=pending)

    async def run(self) -> None:
        """Answer samples until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for session in range(self._sessions):
                    group.create_task(self._consume(), name=f"model session {session}")
                await asyncio.get_running_loop().create_future()
            finally:
                self._group = None  # the group accepts no more tasks

    async def drain(self, timeout_s: float, *others: Abandonable) -> bool:
        """Answer the pending samples; return whether all were answered within ``timeout_s`` seconds.

        In the last third the requests of ``others`` are abandoned: an answer of this worker's model is better than
        none.
        """
        loop = asyncio.get_running_loop()
        patience = [loop.call_later(timeout_s * 2 / 3, other.abandon) for other in others]
        try:
            async with asyncio.timeout(timeout_s):
                while self.inside:
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            log.warning("samples not answered in time", left=self.inside)
            return False
        finally:
            for timer in patience:
                timer.cancel()
        return True

    # --- samples in -----------------------------------------------------------------------------------------------

    def submit(self, sample: Sample) -> None:
        """Take an accepted sample: send it to the next tier, to a peer, or to the model here."""
        self.inside += 1
        decision = sample.decision
        if decision and decision.up:
            self._give(self._escalate(sample, InferenceOutcome(), decision), "escalate")
        elif self.peers and not sample.stays and sample.input is None:
            self._give(self._share(sample), "share")
        else:
            self._enqueue(sample)

    def rebalance(self) -> None:
        """Move waiting samples to peers that would answer them sooner. Called when a peer publishes its load."""
        while self.peers and self._group and (sample := self._queue.withdraw(self.peers.elsewhere)):
            sample.intake.release_input(sample)
            self._give(self._share(sample), "share")

    def _give(self, work: Coroutine[None, None, None], name: str) -> None:
        """Start a request to another worker for a sample that this worker's model does not run."""
        self.elsewhere += 1
        self._spawn(work, name)

    def _enqueue(self, sample: Sample) -> None:
        """Queue a sample for the model, or run it at once if the model is fast enough."""
        waiting = self._queue.waiting
        inline = not self._inline_due and self._may_run_inline(sample)
        if inline and not waiting and not sample.intake.gathers:
            self._guarded(self._run_inline, [sample])
            return
        waiting.append(sample)
        if inline:
            self._inline_due = True
            asyncio.get_running_loop().call_soon(self._guarded, self._run_waiting)
        elif not self._inline_due:
            self._queue.wake()

    # --- the model ------------------------------------------------------------------------------------------------

    async def _consume(self) -> None:
        """Run batches one after the other. THE loop; there is one for each of the model's sessions."""
        waiting = self._queue.waiting
        while True:
            await self._queue.arrival()
            outbox = waiting[0].intake.responder.outbox
            if not outbox.ready:
                await outbox.wait_ready()  # unacknowledged answers pause the model
                continue
            batch = self._next_batch()
            if not batch:
                continue
            self._calls += 1
            try:
                outcomes = await self._run(batch)
            finally:
                self._calls -= 1
            self._conclude(batch, outcomes)
            await asyncio.sleep(0)  # yield: a short model answers on this loop, and other tasks must run too

    def _next_batch(self) -> list[Sample]:
        """Remove the next batch from the queue, and drop expired samples."""
        queue = self._queue
        idle = max(1, self._sessions - self._calls)  # idle sessions share the queue
        inline = self.slot.inline_samples if self._infer.ours else 0
        limit = min(self.rate.batch, inline or -(-len(queue.waiting) // idle))
        batch, late, hopeless = queue.next(asyncio.get_running_loop().time(), limit)
        for sample in late:
            sample.intake.expire(sample, hopeless=False)
        for sample in hopeless:
            sample.intake.expire(sample, hopeless=True)
        if late or hopeless:
            self.inside -= len(late) + len(hopeless)
            self._left.set()
        if queue.waiting:
            queue.wake()
        return batch

    async def _run(self, batch: Sequence[Sample]) -> list[InferenceOutcome]:
        """Run each model on its samples; the current model repeats those that the canary failed on."""
        slot, found = self.slot, dict[Sample, InferenceOutcome]()
        if self._infer.ours and (outcomes := slot.run_inline(self._infer, batch)):
            return outcomes
        parts = slot.share(batch)
        for model in parts:
            model.hold()  # a model may be replaced while another one runs
        try:
            for model, samples in parts.items():
                found.update(zip(samples, await model.run(self._infer, samples), strict=True))
                if current := slot.before(model):
                    await self._run_again(model, current, samples, found)
        finally:
            for model in parts:
                model.release()
        return list(map(found.__getitem__, batch))

    async def _run_again(
        self,
        canary: LoadedModel,
        current: LoadedModel,
        samples: Sequence[Sample],
        found: dict[Sample, InferenceOutcome],
    ) -> None:
        """Run the current model on the samples that the canary failed on. If both fail, the sample is at fault."""
        failed = [sample for sample in samples if found[sample].prediction is None]
        if not failed:
            return
        for sample in failed:
            if sample.input is not None:
                sample.intake.release_input(sample)  # the input was prepared for the canary
        for sample, outcome in zip(failed, await current.run(self._infer, failed), strict=True):
            if outcome.prediction is not None:
                error, found[sample] = found[sample].error, outcome
                self.slot.strike(canary, error)
            else:
                sample.version = canary.version  # the answer reports the canary's error

    def _may_run_inline(self, sample: Sample) -> bool:
        """Whether the model is idle, and so fast that a thread would cost more than the call."""
        return (
            self.slot.inline_samples > 0
            and not self._calls
            and not self._queue.delay_s
            and self.peers is None
            and self._group is not None
            and self._infer.ours
            and sample.intake.responder.outbox.immediate
        )

    def _run_waiting(self) -> None:
        """Run the model on queued samples on the event loop, a bounded number in one call."""
        self._inline_due = False
        batch = self._next_batch()
        if batch:
            self._run_inline(batch)
        waiting = self._queue.waiting
        if batch and waiting and not self._inline_due and self._may_run_inline(waiting[0]):
            self._inline_due = True
            asyncio.get_running_loop().call_soon(self._guarded, self._run_waiting)

    def _run_inline(self, batch: Sequence[Sample]) -> None:
        """Run the model on a batch on the event loop; a slow model leaves it to the consumers."""
        outcomes = self.slot.run_inline(self._infer, batch)
        if outcomes is None:
            self._queue.put_back(batch)
            self._queue.wake()
        else:
            self._conclude(batch, outcomes)

    # --- answers --------------------------------------------------------------------------------------------------

    def _conclude(self, batch: Sequence[Sample], outcomes: Sequence[InferenceOutcome]) -> None:
        """Answer the samples of a batch, or escalate them."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for sample, outcome in zip(batch, outcomes, strict=True):
            if sample.input is not None:
                sample.intake.release_input(sample)
            self._decide(sample, outcome, now)
        if batch[0].intake.gathers:
            loop.call_soon(self._guarded, self.observer.observe, batch, outcomes, now)  # after the answers were sent
        else:
            self.observer.observe(batch, outcomes, now)

    def _decide(self, sample: Sample, outcome: InferenceOutcome, now: float) -> None:
        """Answer a sample after inference, or escalate it."""
        if self._crops and (boxes := self._crops.select(outcome)):
            self._give(self._recognise(sample, self._crops.recognise(sample, outcome, boxes)), "crops")
            return
        escalation = sample.intake.escalation
        decision = escalation.decide(sample, outcome, now) if escalation else KEPT
        if decision.up:
            self._give(self._escalate(sample, outcome, decision), "escalate")
            return
        if decision.audit and escalation:
            self._spawn(escalation.audit(sample, outcome, decision), "audit")
        self._finish(sample, Conclusion(outcome, decision, reason=decision.reason or ""))

    async def _escalate(self, sample: Sample, outcome: InferenceOutcome, decision: UploadDecision) -> None:
        """Answer a sample with the next tier's answer, or with this worker's if there is none."""
        assert sample.intake.escalation is not None  # noqa: S101  # only ``decide`` of this escalation leads here
        try:
            conclusion = await sample.intake.escalation.request(sample, outcome, decision)
        finally:
            self.elsewhere -= 1
        if conclusion.reply is None and sample.decision and outcome.prediction is None:
            # mining before inference skipped the model here; now it must answer
            (conclusion.outcome,) = await self._run((sample,))
        outbox = sample.intake.responder.outbox
        if not outbox.ready:
            await outbox.wait_ready()  # the sample stays inside, so that its source waits
        self._finish(sample, conclusion)

    async def _recognise(self, sample: Sample, recognition: Coroutine[None, None, Conclusion]) -> None:
        """Answer a frame with the answers to its crops."""
        try:
            conclusion = await recognition
        finally:
            self.elsewhere -= 1
        outbox = sample.intake.responder.outbox
        if not outbox.ready:
            await outbox.wait_ready()
        self._finish(sample, conclusion)

    async def _share(self, sample: Sample) -> None:
        """Answer a sample with a peer's model, or with this worker's if no peer answers."""
        assert self.peers is not None  # noqa: S101  # callers check that there are peers
        loop, reply = asyncio.get_running_loop(), None
        try:
            left_s = min(self._deadline_s, sample.until - loop.time())
            reply = await self.peers.ask(sample.frame, left_s, sample.trace)
        except OffloadError as error:
            if error.fatal:  # the sample ended the process of other workers: do not run it here
                self._give_up(sample, InferenceOutcome(error=error.detail))
                return
            sample.stays = error.reason in {OffloadReason.ERROR, OffloadReason.TOO_LARGE}
            log.debug("sample answered by edge", frame=sample.frame.id.hex(), reason=error.reason)
        except Exception:
            # an unexpected error of the peer request must not cost the sample its answer
            log.exception("peer request failed", frame=sample.frame.id.hex())
        finally:
            self.elsewhere -= 1
        if reply is None:
            await self._run_here(sample)
            return
        outbox = sample.intake.responder.outbox
        if not outbox.ready:
            await outbox.wait_ready()
        sample.peer, sample.version = reply.worker, reply.model
        outcome = InferenceOutcome(reply.prediction, batch=reply.batch, ms=reply.compute_ms, began=time.monotonic())
        if sample.mined:
            self._infer.mine(outcome)
        self.observer.concluded(sample, loop.time())
        self._decide(sample, outcome, loop.time())

    async def _run_here(self, sample: Sample) -> None:
        """Queue a sample that no peer answered for this worker's model."""
        sample.stale_at = math.inf
        try:
            await sample.intake.prepare(sample)
        except DecodeError as error:
            self._give_up(sample, InferenceOutcome(error=str(error), unfit=True))
            return
        sample.queued = time.monotonic()
        self._enqueue(sample)

    def _give_up(self, sample: Sample, outcome: InferenceOutcome) -> None:
        """Answer a sample without running a model, and without an audit."""
        if sample.decision and sample.intake.escalation:
            sample.intake.escalation.forget(sample.decision)
        self._finish(sample, Conclusion(outcome))

    def _finish(self, sample: Sample, conclusion: Conclusion) -> None:
        """Give a sample its one answer."""
        sample.intake.responder.send(sample, conclusion)
        sample.intake.leave(sample)
        self.inside -= 1
        self._left.set()

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        assert self._group is not None  # noqa: S101  # samples are concluded only within ``run``
        self._group.create_task(work, name=name)

    def _guarded(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a callback; an unexpected error ends the pipeline, as in a task: no sample is lost unnoticed."""
        try:
            work(*args, **kwargs)
        except Exception as error:
            if self._group:
                self._group.create_task(_fail(error), name="defect")
            else:
                log.exception("pipeline not closed")


async def _fail(error: Exception) -> None:
    raise error
