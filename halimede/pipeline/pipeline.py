"""The pipeline: a worker answers each sample with its model, or escalates it to the next tier.

A pipeline has one queue, and one consumer (a task) for each of the model's parallel calls. An intake accepts a sample
and submits it. The sample waits in the queue until a consumer is idle. The consumer waits for samples, and for capacity
in the outbox of their answers. Then ``_consume`` takes five steps: it takes the next batch from the queue, runs the
model on it, concludes what each sample needs, sends the answers, and observes times and counts. A model runs in a
thread; only a short one runs on the event loop (inline), where ``_answer_inline`` takes the same steps without a
consumer.

A hard sample leaves the consumer: a task of its own requests an answer from the next tier, and sends that answer, or
the model's if there is none. So no batch waits for a request. The next tier, a peer (another edge worker) or the
pipeline of crops may answer a sample in place of this model: the sample is delegated.

The pipeline itself bounds only the batch: intakes bound the samples inside, and the deadlines of requests bound the
time of delegated ones. Each sample gets exactly one answer, or none if its deadline is over or it is too old. ``drain``
waits until no sample is inside; cancelling ``run`` ends consumers and requests. A defect ends ``run``, too.

Edge worker, tier, cloud worker, member of a multi-edge service and JointModel are configurations of this class: they
have different intakes, next tiers and responders.
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
from halimede.pipeline.sample import NOT_ESCALATED, Conclusion, Sample
from halimede.pipeline.upload_policy.policy import UploadDecision

P = ParamSpec("P")
log = structlog.get_logger()


class Abandonable(Protocol):
    """A client whose requests can be abandoned, such as an ``Escalation``."""

    def abandon(self) -> None:
        """Expire all requests, present and later ones."""


class PeerClient(SampleClient, Protocol):
    """A ``SampleClient`` (escalation) that requests answers from peers, other edge workers with spare capacity."""

    def reserve_peer(self) -> str | None:
        """Return the peer that would answer the next sample before this worker, and count the sample as sent to it.

        None: there is no such peer.
        """


class CropRecognizer(Protocol):
    """Answers frames by the crops of the boxes that their model, a detector, has found."""

    def select(self, outcome: InferenceOutcome) -> Sequence[Box]:
        """Return the boxes of a frame's outcome that will be cropped, and leave only these in the outcome."""

    async def recognise(self, sample: Sample, outcome: InferenceOutcome, boxes: Sequence[Box]) -> Conclusion:
        """Return the conclusion about a frame, with the answers to the crops of ``boxes``, or with an error."""


class Pipeline:
    """Answers samples with the models in ``slot``. ``run`` until cancelled; ``drain`` before that.

    The responder and the escalation of a sample are those of ``sample.intake``.

    ``infer``: runs a batch. ``delay_s``: seconds that a sample may wait for others of its batch. ``crops``: the model
    is a detector, and this answers its boxes; None: the model's prediction is the answer. ``deadline_s``: most seconds
    of a request to a peer.

    Attributes:
        slot: the models.
        rate: the model's service rate.
        observer: records each batch.
        peers: may run samples in place of the model here; None: there are none.
        inside: number of samples without an answer.
        delegated: how many of these a peer, the next tier or the pipeline of crops has.
        preparing: number of samples that are being prepared for the model.

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
        self.inside = self.delegated = 0
        self.preparing = 0
        self._infer = infer
        #: number of parallel model calls
        self._sessions = slot.lanes
        self._deadline_s = deadline_s
        self._queue = ModelQueue(rate, delay_s)
        #: running model calls
        self._calls = 0
        #: the next iteration of the event loop begins with a model call (``_run_waiting``)
        self._inline_due = False
        self._group: asyncio.TaskGroup | None = None
        #: set when a sample has its answer, or is dropped
        self._departure = asyncio.Event()

    @property
    def running(self) -> bool:
        """Whether ``run`` runs, so that samples are answered."""
        return self._group is not None

    def load(self) -> Load:
        """Return the load: samples that the model has to answer, its time for one, and how many more it may get."""
        pending = self.preparing + self.inside - self.delegated
        service_ms = round(self.rate.service_ms / self._sessions, 3)
        return Load(credits=max(0, self.rate.capacity - pending), service_ms=service_ms, queued=pending)

    async def run(self) -> None:
        """Answer samples until cancelled. Raises ExceptionGroup after a defect."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for session in range(self._sessions):
                    group.create_task(self._consume(), name=f"model session {session}")
                await asyncio.get_running_loop().create_future()
            finally:
                self._group = None  # the group accepts no more tasks

    async def drain(self, timeout_s: float, *clients: Abandonable) -> bool:
        """Answer the pending samples; return whether all were answered within ``timeout_s`` seconds.

        In the last third the requests of ``clients`` are abandoned: an answer of this worker's model is better than
        none.
        """
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(timeout_s * 2 / 3, client.abandon) for client in clients]
        try:
            async with asyncio.timeout(timeout_s):
                while self.inside:
                    self._departure.clear()
                    await self._departure.wait()
        except TimeoutError:
            log.warning("samples not answered in time", left=self.inside)
            return False
        finally:
            for timer in timers:
                timer.cancel()
        return True

    # --- samples in -----------------------------------------------------------------------------------------------

    def submit(self, sample: Sample) -> None:
        """Take an accepted sample: give it to the next tier, to a peer, or to the model here. Does not wait."""
        self.inside += 1
        decision = sample.decision
        if decision and decision.up:
            self._delegate(self._escalate(sample, InferenceOutcome(), decision), "escalate")
        elif self.peers and not sample.stays and sample.input is None:
            self._delegate(self._share(sample), "share")
        else:
            self._enqueue(sample)

    def rebalance(self) -> None:
        """Give waiting samples to peers that would answer them sooner. Called when a peer publishes its load."""
        while self.peers and self._group and (sample := self._queue.withdraw(self.peers.reserve_peer)):
            sample.intake.release_input(sample)
            self._delegate(self._share(sample), "share")

    def _delegate(self, work: Coroutine[None, None, None], name: str) -> None:
        """Start the task that gets the answer to a sample from a peer, the next tier or the pipeline of crops."""
        self.delegated += 1
        self._spawn(work, name)

    def _enqueue(self, sample: Sample) -> None:
        """Queue a sample for the model, or run it at once if the model is fast enough."""
        waiting = self._queue.waiting
        model = None if self._inline_due else self._inline_model(sample)
        if model and not waiting and not sample.intake.gathers:
            self._run_guarded(self._answer_inline, model, [sample])
            return
        waiting.append(sample)
        if model:
            self._inline_due = True
            asyncio.get_running_loop().call_soon(self._run_guarded, self._run_waiting)
        elif not self._inline_due:
            self._queue.wake()

    # --- the model ------------------------------------------------------------------------------------------------

    async def _consume(self) -> None:
        """Run batches one after the other: the main loop, once for each of the model's parallel calls."""
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._next_batch()
            outcomes = await self._run(batch)
            now = loop.time()
            self._send(batch, self._conclude(batch, outcomes, now))
            self._observe(batch, outcomes, now)
            await asyncio.sleep(0)  # yield: a short model answers on this loop, and other tasks must run too

    async def _next_batch(self) -> list[Sample]:
        """Wait for samples, and for capacity for their answers; return the next batch."""
        queue = self._queue
        while True:
            await queue.arrival()
            outbox = queue.waiting[0].intake.responder.outbox
            if not outbox.ready:
                await outbox.wait_ready()  # unacknowledged answers pause the model
                continue
            idle = max(1, self._sessions - self._calls)  # idle sessions share the queue
            model = self.slot.inline_model if self._infer.ours else None
            if batch := self._take_batch(model.inline_policy.max_samples if model else -(-len(queue.waiting) // idle)):
                return batch

    def _take_batch(self, limit: int) -> list[Sample]:
        """Remove the next batch of at most ``limit`` samples from the queue and return it; drop expired samples."""
        queue = self._queue
        batch, late, hopeless = queue.next(asyncio.get_running_loop().time(), min(self.rate.batch, limit))
        for sample in late:
            sample.intake.expire(sample, hopeless=False)
        for sample in hopeless:
            sample.intake.expire(sample, hopeless=True)
        if late or hopeless:
            self.inside -= len(late) + len(hopeless)
            self._departure.set()
        if queue.waiting:
            queue.wake()
        return batch

    async def _run(self, batch: Sequence[Sample]) -> list[InferenceOutcome]:
        """Return the outcome of each sample by its model; the current model repeats those that the canary failed on."""
        slot, outcomes = self.slot, dict[Sample, InferenceOutcome]()
        if self._infer.ours and (model := slot.inline_model) and (inline := model.try_inline(self._infer, batch)):
            return inline
        shares = slot.share(batch)
        self._calls += 1
        for model in shares:
            model.acquire()  # a model may be replaced while another one runs
        try:
            for model, samples in shares.items():
                outcomes.update(zip(samples, await model.run(self._infer, samples), strict=True))
                if model.on_trial and (current := slot.fallback(model)):
                    await self._run_again(model, current, samples, outcomes)
        finally:
            self._calls -= 1
            for model in shares:
                model.release()
        return list(map(outcomes.__getitem__, batch))

    async def _run_again(
        self,
        canary: LoadedModel,
        current: LoadedModel,
        samples: Sequence[Sample],
        outcomes: dict[Sample, InferenceOutcome],
    ) -> None:
        """Run the current model on the samples that the canary failed on, and replace their outcomes.

        If only the canary failed, that is a strike against it. If both failed, the sample is at fault.
        """
        failed = [sample for sample in samples if outcomes[sample].prediction is None]
        if not failed:
            return
        for sample in failed:
            if sample.input is not None:
                sample.intake.release_input(sample)  # the input was prepared for the canary
        with current.lease():
            answers = await current.run(self._infer, failed)
        for sample, outcome in zip(failed, answers, strict=True):
            if outcome.prediction is not None:
                error, outcomes[sample] = outcomes[sample].error, outcome
                self.slot.strike(canary, error)
            else:
                sample.version = canary.version  # the answer reports the canary's error

    def _inline_model(self, sample: Sample) -> LoadedModel | None:
        """Return the model if a sample may run on the event loop now: the model is idle and short; else None."""
        model = self.slot.inline_model
        if model is None or self._calls or self._queue.delay_s or self.peers or self._group is None:
            return None
        return model if self._infer.ours and sample.intake.responder.outbox.immediate else None

    def _run_waiting(self) -> None:
        """Run the model on a batch of queued samples on the event loop; ``_consume`` takes what is left."""
        self._inline_due = False
        model = self.slot.inline_model
        if model is None:
            self._queue.wake()
        elif batch := self._take_batch(model.inline_policy.max_samples):
            self._answer_inline(model, batch)

    def _answer_inline(self, model: LoadedModel, batch: Sequence[Sample]) -> None:
        """Run a batch on the event loop and answer it; if the model is not short any more, leave it to ``_consume``."""
        outcomes = model.try_inline(self._infer, batch)
        if outcomes is None:
            self._queue.put_back(batch)
            self._queue.wake()
            return
        now = asyncio.get_running_loop().time()
        self._send(batch, self._conclude(batch, outcomes, now))
        self._observe(batch, outcomes, now)

    # --- answers --------------------------------------------------------------------------------------------------

    def _conclude(self, batch: Sequence[Sample], outcomes: Sequence[InferenceOutcome], now: float) -> list[Conclusion]:
        """Return the conclusion about each sample of a batch after inference, with the decision about the next tier."""
        conclusions: list[Conclusion] = []
        for sample, outcome in zip(batch, outcomes, strict=True):
            intake = sample.intake
            if sample.input is not None:
                intake.release_input(sample)
            decision = intake.escalation.decide(sample, outcome, now) if intake.escalation else NOT_ESCALATED
            conclusions.append(Conclusion(outcome, decision, reason=decision.reason or ""))
        return conclusions

    def _send(self, batch: Sequence[Sample], conclusions: Sequence[Conclusion]) -> None:
        """Answer each sample of a batch, or start to get its answer from the next tier or the pipeline of crops."""
        for sample, conclusion in zip(batch, conclusions, strict=True):
            outcome, decision, escalation = conclusion.outcome, conclusion.decision, sample.intake.escalation
            if self._crops and (boxes := self._crops.select(outcome)):
                self._delegate(self._recognise(sample, self._crops.recognise(sample, outcome, boxes)), "crops")
            elif decision.up:
                self._delegate(self._escalate(sample, outcome, decision), "escalate")
            else:
                if decision.audit and escalation:
                    self._spawn(escalation.audit(sample, outcome, decision), "audit")
                self._finish(sample, conclusion)

    def _observe(self, batch: Sequence[Sample], outcomes: Sequence[InferenceOutcome], now: float) -> None:
        """Record a batch that was concluded at ``now`` (loop time).

        If its intake gathers samples, this happens in the next iteration of the event loop, after the answers are sent.
        """
        if batch[0].intake.gathers:
            asyncio.get_running_loop().call_soon(self._run_guarded, self.observer.observe, batch, outcomes, now)
        else:
            self.observer.observe(batch, outcomes, now)

    async def _escalate(self, sample: Sample, outcome: InferenceOutcome, decision: UploadDecision) -> None:
        """Answer a sample with the next tier's answer, or with this worker's if there is none."""
        assert sample.intake.escalation is not None  # noqa: S101  # only ``decide`` of this escalation leads here
        try:
            conclusion = await sample.intake.escalation.request(sample, outcome, decision)
        finally:
            self.delegated -= 1
        if conclusion.reply is None and sample.decision and outcome.prediction is None:
            # mining before inference skipped the model here; now it must answer
            (conclusion.outcome,) = await self._run((sample,))
        await self._await_outbox(sample)
        self._finish(sample, conclusion)

    async def _recognise(self, sample: Sample, recognition: Coroutine[None, None, Conclusion]) -> None:
        """Answer a frame with the answers to its crops."""
        try:
            conclusion = await recognition
        finally:
            self.delegated -= 1
        await self._await_outbox(sample)
        self._finish(sample, conclusion)

    async def _await_outbox(self, sample: Sample) -> None:
        """Wait for capacity for the answer to a sample, which stays inside, so that its source waits."""
        outbox = sample.intake.responder.outbox
        if not outbox.ready:
            await outbox.wait_ready()

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
            self.delegated -= 1
        if reply is None:
            await self._run_here(sample)
            return
        await self._await_outbox(sample)
        sample.peer, sample.version = reply.worker, reply.model
        outcome = InferenceOutcome(reply.prediction, batch=reply.batch, ms=reply.compute_ms, began=time.monotonic())
        if sample.mined:
            self._infer.mine(outcome)
        self.observer.concluded(sample, loop.time())
        self._send((sample,), self._conclude((sample,), (outcome,), loop.time()))

    async def _run_here(self, sample: Sample) -> None:
        """Prepare a sample that no peer answered, and queue it for this worker's model. It cannot become too old."""
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
        """Give a sample its one answer, and release it."""
        sample.intake.responder.send(sample, conclusion)
        sample.intake.leave(sample)
        self.inside -= 1
        self._departure.set()

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        """Start a task that ends with ``run``."""
        assert self._group is not None  # noqa: S101  # samples are concluded only within ``run``
        self._group.create_task(work, name=name)

    def _run_guarded(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a callback; an unexpected error ends the pipeline as in a task, so that no sample is lost unnoticed."""
        try:
            work(*args, **kwargs)
        except Exception as error:
            if self._group:
                self._group.create_task(_fail(error), name="defect")
            else:
                log.exception("pipeline not closed")


async def _fail(error: Exception) -> None:
    """Raise an error, in a task of its own."""
    raise error
