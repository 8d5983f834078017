"""The edge worker of a JointModel: the edge loop of services, with callers in place of cameras and of a results topic.

Who wants an answer waits for the result with his frame's id. Everything in between (the small model, mining, budget,
fusion, what happens when nobody answers) is what an edge worker does.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import structlog

from halimede import topics
from halimede.errors import DecodeError, HalimedeError, InvalidFieldError, RefusedError
from halimede.frames import OffloadError, Reason, new_id
from halimede.frames.channel import inference
from halimede.frames.compute import Outcome
from halimede.frames.loaded import Loaded
from halimede.frames.recent import Recent
from halimede.frames.seldom import Seldom
from halimede.joint_model.answer import Answer, NoAnswerError, answer_of
from halimede.messages import Frame, Reply, Result
from halimede.mining import create as create_miner
from halimede.offload import OffloadClient
from halimede.pipeline.executor import ModelThread
from halimede.pipeline.upload_policy.triage import create as create_triage
from halimede.stats.ledger import Count
from halimede.tracing import Record
from halimede.worker.asking import Asks
from halimede.worker.edge import EdgeLoop
from halimede.worker.job import Parts
from halimede.worker.outbox import Outbox, Properties, Taken

log = structlog.get_logger()

#: samples under way at a time: fewer than may wait for the cloud, so that none is given up for want of a place
AT_ONCE = 48
#: why samples were not answered, remembered until their callers are told
REMEMBERED = 256
CREDENTIALS = (
    "connect with the credentials of an edge worker, a folder nodes/NAME/edge-worker of those that `halimede certs` "
    "makes"
)
WORDS = {
    Reason.NO_CLOUD: "no worker of the next tier is there, or the broker is away",
    Reason.DEADLINE: "the next tier did not answer in time",
    Reason.CIRCUIT_OPEN: "the next tier has not answered lately, and is asked again in a moment",
    Reason.WINDOW_FULL: "too many samples are under way",
    Reason.SHED: "the next tier is busy",
    Reason.ERROR: "the next tier could not answer",
    Reason.BUDGET: "the upload budget is spent",
    Reason.TOO_SLOW: "an answer would not have been back in time",
    Reason.TOO_LARGE: "it has more bytes than may go up, however it is written",
    Reason.NO_PICTURE: "it is no picture, and pictures are to go up",
}


class Noted(Loaded):
    """An opened model that remembers its last error."""

    error = ""

    def learn(self, outcomes: list[Outcome] | tuple[Outcome, ...]) -> None:  # type: ignore[override]  # any sequence
        """Count, and note why a sample was not answered."""
        super().learn(outcomes)
        self.error = next((outcome.error for outcome in outcomes if outcome.prediction is None), self.error)


class Told:
    """Asks the next tier, and remembers why it gave no answer: results hold one word of it."""

    def __init__(self, asks: Asks) -> None:
        self._asks = asks
        self._seldom = Seldom()
        self._why: Recent[str, str] = Recent(REMEMBERED)

    async def ask(self, frame: Frame, deadline_s: float, trace: Record | None = None) -> Reply:
        """Return the answer. Raises OffloadError."""
        try:
            return await self._asks.ask(frame, deadline_s, trace)
        except OffloadError as error:
            detail = WORDS[error.reason] + (f" ({error.detail})" if error.detail else "")
            if isinstance(error.__cause__, RefusedError):
                detail = f"{error.__cause__}: {CREDENTIALS}"
                self._seldom.warning("not allowed to ask the cloud", error=detail)
            self._why.put(frame.id.hex(), detail)
            raise

    def abandon(self) -> None:
        """Let every sample run out of time."""
        self._asks.abandon()

    def why(self, result: Result) -> str:
        """Return why the answer is no better, for people; empty: it is as good as can be."""
        told = self._why.pop(result.id)
        if not result.degraded:
            return ""
        return told or WORDS.get(Reason(result.reason), result.reason) if result.reason in set(Reason) else told or ""


class Handed(Outbox):
    """Results go to those who wait for them, at once."""

    def attach(self, waiting: dict[str, asyncio.Future[Result]]) -> Handed:
        """Name those who wait, by their frames' ids."""
        self._callers = waiting
        return self

    async def put(self, result: Result, taken: Taken, properties: Properties = None) -> None:  # noqa: ARG002
        """Hand a result over. Nobody waits for one that was given up."""
        taken()
        caller = self._callers.pop(result.id, None)
        if caller and not caller.done():
            caller.set_result(result)


class Desk:
    """Takes samples and gives answers. ``run`` is the job of its worker; all of it is in one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Result]] = {}
        self._places = asyncio.Semaphore(AT_ONCE)
        self._loop: EdgeLoop | None = None
        self._told: Told | None = None
        self._model: Loaded | None = None
        self._error: BaseException | None = None

    async def run(self, parts: Parts, ready: Callable[[], None], *, alone: bool) -> None:
        """Answer until ``stop``, then drain. ``alone``: there is no next tier."""
        settings, ledger = parts.settings, parts.ledger
        miner = create_miner(settings.hem_name, settings.hem_parameters, settings.calibration, settings.hem_mode)
        triage = create_triage(settings, miner, random.random)
        names = (settings.namespace, settings.service, settings.worker)
        offload = OffloadClient(parts.bus, inference(*names, tier=settings.next_tier))
        told = self._told = None if alone else Told(offload)
        address = topics.RESULT.at(ns=settings.namespace, service=settings.service)
        outbox = Handed(parts.bus, address).attach(self._waiting)
        ledger.follow(Count.LATE, lambda: offload.late)
        self._model = parts.slot.current
        async with ModelThread("decode") as decoder, asyncio.TaskGroup() as group:
            loop = self._loop = EdgeLoop(
                settings,
                slot=parts.slot,
                miner=miner,
                decoder=decoder,
                offload=told,
                outbox=outbox,
                ledger=ledger,
                book=parts.book,
                triage=None if alone else triage,
            )
            if not alone:
                await offload.start()
            running = group.create_task(loop.run(), name="edge loop")
            watching = group.create_task(parts.slot.watch(settings.model_timeout_s), name="model watch")
            parts.figures.edge = (loop, offload, outbox)
            ready()
            await parts.stop.wait()
            await loop.drain(settings.grace_s)
            running.cancel()
            watching.cancel()

    async def answer(self, payload: bytes, field: str, timeout_s: float) -> Answer:
        """Answer a sample. Raises InvalidFieldError, naming ``field``, NoAnswerError, and TimeoutError."""
        async with asyncio.timeout(timeout_s):
            async with self._places:
                result = await self._result(payload, field)
        if result.degraded and result.prediction.label is None and _empty(result):
            error = getattr(self._model, "error", "") or "the small model failed"
            why = self._told.why(result) if self._told else ""
            raise NoAnswerError(f"{field} was not answered: {error}{f'; {why}' if why else ''}")
        return answer_of(result, self._told.why(result) if self._told else "")

    def fail(self, error: BaseException) -> None:
        """Tell all who wait, and all who come, that there is no answer any more."""
        self._error = self._error or error
        waiting = list(self._waiting.values())
        self._waiting.clear()
        for caller in waiting:
            if not caller.done():
                caller.set_exception(self._error)

    async def _result(self, payload: bytes, field: str) -> Result:
        if self._error:
            raise self._error
        assert self._loop is not None  # noqa: S101  # nobody is let in before ``ready``
        id_ = new_id()
        caller: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[id_.hex()] = caller
        try:
            await self._loop.offer(payload, "", id_=id_)
            return await caller
        except DecodeError as error:
            raise InvalidFieldError(field, f"{len(payload)} bytes", str(error)) from error
        finally:
            self._waiting.pop(id_.hex(), None)


def _empty(result: Result) -> bool:
    said = result.prediction
    return said.boxes is None and said.probabilities is None and said.value is None


def closed() -> HalimedeError:
    """Return the error of who asks a model that was closed."""
    return HalimedeError("this JointModel is closed: make a new one")
