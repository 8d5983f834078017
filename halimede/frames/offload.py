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

from halimede.bus import Bus, Delivery
from halimede.frames.asks import Ask
from halimede.frames.channel import Channel
from halimede.frames.circuit import Circuit, State
from halimede.frames.credits import Credits
from halimede.frames.expected import Expected
from halimede.frames.places import Places
from halimede.frames.reasons import OffloadError, Reason
from halimede.frames.sending import Sender
from halimede.frames.way import Way
from halimede.messages import Frame, Load, Reply
from halimede.topic import Filter
from halimede.tracing import Record

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
        self.circuit = circuit or Circuit()
        self._bus = bus
        self._channel = channel
        self._credits = credits_ or Credits()
        way = Way()
        self._places = Places(bus, channel, self._credits, way, window=window, waiters=waiters)
        self._sender = Sender(bus, channel, self._credits, self.circuit, way)
        self._expected = Expected(self._places.wake)
        self._abandoned = False
        #: workers that said that they stop, until they are gone
        self._leaving: set[str] = set()

    @property
    def late(self) -> int:
        """Answers to samples that were given up."""
        return self._expected.late

    @property
    def repeated(self) -> int:
        """Answers to samples that were answered already."""
        return self._expected.repeated

    @property
    def unknown(self) -> int:
        """Answers to nothing that was asked, or by nobody who was."""
        return self._expected.unknown

    def credits_left(self) -> dict[str, int]:
        """Return what each cloud worker can take, as far as we know."""
        return self._credits.left(asyncio.get_running_loop().time())

    async def start(self) -> None:
        """Subscribe to replies and, where there is such a topic, to the load of those who answer."""
        self._bus.on_connect(self._reconnected)
        answers = self._channel.answers
        await self._bus.subscribe_now(Filter(answers.topic, answers.text), self._expected.replied)
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
        self._expected.asks[ask.correlation] = ask
        try:
            return await self._answer(ask)
        except OffloadError as error:
            error.sent, error.fatal = ask.sent, ask.deaths >= DEATHS
            raise
        finally:
            self._expected.over(ask)
            if probe:
                self.circuit.abandoned(loop.time())

    def abandon(self) -> None:
        """Let every sample run out of time, now and from now on: a stopping worker wants its own answers out."""
        self._abandoned = True
        now = asyncio.get_running_loop().time()
        for ask in self._expected.asks.values():
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
            await self._places.choose(ask)
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
        ask.out, began = True, time.monotonic()
        try:
            if not self._sender.send(ask):
                await self._sender.send_later(ask)
            await ask.turn.wait()
        except asyncio.CancelledError:
            self._credits.silent(worker, ask.began)
            self._sender.gave_up(ask)
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
            self._places.free()

    def _gave_up(self, ask: Ask) -> OffloadError:
        """Draw conclusions from a sample whose time ran out."""
        if ask.lacks in {Reason.DEADLINE, Reason.NO_CLOUD}:  # a busy cloud and a full window are no sign of death
            self.circuit.timed_out(asyncio.get_running_loop().time(), ask.began)
        return OffloadError(ask.lacks, "no time left")

    # --- what the bus brings --------------------------------------------------------------------------------------

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
        self._places.wake()

    def gone(self, worker: str) -> None:
        """Send again what a worker had that died or stopped; what is on the shared topic may be with it, too."""
        gone = {worker, ""}
        self._credits.remove(worker)
        if worker in self._leaving:
            self._leaving.discard(worker)
        else:
            alone = not self._credits.known(asyncio.get_running_loop().time())
            blamed = gone if alone else {worker}  # with others there, who had what came over the shared topic?
            for ask in self._expected.asks.values():
                ask.deaths += ask.out and ask.worker in blamed and not ask.turn.is_set()
        self._again(gone)

    async def _reconnected(self) -> None:
        """Send again what was under way: a reply that came while we were away is lost, its sample is remembered."""
        self.circuit.reconsider()
        self._again(None)

    def _again(self, workers: set[str] | None) -> None:
        for ask in self._expected.asks.values():
            if workers is None or ask.worker in workers:
                ask.turn.set()
        self._places.wake()
