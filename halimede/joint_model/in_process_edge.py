"""``InProcessEdge``: the edge worker of a JointModel, with callers in place of cameras and of consumers of results.

A caller waits for the result with the id of its frame. All steps between (small model, mining, budget, fusion, degraded
answers) are those of a service's edge worker.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

from halimede import topics
from halimede.api.mining import BEFORE
from halimede.bus.acked_publisher import Done
from halimede.bus.message import SUCCESS
from halimede.errors import DecodeError, HalimedeError, InvalidFieldError, RefusedError
from halimede.frames import new_id
from halimede.joint_model.answer import Answer, NoAnswerError, answer_of
from halimede.log import RateLimitedLogger
from halimede.messages import Count, Frame, Reply, Result
from halimede.mining import create as create_miner
from halimede.offload import OffloadClient
from halimede.offload.channel import inference
from halimede.offload.errors import OffloadError, OffloadReason
from halimede.pipeline.escalation import Escalation, NextTier, SampleClient
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.responders import ResultResponder
from halimede.pipeline.sample import Conclusion, Sample
from halimede.pipeline.upload_policy.policy import create as create_policy
from halimede.pipeline.workers import EdgeWorker
from halimede.system.lru import LruCache
from halimede.topic import Address
from halimede.tracing import FrameRecord
from halimede.worker.roles import WorkerContext, origin

#: most samples in progress: fewer than may wait for the cloud, so that none is dropped for lack of a slot
MAX_IN_PROGRESS = 48
#: most errors of unanswered samples that are remembered until their callers receive them
MAX_REMEMBERED = 256
#: what to do if the broker refuses this program
CREDENTIALS = (
    "connect with the credentials of an edge worker, a folder nodes/NAME/edge-worker of those that `halimede certs` "
    "makes"
)
#: why the next tier gave no answer, for people, by the reason in a result
EXPLANATIONS: dict[str, str] = {
    OffloadReason.NO_CLOUD: "no worker of the next tier is there, or the broker is away",
    OffloadReason.DEADLINE: "the next tier did not answer in time",
    OffloadReason.CIRCUIT_OPEN: "the next tier has not answered lately, and is asked again in a moment",
    OffloadReason.WINDOW_FULL: "too many samples are under way",
    OffloadReason.SHED: "the next tier is busy",
    OffloadReason.ERROR: "the next tier could not answer",
    OffloadReason.BUDGET: "the upload budget is spent",
    OffloadReason.TOO_SLOW: "an answer would not have been back in time",
    OffloadReason.TOO_LARGE: "it has more bytes than may go up, however it is written",
    OffloadReason.NO_PICTURE: "it is no picture, and pictures are to go up",
}


class ExplainingClient:
    """A ``SampleClient`` that remembers why the next tier gave no answer; a result has only one word of that."""

    def __init__(self, client: SampleClient) -> None:
        self._client = client
        self._limited_log = RateLimitedLogger()
        self._details: LruCache[str, str] = LruCache(MAX_REMEMBERED)

    async def ask(self, frame: Frame, deadline_s: float, trace: FrameRecord | None = None) -> Reply:
        """Return the next tier's answer to a frame. Raises OffloadError if there is none within ``deadline_s``."""
        try:
            return await self._client.ask(frame, deadline_s, trace)
        except OffloadError as error:
            detail = EXPLANATIONS[error.reason] + (f" ({error.detail})" if error.detail else "")
            if isinstance(error.__cause__, RefusedError):
                detail = f"{error.__cause__}: {CREDENTIALS}"
                self._limited_log.warning("cloud requests not allowed", error=detail)
            self._details.put(frame.id.hex(), detail)
            raise

    def abandon(self) -> None:
        """Let all requests that wait fail now."""
        self._client.abandon()

    def explain(self, result: Result) -> str:
        """Return why the next tier did not answer the sample of a result, for people.

        Empty: it answered, or the sample was easy. The reason is forgotten after that.
        """
        detail = self._details.pop(result.id) if result.degraded else ""
        return detail or EXPLANATIONS.get(result.reason, "")


class FutureOutbox:
    """A ``ResultOutbox`` that passes results to waiting callers at once.

    ``callers`` are the futures of callers, by the ids of their frames in hexadecimal. ``waiting`` (queued results) is
    always 0; ``immediate`` and ``ready`` are always True.
    """

    waiting, immediate, ready = 0, True, True

    def __init__(self, callers: dict[str, asyncio.Future[Result]]) -> None:
        self._callers = callers

    async def wait_ready(self) -> None:
        """Return at once: this outbox is always ready."""

    async def run(self) -> None:
        """Return at once: there is nothing to send."""

    async def drain(self, timeout_s: float) -> bool:  # noqa: ARG002  # of ``ResultOutbox``
        """Return True at once: nothing is queued."""
        return True

    def put(
        self,
        address: Address[Result],  # noqa: ARG002  # of ``ResultOutbox``
        body: Result,
        done: Done,
        *,
        properties: Mapping[str, str] | None = None,  # noqa: ARG002  # likewise
    ) -> None:
        """Pass a result to its caller, unless the caller has given up; call ``done`` with success afterwards."""
        asyncio.get_running_loop().call_soon(done, SUCCESS)  # after the sample's counts and traces are recorded
        caller = self._callers.pop(body.id, None)
        if caller and not caller.done():
            caller.set_result(body)


class ExplainingResponder(ResultResponder):
    """A ``ResultResponder`` that remembers the error of the local model, because results do not contain it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._errors: LruCache[str, str] = LruCache(MAX_REMEMBERED)

    def send(self, sample: Sample, conclusion: Conclusion) -> None:
        """Send the result of a sample to its caller."""
        if conclusion.outcome.prediction is None:
            self._errors.put(sample.frame.id.hex(), conclusion.outcome.error)
        super().send(sample, conclusion)

    def error(self, result: Result) -> str:
        """Return why the local model gave no answer to the sample of a result; it is forgotten after that."""
        return self._errors.pop(result.id) or "the small model failed"


class InProcessEdge:
    """Takes samples and returns answers, on one event loop.

    ``run`` is the job of its worker, and has to be ready before the first ``answer``.
    """

    def __init__(self) -> None:
        self._callers: dict[str, asyncio.Future[Result]] = {}
        self._slots = asyncio.Semaphore(MAX_IN_PROGRESS)
        self._worker: EdgeWorker | None = None
        self._client: ExplainingClient | None = None
        self._responder: ExplainingResponder | None = None
        self._error: BaseException | None = None

    async def run(self, context: WorkerContext, ready: Callable[[], None], *, alone: bool) -> None:
        """Answer until ``context.stop`` is set, then drain. ``alone``: there is no next tier.

        ``ready`` is called as soon as samples are accepted.
        """
        settings, ledger = context.settings, context.ledger
        miner = create_miner(settings.hem_name, settings.hem_parameters, settings.calibration, settings.hem_mode)
        policy = create_policy(settings, miner, random.random)
        names = (settings.namespace, settings.service, settings.worker)
        offload = OffloadClient(context.bus, inference(*names, tier=settings.next_tier))
        client = self._client = None if alone else ExplainingClient(offload)
        tier = NextTier(deadline_s=settings.deadline_s, uploads=Count.UPLOADED)
        responder = self._responder = ExplainingResponder(
            origin(settings),
            FutureOutbox(self._callers),
            topics.RESULT.at(ns=settings.namespace, service=settings.service),
            ledger,
            trace_buffer=context.trace_buffer,
            tier=tier,
        )
        ledger.follow(Count.LATE, lambda: offload.late)
        async with ModelThread("decode") as decoder, asyncio.TaskGroup() as group:
            worker = self._worker = EdgeWorker(
                context.slot,
                responder,
                ledger,
                decoder,
                trace_buffer=context.trace_buffer,
                miner=miner,
                mines_first=settings.hem_mode == BEFORE and not alone,
                escalation=Escalation(client, ledger, tier=tier, policy=policy) if client else None,
            )
            if not alone:
                await offload.start()
            running = group.create_task(worker.run(), name="edge worker")
            watching = group.create_task(context.slot.watch(settings.model_timeout_s), name="model watch")
            context.metrics.edge, context.metrics.offload = worker, offload
            ready()
            await context.stop.wait()
            await worker.drain(settings.grace_s)
            self.fail(closed_error())  # now: a caller that gets a slot later would meet closed parts
            running.cancel()
            watching.cancel()

    async def answer(self, payload: bytes, field: str, timeout_s: float) -> Answer:
        """Return the answer to a sample, a camera message, within ``timeout_s``.

        Raises InvalidFieldError, which names ``field``, for an invalid sample; NoAnswerError if no model could answer;
        TimeoutError; and the error of ``fail``.
        """
        async with asyncio.timeout(timeout_s):
            async with self._slots:
                result = await self._result(payload, field)
        if result.degraded and result.prediction.label is None and _is_empty(result):
            error = self._responder.error(result) if self._responder else ""
            detail = self._client.explain(result) if self._client else ""
            raise NoAnswerError(f"{field} was not answered: {error}{f'; {detail}' if detail else ''}")
        return answer_of(result, self._client.explain(result) if self._client else "")

    def fail(self, error: BaseException) -> None:
        """Let all pending and future samples fail with this error, or with that of an earlier call."""
        self._error = self._error or error
        callers = list(self._callers.values())
        self._callers.clear()
        for caller in callers:
            if not caller.done():
                caller.set_exception(self._error)

    async def _result(self, payload: bytes, field: str) -> Result:
        """Submit a sample and wait for its result. Raises InvalidFieldError and the error of ``fail``."""
        if self._error:
            raise self._error
        assert self._worker is not None  # noqa: S101  # no sample is accepted before ``ready``
        id_ = new_id()
        caller: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._callers[id_.hex()] = caller
        try:
            await self._worker.intake.offer(payload, "", id_=id_)
            return await caller
        except DecodeError as error:
            raise InvalidFieldError(field, f"{len(payload)} bytes", str(error)) from error
        finally:
            self._callers.pop(id_.hex(), None)


def _is_empty(result: Result) -> bool:
    """Whether a result has neither boxes, nor probabilities, nor a value."""
    prediction = result.prediction
    return prediction.boxes is None and prediction.probabilities is None and prediction.value is None


def closed_error() -> HalimedeError:
    """Return the error of samples that are submitted after the end."""
    return HalimedeError("this JointModel is closed: make a new one")
