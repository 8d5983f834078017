"""The offload client: sends hard samples to the workers of the next tier, each with a deadline, and returns replies.

Every sample has one request, and one caller that waits for its reply in ``ask``. A request waits for a slot (one of
``window`` requests in flight) and for a worker with credits (requests that a worker advertises to take now). Then it is
in flight, then it is done. It is sent at once if possible, else when a slot becomes free, a worker advertises credits,
or the connection is back. All these are callbacks on the event loop. Only a request for which the connection has no
slot (the broker has not acknowledged earlier messages) gets a task, which waits for one. The newest waiting request is
sent first.

A request may be sent several times, always with the same id and correlation: to another worker if the chosen one ends,
and again after the connection broke. The first good reply ends it; later replies are counted and dropped. Its deadline
ends it without a reply. It fails at once if no slot will be free in time (``slot_forecast``), or if MAX_DEATHS workers
have ended while they had it: then the sample is the likely cause, and its caller has its own answer sooner.

Bounded are the requests in flight (``window``), those that wait (``waiters``), and the bytes that the broker has not
acknowledged (``CongestionWindow``). While the next tier is down, the circuit breaker refuses all requests but one, the
probe. ``abandon`` ends all requests, present and later ones.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from halimede.bus import Bus, Delivery
from halimede.bus.acked_publisher import UNWRITABLE
from halimede.bus.message import FAILURE, NO_SUBSCRIBER, REASONS, Packet
from halimede.errors import BusError, DisconnectedError, RefusedError, TooLargeError
from halimede.log import RateLimitedLogger
from halimede.messages import Frame, Load, Reply
from halimede.offload.channel import Channel
from halimede.offload.errors import OVERLOAD, OffloadError, OffloadReason
from halimede.offload.limits import CircuitBreaker, CongestionWindow, State
from halimede.offload.load_balancer import MAX_WORKERS, LoadBalancer
from halimede.offload.slot_forecast import RequestRate
from halimede.system.lru import LruCache
from halimede.topic import Address, Filter
from halimede.tracing import FrameRecord, write
from halimede.tracing.steps import REQUEST, WINDOW

#: errors in replies after which another worker may answer
BUSY, EXPIRED = "overloaded", "expired"
#: workers that may end while they have a sample; after that it is sent to no further worker
MAX_DEATHS = 2
#: seconds until a sample is sent again after a failed publish
RETRY_PAUSE_S = 0.05
#: correlations of completed requests that are remembered, to distinguish a late reply from a forged one
MAX_REMEMBERED = 4096
#: most attempts of one sample in its trace
TRACED_ATTEMPTS = 16
#: the data of a frame whose data are sent apart from its other fields
NO_DATA = memoryview(b"")
#: errors of a publish: of the bus, and of values that cannot be encoded, because a model's may be of any type
UNPUBLISHED = (BusError, *UNWRITABLE)


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One sample from its request to its reply.

    Attributes:
        frame: the sample.
        trace: records its steps; None: it is not traced.
        began: the time of the event loop in seconds when it was made.
        until: its deadline, in the time of the event loop.
        answer: the reply, or an OffloadError.
        correlation: the random bytes by which its reply is recognised.
        deadline: the timer that expires it.
        worker: the worker that has it while it is in flight; empty: not in flight, or any worker, by the shared topic.
        sent_to: all workers that it was sent to; empty text for the shared topic.
        deaths: how many of these workers ended while they had it.
        sent: some worker has had it.
        in_flight: it occupies a slot, until its reply or the end of its attempt.
        unacknowledged: the broker has not acknowledged the attempt in flight.
        lacks: what it waits for, which is the reason to report when its deadline is over.
        published: the attempt in flight: the broker's acknowledgement, or the task that waits to send it.
        attempts: number of attempts that have ended.
        attempt_began: monotonic time in seconds at which the attempt in flight began.
        waits_since: monotonic time in seconds since which it waits.

    """

    frame: Frame
    trace: FrameRecord | None
    began: float
    until: float
    answer: asyncio.Future[Reply]
    correlation: bytes = field(default_factory=partial(secrets.token_bytes, 16))
    deadline: asyncio.TimerHandle | None = None
    worker: str = ""
    sent_to: set[str] = field(default_factory=set)
    deaths: int = 0
    sent: bool = False
    in_flight: bool = False
    unacknowledged: bool = False
    lacks: OffloadReason = OffloadReason.DEADLINE
    published: asyncio.Future[int] | asyncio.Task[None] | None = None
    attempts: int = 0
    attempt_began: float = 0.0
    waits_since: float = 0.0


class OffloadClient:
    """Requests answers from the workers on a channel, for one worker. Call ``start`` once before ``ask``.

    ``window``: most requests in flight. ``waiters``: most that wait for a slot. ``credits_``: knows the workers' loads
    and selects one; None: a new one. ``circuit``: None: a new one.

    Attributes:
        circuit: refuses requests while the next tier is down.
        late: number of replies to requests whose caller had given up.
        repeated: number of replies to answered requests.
        unknown: number of replies to no request, or from a worker that was not asked.

    """

    def __init__(
        self,
        bus: Bus,
        channel: Channel,
        *,
        window: int = 32,
        waiters: int = 48,
        credits_: LoadBalancer | None = None,
        circuit: CircuitBreaker | None = None,
    ) -> None:
        self.circuit = circuit or CircuitBreaker()
        self.late = self.repeated = self.unknown = 0
        self._bus = bus
        self._channel = channel
        self._service, self._worker, self._reply_to = channel.service, channel.worker, channel.answers
        self._credits = credits_ or LoadBalancer()
        self._congestion = CongestionWindow()
        self._window = window
        self._waiters = waiters
        self._in_flight = 0
        #: requests so far, and their rate
        self._requests = 0
        self._request_rate = RequestRate()
        self._pending: dict[bytes, PendingRequest] = {}
        #: requests that wait for a slot or credits, in the order of arrival
        self._waiting: dict[PendingRequest, None] = {}
        #: completed requests, and whether they were answered
        self._done: LruCache[bytes, bool] = LruCache(MAX_REMEMBERED)
        self._addresses: dict[str, Address[Frame]] = {}
        self._limited_log = RateLimitedLogger()
        self._abandoned = False
        #: workers that announced that they stop, until they end
        self._leaving: set[str] = set()
        #: whether a request needs a worker that advertises, because the broker does not report that a request has no
        #: subscriber; None: not known yet
        self._needs_advertisement: bool | None = None

    def credits_left(self) -> dict[str, int]:
        """Return the known credits of each online worker of the next tier, by its name."""
        return self._credits.credits_by_worker(asyncio.get_running_loop().time())

    async def start(self) -> None:
        """Subscribe to replies and, if the channel has one, to the load topic; wait for the first subscription."""
        self._bus.on_connect(self._reconnected)
        await self._bus.subscribe_now(Filter(self._reply_to.topic, self._reply_to.text), self._replied)
        if loads := self._channel.loads:
            await self._bus.subscribe(loads, self._load_received, cleared=self._load_cleared)

    async def ask(self, frame: Frame, deadline_s: float, trace: FrameRecord | None = None) -> Reply:
        """Return the next tier's reply to a frame; its ``prediction`` is set. Raises OffloadError with a reason.

        Waits at most ``deadline_s`` seconds. ``trace`` records the steps of the request. The error tells whether the
        frame was uploaded (``sent``), whether too many workers ended while they had it (``fatal``), and whether a
        worker is online (``is_up``).
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._abandoned:
            raise OffloadError(OffloadReason.DEADLINE, "the worker is stopping")
        if deadline_s <= 0:
            raise OffloadError(OffloadReason.DEADLINE, "no time is left for the request")
        if not self.circuit.admit(now):
            refusal = OffloadError(OffloadReason.CIRCUIT_OPEN)
            refusal.is_up = self._credits.is_up(now)
            raise refusal
        probe = self.circuit.state is State.HALF_OPEN
        request = PendingRequest(frame, trace, now, now + deadline_s, loop.create_future())
        self._requests += 1
        self._pending[request.correlation] = request
        request.deadline = loop.call_at(request.until, self._expire, request)
        self._dispatch(request)
        try:
            reply = await request.answer
        except BaseException as failure:
            self._close(request, probe=probe, answered=False)
            if isinstance(failure, OffloadError):
                failure.sent, failure.fatal = request.sent, request.deaths >= MAX_DEATHS
                failure.is_up = self._credits.is_up(loop.time())
            del request  # its future holds the failure, and its traceback this frame: the sample would leak
            raise
        self._close(request, probe=probe, answered=True)
        if reply.prediction is None:
            raise _refusal(request, reply)
        return reply

    def _close(self, request: PendingRequest, *, probe: bool, answered: bool) -> None:
        """Remove a request that is answered or no longer awaited. ``probe``: it was the circuit's probe."""
        if request.deadline:
            request.deadline.cancel()
        del self._pending[request.correlation]
        self._done.put(request.correlation, answered)
        if request in self._waiting:
            del self._waiting[request]
            self._trace_wait(request)
        if request.in_flight:  # its caller was cancelled
            self._give_up(request)
        if not (answered or request.answer.cancelled()):
            request.answer.exception()  # mark the error as read: the caller was cancelled
        if probe:
            self.circuit.abandoned(asyncio.get_running_loop().time())

    def abandon(self) -> None:
        """Expire all requests, present and later ones: a stopping worker answers with its own predictions."""
        self._abandoned = True
        for request in [*self._waiting, *self._pending.values()]:  # waiting ones must not be sent any more
            self._expire(request)

    # --- one request ----------------------------------------------------------------------------------------------

    def _dispatch(self, request: PendingRequest) -> None:
        """Send a request to a worker with a free credit, or queue it until there is one, or fail it."""
        if request.answer.done() or request.in_flight or request in self._waiting:
            return
        if request.deaths >= MAX_DEATHS:
            error = OffloadError(OffloadReason.ERROR, f"{request.deaths} cloud workers ended while they had it")
            request.answer.set_exception(error)
        elif not self._try_to_send(request):
            if len(self._waiting) >= self._waiters:
                request.answer.set_exception(OffloadError(request.lacks, "too many samples wait already"))
                return
            request.waits_since = time.monotonic()
            self._waiting[request] = None
            if request.lacks in OVERLOAD:
                self._shed_hopeless()

    def _try_to_send(self, request: PendingRequest) -> bool:
        """Send a request, or fail it; return False if it must wait, because there is no free slot or no worker."""
        now = asyncio.get_running_loop().time()
        if not self._bus.connected:
            request.lacks = OffloadReason.NO_CLOUD
        elif not self._congestion.has_capacity(len(request.frame.data), self._bus.owed):
            request.answer.set_exception(OffloadError(OffloadReason.TOO_SLOW, "the way to the broker is full"))
            return True
        elif self._in_flight >= self._window:
            request.lacks = OffloadReason.WINDOW_FULL
        elif worker := self._credits.pick(now):
            self._send(request, worker, now)
            return True
        elif self._credits.is_up(now):
            request.lacks = OffloadReason.SHED
        elif self._channel.anybody and self._needs_advertisement and self.circuit.state is not State.HALF_OPEN:
            self.circuit.nobody(now)
            request.answer.set_exception(OffloadError(OffloadReason.NO_CLOUD, "no cloud worker advertises its load"))
            return True
        elif self._channel.anybody:
            self._send(request, "", now)
            return True
        else:
            request.lacks = OffloadReason.NO_CLOUD
        return False

    def _send(self, request: PendingRequest, worker: str, now: float) -> None:
        """Publish a request with its remaining time, to a worker, or with an empty name to any."""
        request.worker, request.lacks = worker, OffloadReason.DEADLINE
        request.in_flight = request.unacknowledged = True
        request.sent_to.add(worker)
        request.attempt_began = time.monotonic()
        self._credits.record_sent(worker)
        self._in_flight += 1
        left_s = max(request.until - now, 0.001)
        frame = request.frame
        body = replace(frame, service=self._service, worker=self._worker, deadline_ms=left_s * 1000, data=NO_DATA)
        trace = request.trace
        try:
            published = self._bus.publish_now(
                self._address(worker),
                body,
                tail=frame.data,
                reply_to=self._reply_to,
                correlation=request.correlation,
                expiry_s=math.ceil(left_s),
                properties=write(trace.request_context()) if trace and trace.must_travel else None,
            )
        except UNPUBLISHED as error:
            self._not_published(request, error)
            return
        if published is None:
            request.published = asyncio.create_task(self._send_later(request, left_s), name="offload")
        else:
            request.published = published
            published.add_done_callback(partial(self._acknowledged, request))

    async def _send_later(self, request: PendingRequest, left_s: float) -> None:
        """Publish a request as soon as the connection has a slot for it; the request's deadline ends the wait.

        ``left_s``: the seconds that were left when the wait began. The message has them as its deadline, so the worker
        may answer later than the deadline by the time of the wait.
        """
        trace = request.trace
        body = replace(request.frame, service=self._service, worker=self._worker, deadline_ms=left_s * 1000)
        try:
            has_subscriber = await self._bus.publish(
                self._address(request.worker),
                body,
                reply_to=self._reply_to,
                correlation=request.correlation,
                expiry_s=math.ceil(left_s),
                properties=write(trace.request_context()) if trace and trace.must_travel else None,
                timeout_s=left_s,
            )
        except UNPUBLISHED as error:
            self._not_published(request, error)
        else:
            self._published(request, has_subscriber=has_subscriber)

    def _address(self, worker: str) -> Address[Frame]:
        """Return the request topic of a worker, empty: of any worker. It is kept, so that names are checked once."""
        address = self._addresses.get(worker)
        if address is None:
            address = self._channel.to(worker)
            assert address is not None  # noqa: S101  # the caller has checked that the worker has a topic
            if len(self._addresses) >= MAX_WORKERS:
                self._addresses.clear()
            self._addresses[worker] = address
        return address

    def _acknowledged(self, request: PendingRequest, published: asyncio.Future[int]) -> None:
        """Handle the broker's acknowledgement of a request, or the end of the connection."""
        if request.published is not published:
            return  # that attempt has ended
        error: BaseException | None = published.exception()
        if error is None and (reason := published.result()) >= FAILURE:
            error = RefusedError(self._address(request.worker).text, reason, REASONS.get(reason, "refused"))
        if error is None:
            self._published(request, has_subscriber=reason != NO_SUBSCRIBER)
        else:
            self._not_published(request, error)

    def _published(self, request: PendingRequest, *, has_subscriber: bool) -> None:
        """Record that the broker has a request; without a subscriber, send it to another worker."""
        request.unacknowledged = False
        self._congestion.carried(len(request.frame.data))
        if has_subscriber:
            request.sent = True
            if not request.worker and self._needs_advertisement is None:
                self._try_absence()
            return
        self._needs_advertisement = False
        if request.worker:
            self._credits.remove(request.worker)
            self._end_attempt(request)
            self._dispatch(request)
        else:
            self.circuit.nobody(asyncio.get_running_loop().time())
            self._fail(request, OffloadError(OffloadReason.NO_CLOUD, "no cloud worker listens"))

    def _not_published(self, request: PendingRequest, error: BaseException) -> None:
        """Retry a request whose connection broke; fail one that cannot be encoded, or that the broker refuses."""
        if isinstance(error, DisconnectedError):
            self._end_attempt(request)
            # the connection's end may be seen here before ``connected`` changes
            asyncio.get_running_loop().call_later(RETRY_PAUSE_S, self._dispatch, request)
            return
        reason = OffloadReason.TOO_LARGE if isinstance(error, TooLargeError) else OffloadReason.ERROR
        failure = OffloadError(reason, str(error))
        failure.__cause__ = error
        self._fail(request, failure)

    def _fail(self, request: PendingRequest, error: OffloadError) -> None:
        """End a request in flight without an answer."""
        if not request.answer.done():  # its caller may have been cancelled in this iteration of the event loop
            request.answer.set_exception(error)  # before others are sent: this one must not be sent again
        self._end_attempt(request)

    def _end_attempt(self, request: PendingRequest) -> None:
        """Free the slot and the credit of an attempt without a reply."""
        self._credits.record_answer(request.worker)
        self._leave_window(request, answered=False)

    def _give_up(self, request: PendingRequest) -> None:
        """Free the slot of an attempt without a reply. Its worker may still compute it, so its credit stays taken."""
        self._credits.record_silence(request.worker, request.began)
        if request.unacknowledged and asyncio.get_running_loop().time() >= request.until:
            self._congestion.late(len(request.frame.data), self._bus.owed)
        self._leave_window(request, answered=False)

    def _leave_window(self, request: PendingRequest, *, answered: bool) -> None:
        """End the attempt in flight and give its slot to a waiting request. ``answered``: as traces show it."""
        published, request.published = request.published, None
        if isinstance(published, asyncio.Task) and published is not asyncio.current_task():
            published.cancel()
        request.attempts += 1
        if request.trace and request.attempts <= TRACED_ATTEMPTS:
            request.trace.step(
                (REQUEST, request.attempt_began, time.monotonic(), request.worker or "any", request.attempts, answered)
            )
        request.in_flight = False
        request.worker = ""
        self._in_flight -= 1
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        """Try to send waiting requests, the newest first, until one must keep waiting.

        Under overload the oldest request is the one that the queue has already delayed beyond its deadline.
        """
        while self._waiting:
            request = next(reversed(self._waiting))
            del self._waiting[request]
            if not request.answer.done() and not self._try_to_send(request):
                self._waiting[request] = None  # it is the newest of the remaining ones
                for other in self._waiting:
                    other.lacks = request.lacks
                if request.lacks in OVERLOAD:
                    self._shed_hopeless()
                return
            self._trace_wait(request)

    def _shed_hopeless(self) -> None:
        """Fail the waiting requests for which no slot will be free in time."""
        now = asyncio.get_running_loop().time()
        forecast = self._credits.forecast(now)
        if forecast is None:
            return
        newest_first = [request for request in reversed(self._waiting) if not request.answer.done()]
        lefts_s = [request.until - now for request in newest_first]
        rate = self._request_rate.read(self._requests, now)
        for request, hopeless in zip(newest_first, forecast.hopeless(lefts_s, rate), strict=True):
            if hopeless:
                request.answer.set_exception(OffloadError(request.lacks, "no slot will be free in time"))

    def _trace_wait(self, request: PendingRequest) -> None:
        """Record in the trace that a request has stopped waiting."""
        if request.trace and request.attempts < TRACED_ATTEMPTS:
            request.trace.step((WINDOW, request.waits_since, time.monotonic(), str(request.lacks)))

    def _expire(self, request: PendingRequest) -> None:
        """End a request whose deadline is over."""
        if request.answer.done():
            return
        now = asyncio.get_running_loop().time()
        if request.in_flight:
            self._give_up(request)
        # a busy next tier or a full window does not mean that it is down
        if request.lacks in {OffloadReason.DEADLINE, OffloadReason.NO_CLOUD}:
            self.circuit.timed_out(now, request.began)
        request.answer.set_exception(OffloadError(request.lacks, "no time left"))

    def _try_absence(self) -> None:
        """Find out whether the broker reports that a message has no subscriber, by a message that can have none.

        Called when the broker has acknowledged a request on the shared topic while no worker advertises. If it does not
        report missing subscribers, further requests need a worker that advertises, except for the circuit's probes.
        """
        topic = self._channel.request.at(**self._channel.names, worker=f"nobody-{secrets.token_hex(8)}").text
        published = self._bus.post(Packet(topic, b"", expiry_s=1))
        if published is not None:
            self._needs_advertisement = False  # one try
            published.add_done_callback(self._absence_tried)

    def _absence_tried(self, published: asyncio.Future[int]) -> None:
        """Record the broker's acknowledgement of a message that no worker can have subscribed to."""
        if not published.cancelled() and published.exception() is None and published.result() < FAILURE:
            self._needs_advertisement = published.result() != NO_SUBSCRIBER

    # --- messages from the bus ------------------------------------------------------------------------------------

    def _replied(self, delivery: Delivery[Reply]) -> None:
        """Match a reply to its request, or count it as unknown.

        A reply is accepted if it has the request's correlation and id, and comes from a worker that received the
        request.
        """
        reply, correlation = delivery.body, delivery.packet.correlation
        request = self._pending.get(correlation)
        if request is None:
            answered = self._done.get(correlation)
            if answered is None:
                self._disbelieve("reply to nothing that was asked", reply)
            elif answered:
                self.repeated += 1
            else:
                self.late += 1
        elif reply.id != request.frame.id:
            self._disbelieve("reply with another sample's id", reply)
        elif "" not in request.sent_to and reply.worker not in request.sent_to:
            self._disbelieve("reply of a worker that was not asked", reply)
        elif request.answer.done():
            self.repeated += 1
        elif reply.prediction is None and not (request.in_flight and request.worker in {"", reply.worker}):
            self.repeated += 1  # a refusal by a worker that no longer has the sample
        else:
            self._accept(request, reply)

    def _accept(self, request: PendingRequest, reply: Reply) -> None:
        """Complete a request, or send it to another worker if this one has no capacity."""
        now = asyncio.get_running_loop().time()
        worker = request.worker
        if request.in_flight:
            request.sent = True
            self._credits.record_answer(worker, now)
            if not worker and not self._credits.is_up(now):
                self._needs_advertisement = False  # this worker never advertises
            if reply.error == BUSY:
                self._credits.record_refusal(worker)  # before its slot is given to another sample
            self._leave_window(request, answered=True)
        self.circuit.succeeded(now)
        if reply.error != BUSY:
            request.answer.set_result(reply)
        elif not worker:
            request.answer.set_exception(OffloadError(OffloadReason.SHED, "the cloud is busy"))
        else:
            self._dispatch(request)

    def _disbelieve(self, event: str, reply: Reply) -> None:
        """Count a reply as unknown, and log it."""
        self.unknown += 1
        self._limited_log.warning(event, worker=reply.worker)

    async def _load_received(self, delivery: Delivery[Load]) -> None:
        """Record an advertised load, unless it is of another tier."""
        if delivery.body.tier == self._channel.tier:
            self.advertised(delivery.names["worker"], delivery.body)

    async def _load_cleared(self, names: Mapping[str, str]) -> None:
        """Handle the end of a worker, whose advertised load is cleared by itself or by the broker."""
        self.gone(names["worker"])

    def advertised(self, worker: str, load: Load) -> None:
        """Record a worker's advertised load, and send waiting requests to it."""
        if load.leaving:
            self._leaving.add(worker)
            self._credits.remove(worker)
            return
        self._leaving.discard(worker)
        if self._credits.update(worker, load, asyncio.get_running_loop().time()):
            self.circuit.succeeded()
        self._wake()

    def gone(self, worker: str) -> None:
        """Handle the end of a worker: send the requests that it had, or may have had by the shared topic, to others."""
        self._credits.remove(worker)
        blamed: set[str] = set()
        if worker in self._leaving:
            self._leaving.discard(worker)
        else:
            blamed.add(worker)
            if not self._credits.is_up(asyncio.get_running_loop().time()):
                blamed.add("")  # with other workers online, the receiver of a request on the shared topic is unknown
        lost = [request for request in self._pending.values() if request.in_flight and request.worker in {worker, ""}]
        for request in lost:
            request.deaths += request.worker in blamed
        self._send_again(lost)

    async def _reconnected(self) -> None:
        """Send requests in flight again after a reconnect: their workers remember the replies that were lost."""
        self.circuit.reconsider()
        self._send_again([request for request in self._pending.values() if request.in_flight])

    def _send_again(self, requests: Sequence[PendingRequest]) -> None:
        """End attempts without a reply, and send their requests to available workers."""
        for request in requests:
            if request.in_flight:
                self._end_attempt(request)
                self._dispatch(request)
        self._wake()


def _refusal(request: PendingRequest, reply: Reply) -> OffloadError:
    """Return the error for a reply that has no prediction."""
    reason = OffloadReason.DEADLINE if reply.error == EXPIRED else OffloadReason.ERROR
    error = OffloadError(reason, f"{reply.error or 'no prediction'}: {reply.message}")
    error.sent, error.fatal = request.sent, request.deaths >= MAX_DEATHS
    return error
