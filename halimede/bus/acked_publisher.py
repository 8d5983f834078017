"""Publishes at QoS 1 without waiting for each acknowledgement, and reports the outcome of each message once.

Each message has one of two ways. If the connection has a free slot, ``put`` sends the message at once, and the broker's
acknowledgement or one timer for all messages ends its flight. A message that cannot be sent at once, or is to be sent
again, has its own task. The task waits for a slot, for its acknowledgement, and after an error for the end of a
back-off or the next connection. At most ``limit`` messages are on their way; each one that ends lets the first of the
queue go.

Nobody waits for a message: ``done`` gets its outcome. Callers wait for the publisher, in ``wait_ready``, as soon as
``limit`` and ``capacity`` are used up; only that bounds the queue. Each acknowledgement has ``timeout_s`` seconds.
Without ``retry`` a message ends after one attempt; with ``retry`` it ends when the broker acknowledges it, or if it
cannot be encoded. ``drain`` waits until its deadline for all messages to end. Cancelling ``run`` ends all tasks, and no
``done`` is called after it.

The fate of an unacknowledged message is unknown: if it is sent again, it may arrive twice. With ``retry``, messages
that had subscribers before a reconnect and have none after it are sent again for some seconds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import structlog

from halimede.bus.message import FAILURE, NO_SUBSCRIBER, SUCCESS
from halimede.bus.port import Bus
from halimede.bus.subscriber_return import SubscriberReturn
from halimede.errors import BusError, RefusedError, TooLargeError
from halimede.system.backoff import exponential
from halimede.topic import Address

M = TypeVar("M")
log = structlog.get_logger()

#: seconds before a message is sent again: the first pause, and the longest
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 5.0
#: seconds for which a message waits after a reconnect for the subscribers that were there before it
RETURN_S = 10.0
#: a message that waits for subscribers pauses between two attempts as after so many failures
RETURN_FAILURES = 2
#: errors of a body that cannot be encoded: its values come from users' models
UNWRITABLE = (TooLargeError, TypeError, ValueError, OverflowError, RecursionError)

#: called once with the outcome of a message: the broker's reason code; FAILURE or more: it was not delivered
Done = Callable[[int], None]


def ignore(_: int) -> None:
    """Do nothing: the ``done`` of messages whose receiver requests a missing one again."""


@dataclass(slots=True, eq=False)
class OutgoingMessage(Generic[M]):
    """A message and the callback ``done`` for its outcome.

    ``properties``: its user properties; None: it has none. ``correlation``: its correlation data; empty: it has none.
    ``expires``: the loop time at which a message that was sent at once counts as not acknowledged.
    """

    address: Address[M]
    body: M
    done: Done
    properties: Mapping[str, str] | None
    correlation: bytes
    expires: float = field(init=False)


class AckedPublisher(Generic[M]):
    """Publishes messages of one kind. ``run`` until cancelled; ``drain`` before that.

    Args:
        bus: the connection; the caller enters it.
        kind: the kind of messages, for the log.
        limit: most messages on their way.
        capacity: most messages that may wait in addition before ``ready`` is false.
        timeout_s: seconds that an acknowledgement may take.
        retry: whether a message is sent again until the broker acknowledges it, and after a reconnect for ``RETURN_S``
            until it has a subscriber; otherwise it is sent once.
        substitute: returns a replacement for a body that cannot be encoded with this error; None: send nothing.

    """

    def __init__(
        self,
        bus: Bus,
        kind: str,
        *,
        limit: int,
        capacity: int,
        timeout_s: float,
        retry: bool,
        substitute: Callable[[M, Exception], M | None],
    ) -> None:
        self._bus = bus
        self._kind = kind
        self._limit = limit
        self._capacity = capacity
        self._timeout_s = timeout_s
        self._retry = retry
        self._substitute = substitute
        self._waiting: deque[OutgoingMessage[M]] = deque()
        #: messages that were sent at once, in order, by their acknowledgements; and the tasks of the others
        self._in_flight: dict[asyncio.Future[int], OutgoingMessage[M]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._group: asyncio.TaskGroup | None = None
        self._changed = asyncio.Event()
        self._reconnected = asyncio.Event()
        #: without ``retry`` no message waits for subscribers
        self._subscribers = SubscriberReturn(bus, RETURN_S if retry else 0.0, only_after_reconnect=True)

    @property
    def waiting(self) -> int:
        """The number of messages that wait for their first attempt."""
        return len(self._waiting)

    @property
    def pending(self) -> int:
        """The number of messages that have not ended yet: waiting, or on their way."""
        return len(self._waiting) + len(self._in_flight) + len(self._tasks)

    @property
    def immediate(self) -> bool:
        """Whether a message that is put now is sent at once, while ``run`` runs: none waits, and ``limit`` has room."""
        return not self._waiting and len(self._in_flight) + len(self._tasks) < self._limit

    @property
    def ready(self) -> bool:
        """Whether it has capacity for one more message, on its way or waiting."""
        return len(self._waiting) + len(self._in_flight) + len(self._tasks) < self._limit + self._capacity

    async def wait_ready(self) -> None:
        """Wait, without a deadline, until it has capacity for one more message."""
        while not self.ready:
            self._changed.clear()
            await self._changed.wait()

    async def run(self) -> None:
        """Publish until cancelled: call it once; messages that were put before wait for it."""
        self._bus.on_connect(self._end_pauses)
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                self._next()
                await asyncio.get_running_loop().create_future()
            finally:
                self._group = None  # the group accepts no more tasks
                self._in_flight.clear()
                if self._timer:
                    self._timer.cancel()

    def put(
        self,
        address: Address[M],
        body: M,
        done: Done = ignore,
        *,
        properties: Mapping[str, str] | None = None,
        correlation: bytes = b"",
    ) -> None:
        """Publish a body, at once if possible. Never waits; ``done`` is called once with the outcome.

        ``properties``: user properties; None: none. ``correlation``: correlation data; empty: none.
        """
        message = OutgoingMessage(address, body, done, properties, correlation)
        if self._waiting or self._group is None or len(self._in_flight) + len(self._tasks) >= self._limit:
            self._waiting.append(message)
        else:
            self._send(message, self._group)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until all messages have ended; return whether they did within ``timeout_s`` seconds.

        From now on no message waits for subscribers that may return.
        """
        self._subscribers.forget()
        try:
            async with asyncio.timeout(timeout_s):
                while self.pending:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _send(self, message: OutgoingMessage[M], group: asyncio.TaskGroup) -> None:
        """Publish a message now, or in a task of ``group``."""
        try:
            acknowledgement = self._bus.publish_now(
                message.address, message.body, correlation=message.correlation, properties=message.properties
            )
        except (BusError, *UNWRITABLE):
            acknowledgement = None  # the task gets the same error and handles it
        if acknowledgement is None:
            self._send_in_task(message, group)
            return
        message.expires = asyncio.get_running_loop().time() + self._timeout_s
        self._in_flight[acknowledgement] = message
        acknowledgement.add_done_callback(self._end_flight)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(message.expires, self._expire)

    def _end_flight(self, acknowledgement: asyncio.Future[int]) -> None:
        """Handle the broker's acknowledgement, or the end of the connection."""
        message = self._in_flight.pop(acknowledgement, None)
        if message is None:
            return  # it has expired before
        lost = acknowledgement.cancelled() or acknowledgement.exception()
        reason = FAILURE if lost else acknowledgement.result()
        if reason < FAILURE and not self._subscribers.must_resend(has_subscriber=reason != NO_SUBSCRIBER):
            message.done(reason)
        else:
            self._retry_or_give_up(message, str(lost or hex(reason)))
        self._changed.set()
        if self._waiting:
            self._next()

    def _expire(self) -> None:
        """Count messages without a timely acknowledgement as lost. Messages are in the order of their deadlines."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        expired = [key for key, message in self._in_flight.items() if message.expires <= now]
        messages = [self._in_flight.pop(key) for key in expired]
        oldest = next(iter(self._in_flight.values()), None)
        self._timer = loop.call_at(oldest.expires, self._expire) if oldest else None
        try:
            for message in messages:
                self._retry_or_give_up(message, f"no acknowledgement within {self._timeout_s:g} s")
        finally:
            self._changed.set()
            self._next()

    def _retry_or_give_up(self, message: OutgoingMessage[M], error: str) -> None:
        """Send a message again in a task; without ``retry``, log and report that it was not delivered."""
        if not self._retry:
            log.info("message not delivered", kind=self._kind, error=error)
            message.done(FAILURE)
        elif self._group:  # without a group sending has stopped: the message counts as lost
            self._send_in_task(message, self._group, failures=1)

    def _next(self) -> None:
        """Send waiting messages while there are free slots."""
        while self._waiting and self._group and len(self._in_flight) + len(self._tasks) < self._limit:
            self._send(self._waiting.popleft(), self._group)

    # --- messages that were not sent at once ---------------------------------------------------------------------

    def _send_in_task(self, message: OutgoingMessage[M], group: asyncio.TaskGroup, failures: int = 0) -> None:
        """Start the task that sends a message, at once or, after ``failures`` in a row, with a pause before."""
        task = group.create_task(self._send_until_acknowledged(message, failures), name=f"{self._kind} delivery")
        self._tasks.add(task)
        task.add_done_callback(self._end_task)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        """Handle the end of a task: the next message gets its slot."""
        self._tasks.discard(task)
        self._changed.set()
        self._next()

    async def _send_until_acknowledged(self, message: OutgoingMessage[M], failures: int) -> None:
        """Send a message until the broker acknowledges it, or once without ``retry``; then call its ``done``."""
        body: M | None = message.body
        while body is not None:
            if failures:
                await self._pause(exponential(failures, FIRST_PAUSE_S, LAST_PAUSE_S))
            failures += 1
            try:
                has_subscriber = await self._bus.publish(
                    message.address,
                    body,
                    correlation=message.correlation,
                    properties=message.properties,
                    timeout_s=self._timeout_s,
                )
            except UNWRITABLE as error:
                body, failures = self._substitute(body, error), 0
            except BusError as error:
                if not self._retry:
                    log.info("message not delivered", kind=self._kind, error=str(error))
                    break
                # an operator can correct a refusal; until then back-pressure stops the worker's sources
                level = log.warning if isinstance(error, RefusedError) else log.debug
                level("message waits for the broker", kind=self._kind, error=str(error))
            else:
                if not self._subscribers.must_resend(has_subscriber=has_subscriber):
                    message.done(SUCCESS if has_subscriber else NO_SUBSCRIBER)
                    return
                failures = RETURN_FAILURES
        message.done(FAILURE)

    async def _pause(self, seconds: float) -> None:
        """Wait until the pause is over or the broker is connected again."""
        try:
            async with asyncio.timeout(seconds):
                await self._reconnected.wait()
        except TimeoutError:
            return

    async def _end_pauses(self) -> None:
        """End the pauses of messages that wait to be sent again."""
        self._reconnected.set()
        self._reconnected = asyncio.Event()
