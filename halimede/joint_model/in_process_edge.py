"""The edge worker of a JointModel: a service's edge worker, with callers in place of cameras and results.

A caller waits for the result with its frame's id. All steps in between (small model, mining, budget, fusion, degraded
answers) are those of an edge worker.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

import structlog

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

log = structlog.get_logger()

#: most samples in progress: fewer than may wait for the cloud, so that none is dropped for lack of a slot
AT_ONCE = 48
#: errors of unanswered samples that are remembered until their callers receive them
REMEMBERED = 256
CREDENTIALS = (
    "connect with the credentials of an edge worker, a folder nodes/NAME/edge-worker of those that `halimede certs` "
    "makes"
)
WORDS: dict[str, str] = {
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
    """Requests the next tier, and remembers why there was no answer: results contain only one word of it."""

    def __init__(self, asks: SampleClient) -> None:
        self._asks = asks
        self._limited_log = RateLimitedLogger()
        self._why: LruCache[str, str] = LruCache(REMEMBERED)

    async def ask(self, frame: Frame, deadline_s: float, trace: FrameRecord | None = None) -> Reply:
        """Return the answer. Raises OffloadError."""
        try:
            return await self._asks.ask(frame, deadline_s, trace)
        except OffloadError as error:
            detail = WORDS[error.reason] + (f" ({error.detail})" if error.detail else "")
            if isinstance(error.__cause__, RefusedError):
                detail = f"{error.__cause__}: {CREDENTIALS}"
                self._limited_log.warning("cloud requests not allowed", error=detail)
            self._why.put(frame.id.hex(), detail)
            raise

    def abandon(self) -> None:
        """Expire all requests."""
        self._asks.abandon()

    def why(self, result: Result) -> str:
        """Return why the next tier did not answer a hard sample, for people; empty if it answered."""
        detail = self._why.pop(result.id) if result.degraded else ""
        return detail or WORDS.get(result.reason, "")


class FutureOutbox:
    """Passes results to waiting callers at once. ``callers``: their futures, by their frames' ids."""

    waiting, immediate, ready = 0, True, True

    def __init__(self, callers: dict[str, asyncio.Future[Result]]) -> None:
        self._callers = callers

    async def wait_ready(self) -> None:
        """Return at once: this outbox is always ready."""

    async def run(self) -> None:
        """Return at once: nothing is queued."""

    async def drain(self, timeout_s: float) -> bool:  # noqa: ARG002  # of ``ResultOutbox``
        """Return at once: nothing is queued."""
        return True

    def put(
        self,
        address: Address[Result],  # noqa: ARG002  # of ``ResultOutbox``
        body: Result,
        done: Done,
        *,
        properties: Mapping[str, str] | None = None,  # noqa: ARG002  # likewise
    ) -> None:
        """Pass a result to its caller, unless the caller has given up."""
        asyncio.get_running_loop().call_soon(done, SUCCESS)  # after the sample's counts and traces are recorded
        caller = self._callers.pop(body.id, None)
        if caller and not caller.done():
            caller.set_result(body)


class ExplainingResponder(ResultResponder):
    """Remembers the error of the local model, because results do not contain it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._errors: LruCache[str, str] = LruCache(REMEMBERED)

    def send(self, sample: Sample, conclusion: Conclusion) -> None:
        """Answer a sample."""
        if conclusion.outcome.prediction is None:
            self._errors.put(sample.frame.id.hex(), conclusion.outcome.error)
        super().send(sample, conclusion)

    def error(self, result: Result) -> str:
        """Return why the local model gave no answer to a sample."""
        return self._errors.pop(result.id) or "the small model failed"


class InProcessEdge:
    """Takes samples and returns answers. ``run`` is its worker's job; all of it runs in one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Result]] = {}
        self._places = asyncio.Semaphore(AT_ONCE)
        self._worker: EdgeWorker | None = None
        self._told: ExplainingClient | None = None
        self._responder: ExplainingResponder | None = None
        self._error: BaseException | None = None

    async def run(self, parts: WorkerContext, ready: Callable[[], None], *, alone: bool) -> None:
        """Answer until ``stop``, then drain. ``alone``: there is no next tier."""
        settings, ledger = parts.settings, parts.ledger
        miner = create_miner(settings.hem_name, settings.hem_parameters, settings.calibration, settings.hem_mode)
        policy = create_policy(settings, miner, random.random)
        names = (settings.namespace, settings.service, settings.worker)
        offload = OffloadClient(parts.bus, inference(*names, tier=settings.next_tier))
        told = self._told = None if alone else ExplainingClient(offload)
        tier = NextTier(deadline_s=settings.deadline_s, uploads=Count.UPLOADED)
        responder = self._responder = ExplainingResponder(
            origin(settings),
            FutureOutbox(self._waiting),
            topics.RESULT.at(ns=settings.namespace, service=settings.service),
            ledger,
            trace_buffer=parts.trace_buffer,
            tier=tier,
        )
        ledger.follow(Count.LATE, lambda: offload.late)
        async with ModelThread("decode") as decoder, asyncio.TaskGroup() as group:
            worker = self._worker = EdgeWorker(
                parts.slot,
                responder,
                ledger,
                decoder,
                trace_buffer=parts.trace_buffer,
                miner=miner,
                mines_first=settings.hem_mode == BEFORE and not alone,
                escalation=Escalation(told, ledger, tier=tier, policy=policy) if told else None,
            )
            if not alone:
                await offload.start()
            running = group.create_task(worker.run(), name="edge worker")
            watching = group.create_task(parts.slot.watch(settings.model_timeout_s), name="model watch")
            parts.metrics.edge, parts.metrics.offload = worker, offload
            ready()
            await parts.stop.wait()
            await worker.drain(settings.grace_s)
            running.cancel()
            watching.cancel()

    async def answer(self, payload: bytes, field: str, timeout_s: float) -> Answer:
        """Answer a sample. Raises InvalidFieldError, naming ``field``, NoAnswerError, and TimeoutError."""
        async with asyncio.timeout(timeout_s):
            async with self._places:
                result = await self._result(payload, field)
        if result.degraded and result.prediction.label is None and _empty(result):
            error = self._responder.error(result) if self._responder else ""
            why = self._told.why(result) if self._told else ""
            raise NoAnswerError(f"{field} was not answered: {error}{f'; {why}' if why else ''}")
        return answer_of(result, self._told.why(result) if self._told else "")

    def fail(self, error: BaseException) -> None:
        """Fail all pending and future samples."""
        self._error = self._error or error
        waiting = list(self._waiting.values())
        self._waiting.clear()
        for caller in waiting:
            if not caller.done():
                caller.set_exception(self._error)

    async def _result(self, payload: bytes, field: str) -> Result:
        if self._error:
            raise self._error
        assert self._worker is not None  # noqa: S101  # no sample is accepted before ``ready``
        id_ = new_id()
        caller: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[id_.hex()] = caller
        try:
            await self._worker.intake.offer(payload, "", id_=id_)
            return await caller
        except DecodeError as error:
            raise InvalidFieldError(field, f"{len(payload)} bytes", str(error)) from error
        finally:
            self._waiting.pop(id_.hex(), None)


def _empty(result: Result) -> bool:
    said = result.prediction
    return said.boxes is None and said.probabilities is None and said.value is None


def closed() -> HalimedeError:
    """Return the error for samples submitted after the end."""
    return HalimedeError("this JointModel is closed: make a new one")
