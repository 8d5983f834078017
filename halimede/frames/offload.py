"""The edge's side of an offload: ask the cloud for one hard sample, and know within its deadline what to do instead.

Each sample is asked for once as far as its caller can tell. Underneath it may be sent several times, always with the
same id and correlation: to another worker when the chosen one dies, again when the connection broke. The first good
answer wins, whatever comes after it is counted and dropped.

Bounds: ``window`` samples under way, ``waiters`` more that wait for a place or a credit, each sample's deadline, and
the workers that may die over it: a sample that ends processes must not get to all of them.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Mapping
from functools import partial

from halimede.bus import Bus, Delivery
from halimede.bus.port import judge
from halimede.errors import DisconnectedError, RefusedError, TooLargeError
from halimede.frames.asks import Ask
from halimede.frames.channel import Channel
from halimede.frames.circuit import Circuit, State
from halimede.frames.credits import MAX_WORKERS, Credits
from halimede.frames.reasons import OffloadError, Reason
from halimede.frames.recent import Recent
from halimede.frames.seldom import Seldom
from halimede.frames.way import Way
from halimede.messages import Frame, Load, Reply
from halimede.topic import Address, Filter
from halimede.tracing import Record

#: correlations that were given up, remembered to tell a late reply from a forged one
REMEMBERED = 4096
#: replies of the cloud that say "not here, not now", and not "never"
BUSY, EXPIRED = "overloaded", "expired"
#: workers that may end while they have a sample; after that it is sent to no other one
DEATHS = 2
#: seconds before a sample is sent again after its publish broke
PAUSE_S = 0.05


class OffloadClient:
    """Asks the workers that answer on a channel, on behalf of one edge worker. Call ``start`` once before ``ask``."""

    def __init__(
        self,
        bus: Bus,
        channel: Channel,
        *,
        window: int = 32,
        waiters: int = 48,
        credits_: Credits | None = None,
        circuit: Circuit | None = None,
    ) -> None:
        self.window = window
        self.circuit = circuit or Circuit()
        #: answers to samples that were given up; to answered ones; to nothing that was asked
        self.late = self.repeated = self.unknown = 0
        self._bus = bus
        self._channel = channel
        self._answers = channel.answers
        self._addresses: Recent[str, Address[Frame]] = Recent(MAX_WORKERS)
        self._waiters = waiters
        self._credits = credits_ or Credits()
        self._asks: dict[bytes, Ask] = {}
        self._done: Recent[bytes, bool] = Recent(REMEMBERED)
        self._seldom = Seldom()
        self._way = Way()
        self._abandoned = False
        #: workers that said that they stop, until they are gone
        self._leaving: set[str] = set()
        self._sending = 0
        #: who waits, in the order of coming, to be told to look again
        self._waiting: dict[Ask, asyncio.Future[None]] = {}

    def credits_left(self) -> dict[str, int]:
        """Return what each cloud worker can take, as far as we know."""
        return self._credits.left(asyncio.get_running_loop().time())

    async def start(self) -> None:
        """Subscribe to replies and, where there is such a topic, to the load of those who answer."""
        self._bus.on_connect(self._reconnected)
        await self._bus.subscribe_now(Filter(self._answers.topic, self._answers.text), self._replied)
        if loads := self._channel.loads:
            await self._bus.subscribe(loads, self._heard, cleared=self._cleared)

    async def ask(self, frame: Frame, deadline_s: float, trace: Record | None = None) -> Reply:
        """Return the cloud's answer to a frame; its ``prediction`` is set. Raises OffloadError with a reason.

        ``deadline_s`` (seconds from now) bounds everything that happens here, and ``trace`` gets what that is.
        """
        loop = asyncio.get_running_loop()
        if self._abandoned:
            raise OffloadError(Reason.DEADLINE, "the worker is stopping")
        if not self.circuit.admit(loop.time()):
            raise OffloadError(Reason.CIRCUIT_OPEN)
        probe = self.circuit.state is State.HALF_OPEN
        began = loop.time()
        until = began + deadline_s
        clock = asyncio.timeout_at(until)
        ask = Ask(frame, secrets.token_bytes(16), clock, until, asyncio.Event(), began, trace=trace)
        self._asks[ask.correlation] = ask
        try:
            return await self._answer(ask)
        except OffloadError as error:
            error.sent, error.fatal = ask.sent, ask.deaths >= DEATHS
            raise
        finally:
            del self._asks[ask.correlation]
            self._done.put(ask.correlation, ask.reply is not None)
            if probe:
                self.circuit.abandoned(loop.time())

    def abandon(self) -> None:
        """Let every sample run out of time, now and from now on: a stopping worker wants its own answers out."""
        self._abandoned = True
        now = asyncio.get_running_loop().time()
        for ask in self._asks.values():
            if not ask.clock.expired():
                ask.clock.reschedule(now)

    # --- one sample -----------------------------------------------------------------------------------------------

    async def _answer(self, ask: Ask) -> Reply:
        """Pursue a sample within its time, and tell answers from refusals."""
        try:
            async with ask.clock:
                reply = await self._pursue(ask)
        except TimeoutError:
            raise self._gave_up(ask) from None
        if reply.prediction is None:
            reason = Reason.DEADLINE if reply.error == EXPIRED else Reason.ERROR
            raise OffloadError(reason, f"{reply.error or 'no prediction'}: {reply.message}")
        return reply

    async def _pursue(self, ask: Ask) -> Reply:
        """Send a sample until it is answered; its caller holds the clock."""
        while True:
            if ask.reply is None and ask.deaths >= DEATHS:
                raise OffloadError(Reason.ERROR, f"{ask.deaths} cloud workers ended while they had it")
            await self._choose(ask)
            if ask.reply is None:
                await self._attempt(ask)
            reply, worker = ask.reply, ask.worker
            ask.worker = ""
            if reply is None:
                continue
            self.circuit.succeeded(asyncio.get_running_loop().time())
            if reply.error != BUSY:
                return reply
            if not worker:
                raise OffloadError(Reason.SHED, "the cloud is busy")
            self._credits.exhausted(worker)
            ask.reply = None

    async def _attempt(self, ask: Ask) -> None:
        """Send once, and wait for the answer or for a reason to send again."""
        worker = ask.worker
        ask.asked.add(worker)
        ask.turn.clear()
        self._sending += 1
        ask.out, began = True, time.monotonic()
        try:
            if not self._send(ask):
                await self._send_later(ask)
            await ask.turn.wait()
        except asyncio.CancelledError:
            self._credits.silent(worker, ask.began)
            if ask.owed and asyncio.get_running_loop().time() >= ask.until:
                self._way.late(len(ask.data), self._bus.owed)
            raise
        except OffloadError:
            self._credits.answered(worker)  # it was never sent
            raise
        else:
            self._credits.answered(worker, asyncio.get_running_loop().time() if ask.reply else -math.inf)
            if ask.refused and not ask.reply:
                raise ask.refused
            if ask.broke and not ask.reply:
                await asyncio.sleep(PAUSE_S)  # the connection's end may be seen here before ``connected`` says so
        finally:
            ask.out, ask.taken = False, None
            ask.attempted(worker, began)
            self._sending -= 1
            self._wake()

    def _send(self, ask: Ask) -> bool:
        """Publish a sample with the time that it has left, unless that has to wait; whether it is published.

        ``turn`` is set should nobody have it.
        """
        ask.refused, ask.broke, ask.owed = None, False, True
        left = max(ask.until - asyncio.get_running_loop().time(), 0.001)
        body = ask.body(self._channel.service, self._channel.worker, left)
        beside = ask.beside(self._answers, left)
        try:
            taken = self._bus.publish_now(self._to(ask.worker), body, tail=ask.data, **beside)
        except TooLargeError as error:
            raise OffloadError(Reason.ERROR, str(error)) from error
        if taken is None:
            return False
        ask.taken = taken
        taken.add_done_callback(partial(self._taken, ask))
        return True

    async def _send_later(self, ask: Ask) -> None:
        """Publish a sample as soon as there is a place among those that the broker has not answered."""
        left = max(ask.until - asyncio.get_running_loop().time(), 0.001)
        body = ask.body(self._channel.service, self._channel.worker, left)
        body.data = ask.data
        beside = ask.beside(self._answers, left)
        try:
            heard = await self._bus.publish(self._to(ask.worker), body, timeout_s=left, **beside)
        except DisconnectedError:
            ask.broke = True
            ask.turn.set()
        except (RefusedError, TooLargeError) as error:
            raise OffloadError(Reason.ERROR, str(error)) from error
        else:
            self._way.carried(len(ask.data))
            self._listened(ask, heard=heard)

    def _to(self, worker: str) -> Address[Frame]:
        """Return where a worker is asked. Names are checked once."""
        address = self._addresses.get(worker)
        if address is None:
            address = self._channel.to(worker)
            assert address is not None  # noqa: S101  # _find has looked
            self._addresses.put(worker, address)
        return address

    def _taken(self, ask: Ask, taken: asyncio.Future[int]) -> None:
        """The broker has a sample, or it is not known whether it does."""
        error = taken.exception()
        if ask.taken is not taken:
            return  # that attempt is over
        if error is None:
            self._way.carried(len(ask.data))
            try:
                self._listened(ask, heard=judge(self._to(ask.worker).text, taken.result()))
            except RefusedError as refused:
                ask.refused = OffloadError(Reason.ERROR, str(refused))
                ask.refused.__cause__ = refused
        ask.broke = error is not None
        if ask.broke or ask.refused:
            ask.turn.set()

    def _listened(self, ask: Ask, *, heard: bool) -> None:
        """Somebody has a sample, or the broker knows of nobody who does."""
        ask.owed = False
        if heard or ask.reply:
            ask.sent = True
            return
        if ask.worker:
            self._credits.remove(ask.worker)
        else:
            self.circuit.nobody(asyncio.get_running_loop().time())
            ask.refused = OffloadError(Reason.NO_CLOUD, "no cloud worker listens")
        ask.turn.set()

    async def _choose(self, ask: Ask) -> None:
        """Choose a worker with a free credit, or the shared topic when nobody advertises; wait for either."""
        if self._find(ask):
            return
        if len(self._waiting) >= self._waiters:
            raise OffloadError(ask.lacks, "too many samples wait already")
        loop, began = asyncio.get_running_loop(), time.monotonic()
        try:
            while ask.reply is None and not self._find(ask):
                turn = self._waiting[ask] = loop.create_future()
                await turn
        finally:
            self._waiting.pop(ask, None)
            ask.waited(began)

    def _find(self, ask: Ask) -> bool:
        """Choose without waiting; where that fails, note what is lacking."""
        now = asyncio.get_running_loop().time()
        if not self._bus.connected:
            ask.lacks = Reason.NO_CLOUD
        elif not self._way.room(len(ask.data), self._bus.owed):
            raise OffloadError(Reason.TOO_SLOW, "the way to the broker is full")
        elif self._sending >= self.window:
            ask.lacks = Reason.WINDOW_FULL
        elif worker := self._credits.pick(now):
            return self._chosen(ask, worker)
        elif not self._credits.known(now):
            if self._channel.anybody:
                return self._chosen(ask, "")
            ask.lacks = Reason.NO_CLOUD
        else:
            ask.lacks = Reason.SHED
        return False

    def _chosen(self, ask: Ask, worker: str) -> bool:
        ask.worker, ask.lacks = worker, Reason.DEADLINE
        self._credits.sent(worker)
        return True

    def _gave_up(self, ask: Ask) -> OffloadError:
        """Draw conclusions from a sample whose time ran out."""
        if ask.lacks in {Reason.DEADLINE, Reason.NO_CLOUD}:  # a busy cloud and a full window are no sign of death
            self.circuit.timed_out(asyncio.get_running_loop().time(), ask.began)
        return OffloadError(ask.lacks, "no time left")

    # --- what the bus brings --------------------------------------------------------------------------------------

    def _replied(self, delivery: Delivery[Reply]) -> None:
        reply, correlation = delivery.body, delivery.packet.correlation
        ask = self._asks.get(correlation)
        if ask is None:
            answered = self._done.get(correlation)
            if answered is None:
                self._disbelieve("reply to nothing that was asked", reply)
            elif answered:
                self.repeated += 1
            else:
                self.late += 1
        elif reply.id != ask.frame.id:
            self._disbelieve("reply with another sample's id", reply)
        elif not ask.asked & {"", reply.worker}:
            self._disbelieve("reply of a worker that was not asked", reply)
        elif ask.reply or (reply.prediction is None and not (ask.out and ask.worker in {"", reply.worker})):
            self.repeated += 1  # also the refusal of a worker that no longer has the sample
        else:
            ask.reply = reply
            ask.turn.set()
            self._wake()

    def _disbelieve(self, event: str, reply: Reply) -> None:
        self.unknown += 1
        self._seldom.warning(event, worker=reply.worker)

    async def _heard(self, delivery: Delivery[Load]) -> None:
        if delivery.body.tier == self._channel.tier:
            self.advertised(delivery.names["worker"], delivery.body)

    async def _cleared(self, names: Mapping[str, str]) -> None:
        self.gone(names["worker"])

    def advertised(self, worker: str, load: Load) -> None:
        """Take a worker's word on what it can take."""
        if load.leaving:
            self._leaving.add(worker)
            self._credits.remove(worker)
            return
        self._leaving.discard(worker)
        if self._credits.update(worker, load, asyncio.get_running_loop().time()):
            self.circuit.advertised()
        self._wake()

    def gone(self, worker: str) -> None:
        """Send again what a worker had that died or stopped; what is on the shared topic may be with it, too."""
        gone = {worker, ""}
        self._credits.remove(worker)
        if worker in self._leaving:
            self._leaving.discard(worker)
        else:
            alone = not self._credits.known(asyncio.get_running_loop().time())
            blamed = gone if alone else {worker}  # with others there, who had what came over the shared topic?
            for ask in self._asks.values():
                ask.deaths += ask.out and ask.worker in blamed and not ask.turn.is_set()
        self._again(gone)

    async def _reconnected(self) -> None:
        """Send again what was under way: a reply that came while we were away is lost, its sample is remembered."""
        self.circuit.reconsider()
        self._again(None)

    def _again(self, workers: set[str] | None) -> None:
        for ask in self._asks.values():
            if workers is None or ask.worker in workers:
                ask.turn.set()
        self._wake()

    def _wake(self) -> None:
        """Let those who wait look again, the newest first.

        Where more is asked than can be answered, the first in a queue would always be those that it made too late.
        """
        for turn in reversed(self._waiting.values()):
            if not turn.done():
                turn.set_result(None)
