"""What a sample is answered: the model's prediction, the next tier's, or the word for why there is none.

What was answered is remembered for a while, so that nothing is computed twice for one who asks again; and so is which
frames broke their batches, so that they do not do it for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from halimede.bus import Delivery
from halimede.frames.backlog import Backlog
from halimede.frames.channel import Channel
from halimede.frames.compute import Outcome
from halimede.frames.deferring import Defers, passed_on
from halimede.frames.jobs import Job, Key, weight
from halimede.frames.limits import ServerStats
from halimede.frames.reasons import OffloadError, Reason
from halimede.frames.recent import Recent
from halimede.frames.replies import Replies
from halimede.frames.seldom import Seldom
from halimede.messages import Frame, Reply
from halimede.tracing import Book

log = structlog.get_logger()

#: answers and strikes that are remembered
REMEMBERED = 1024
#: a reply that takes more memory than this (bytes) is not remembered: its sample is computed again on a resend
REMEMBERED_BYTES = 64 * 1024
#: after breaking this many batches a frame is not tried again
STRIKES = 2


class Answers:
    """Answers the samples of a backlog by ``replies``, as the worker and tier of a channel, and counts it in ``stats``.

    ``defer``: who is asked about what is hard. ``book`` gets the traces of samples that go without an answer.
    """

    def __init__(
        self,
        backlog: Backlog,
        channel: Channel,
        replies: Replies,
        *,
        defer: Defers | None,
        stats: ServerStats,
        book: Book,
        seldom: Seldom,
    ) -> None:
        #: what samples were answered, as far as it is remembered
        self.given: Recent[Key, Reply] = Recent(REMEMBERED)
        #: samples that this tier's model has seen and the next one is asked about
        self.beyond = 0
        self._backlog = backlog
        self._worker, self._tier = channel.worker, channel.tier
        self._replies = replies
        self._defer = defer
        self._stats = stats
        self._book = book
        self._seldom = seldom
        self._strikes: Recent[bytes, int] = Recent(REMEMBERED)

    def start(self, group: asyncio.TaskGroup) -> None:
        """Answer from now on, where it takes a task in one of this group."""
        self._group = group
        self._replies.start(group)

    @property
    def at_once(self) -> bool:
        """Whether an answer may leave in the turn of the loop that has it."""
        return not (self._defer or self._replies.full)

    def quarantined(self, id_: bytes) -> bool:
        """Whether a frame broke so many batches that it is not tried again."""
        return (self._strikes.get(id_) or 0) >= STRIKES

    def refuse(self, to: Delivery[Frame], error: str, message: str, job: Job | None = None) -> None:
        """Answer that a sample is not computed."""
        self._replies.offer(to, Reply(id=to.body.id, worker=self._worker, error=error, message=message), job)

    def unfit(self, to: Delivery[Frame], message: str) -> None:
        """Answer a frame that cannot be read."""
        self.refuse(to, self._blame(to.body.id, Outcome(error=message, unfit=True)), message)

    def expire(self, late: Sequence[Key], hopeless: Sequence[Key]) -> None:
        """Let samples go whose time is up, or too short for the model."""
        self._stats.expired += len(late) + len(hopeless)
        for key in late:
            # its asker counted the time from before the message travelled, and has given up
            self._book.done(self._backlog.leave(key).trace)
        for key in hopeless:
            job = self._backlog.leave(key)
            self.refuse(job.delivery, "expired", "no time left for the model", job)

    def answer_now(self, key: Key, outcome: Outcome, began: float, version: str) -> None:
        """Answer a sample with what the own model made of it, in this turn of the loop if its reply has a place."""
        reply = self._reply(key, outcome, began, version)
        done = self._finished(key, reply)
        if self._replies.full:
            self._group.create_task(self._replies.send(done.delivery, reply, done), name=f"reply {reply.id.hex()}")
        else:
            self._replies.offer(done.delivery, reply, done)

    async def answer(self, key: Key, outcome: Outcome, began: float, version: str) -> None:
        """Answer a sample, or ask on beside the batches. A frame that is itself to blame is nobody else's to answer."""
        reply = self._reply(key, outcome, began, version)
        if self._defer and not outcome.unfit:
            job = self._backlog.jobs[key]
            until = job.until - self._replies.way_back_s
            choice = self._defer.choose(job.delivery.body, outcome.prediction, until, job.trace)
            reply.reason = choice.reason
            if choice.ask:
                self._group.create_task(self._ask(choice.ask, key, reply), name=f"defer {reply.id.hex()}")
                return
        await self._finish(key, reply)

    async def _ask(self, ask: Callable[[], Awaitable[Reply | None]], key: Key, own: Reply) -> None:
        """Get the next tier's answer in the time that is left; where none comes, the own one stands and says why."""
        self.beyond += 1
        try:
            beyond = await ask()
            own = passed_on(own, beyond) if beyond else own
        except OffloadError as error:
            own.reason = error.reason
            log.debug("answered by this tier", frame=own.id.hex(), reason=error.reason, detail=error.detail[:256])
        except Exception:
            # a defect in asking on must not cost the sample its answer
            log.exception("asking the next tier failed", frame=own.id.hex())
            own.reason = Reason.ERROR
        finally:
            self.beyond -= 1
        await self._finish(key, own)

    async def _finish(self, key: Key, reply: Reply) -> None:
        done = self._finished(key, reply)
        await self._replies.send(done.delivery, reply, done)

    def _finished(self, key: Key, reply: Reply) -> Job:
        """A sample has its answer, which is remembered for whoever asks again."""
        if reply.error:
            self._seldom.warning("sample not answered", error=reply.error, message=reply.message[:256])
        if reply.error != "failed" and weight(reply.prediction) <= REMEMBERED_BYTES:
            self.given.put(key, reply)
        return self._backlog.leave(key)

    def _reply(self, key: Key, outcome: Outcome, began: float, version: str) -> Reply:
        """Return what the own model makes of a sample."""
        job = self._backlog.jobs[key]
        reply = Reply(
            id=job.delivery.body.id,
            worker=self._worker,
            prediction=outcome.prediction,
            queue_ms=max(began - job.arrived, 0) * 1000,
            compute_ms=outcome.ms,
            batch=outcome.batch,
            model=version,
            tier=self._tier,
        )
        if outcome.prediction is not None:
            self._stats.served += 1
        else:
            reply.error, reply.message = self._blame(reply.id, outcome), outcome.error[:4096]
        return reply

    def _blame(self, id_: bytes, outcome: Outcome) -> str:
        """Count a failure and return the word for it; a frame that broke its batch often is not tried again."""
        self._stats.failed += 1
        if outcome.unfit:
            self._stats.unfit += 1
            return "invalid"
        strikes = (self._strikes.get(id_) or 0) + 1
        self._strikes.put(id_, strikes)
        return "quarantined" if strikes >= STRIKES else "failed"
