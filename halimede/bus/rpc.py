"""Request and reply over topics (MQTT v5 response topic and correlation data): ``RpcClient`` and ``RpcServer``.

A ticket is the correlation data of a request, which its replies repeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import structlog

from halimede.bus.message import Delivery
from halimede.bus.port import PUBLISH_TIMEOUT, Bus
from halimede.errors import BusError, InvalidFieldError, NoSubscriberError, RefusedError, TooLargeError
from halimede.topic import Address, Filter, Topic

Q = TypeVar("Q")
R = TypeVar("R")
log = structlog.get_logger()

#: most requests that wait for a server
QUEUE = 32


def new_ticket() -> bytes:
    """Return random correlation data (16 bytes) for a request."""
    return secrets.token_bytes(16)


def accepts_all(_: Delivery[Any]) -> bool:
    """Accept each reply: the default of ``accepts``."""
    return True


class PendingReplies(Generic[R]):
    """The replies to one request that the caller has not read yet: at most ``most``, of those that it ``accepts``.

    ``ticket``: the request's correlation data. The caller awaits ``queue.get()``.
    """

    def __init__(self, ticket: bytes, accepts: Callable[[Delivery[R]], bool], most: int) -> None:
        self.ticket = ticket
        self.accepts = accepts
        self.queue: asyncio.Queue[Delivery[R]] = asyncio.Queue(most)


class RpcClient(Generic[R]):
    """Concurrent requests over one reply topic. Replies without a waiting request are counted and dropped.

    ``replies`` may be a filter if the requests' topics define where replies go: then requests have no response topic.
    ``queue``: most replies that wait in the subscription.

    Attributes:
        bus: the connection; the caller enters it.
        reply: the response topic of requests; None: they have none.
        late: number of replies that no request waited for: late, replayed or forged, or more than it takes.

    """

    def __init__(self, bus: Bus, replies: Address[R] | Filter[R], *, queue: int = 1000) -> None:
        self.bus = bus
        self.reply = replies if isinstance(replies, Address) else None
        self.late = 0
        self._filter = Filter(replies.topic, replies.text)
        self._queue = queue
        self._pending: dict[bytes, PendingReplies[R]] = {}

    async def start(self) -> None:
        """Subscribe to the reply topic: before the first request. Raises RefusedError."""
        await self.bus.subscribe(self._filter, self._pass_reply, queue=self._queue)

    async def ask(
        self,
        address: Address[Q],
        body: Q,
        *,
        timeout_s: float,
        qos: int | None = None,
        properties: Mapping[str, str] | None = None,
        ticket: bytes = b"",
    ) -> Delivery[R]:
        """Send a request and return its reply, within ``timeout_s`` seconds.

        ``qos``, ``properties``: as of ``Bus.publish``. ``ticket``, from ``new_ticket``, is for a repeated request: the
        server recognises it, and does not process a request in progress twice. Empty: a new one.

        Raises NoSubscriberError at once if the broker reports no subscriber, TimeoutError at the deadline, and the
        errors of ``Bus.publish``.
        """
        with self.expect_replies(ticket=ticket) as pending:
            async with asyncio.timeout(timeout_s):
                expiry_s = int(timeout_s) + 1
                if not await self.send(
                    address, body, pending, qos=qos, expiry_s=expiry_s, properties=properties, timeout_s=timeout_s
                ):
                    raise NoSubscriberError(f"nobody listens on {address}")
                return await pending.queue.get()

    async def gather(
        self,
        address: Address[Q],
        body: Q,
        *,
        first_s: float,
        quiet_s: float,
        longest_s: float,
        most: int,
        expiry_s: int | None = None,
        accepts: Callable[[Delivery[R]], bool] = accepts_all,
    ) -> AsyncIterator[Delivery[R]]:
        """Send a request to all subscribers, and yield at most ``most`` replies that it ``accepts``, as they arrive.

        Ends after ``first_s`` seconds without any reply, ``quiet_s`` seconds without another reply, and ``longest_s``
        seconds in any case. ``expiry_s``: as of ``Bus.publish``. Raises NoSubscriberError if the broker reports no
        subscriber, and the errors of ``Bus.publish``.
        """
        loop = asyncio.get_running_loop()
        with self.expect_replies(most, accepts) as pending:
            until = loop.time() + longest_s
            if not await self.send(address, body, pending, expiry_s=expiry_s):
                raise NoSubscriberError(f"nobody listens on {address}")
            patience = first_s
            for _ in range(most):
                try:
                    async with asyncio.timeout(min(patience, until - loop.time())):
                        reply = await pending.queue.get()
                except TimeoutError:
                    return
                patience = quiet_s
                yield reply

    @contextlib.contextmanager
    def expect_replies(
        self, most: int = 1, accepts: Callable[[Delivery[R]], bool] = accepts_all, *, ticket: bytes = b""
    ) -> Iterator[PendingReplies[R]]:
        """Receive the replies to one request until the block ends; ``send`` sends the request.

        ``most``: replies that may wait to be read; further ones are counted as late. ``accepts``: which replies count.
        ``ticket``: as of ``ask``.
        """
        pending = PendingReplies(ticket or new_ticket(), accepts, most)
        self._pending[pending.ticket] = pending
        try:
            yield pending
        finally:
            del self._pending[pending.ticket]

    async def send(
        self,
        address: Address[Q],
        body: Q,
        pending: PendingReplies[R],
        *,
        qos: int | None = None,
        expiry_s: int | None = None,
        properties: Mapping[str, str] | None = None,
        timeout_s: float = PUBLISH_TIMEOUT,
    ) -> bool:
        """Publish a request; return whether there is a subscriber. ``pending``: of ``expect_replies``.

        ``Bus.publish`` describes the other parameters and the errors.
        """
        return await self.bus.publish(
            address,
            body,
            qos=qos,
            reply_to=self.reply,
            correlation=pending.ticket,
            expiry_s=expiry_s,
            properties=properties,
            timeout_s=timeout_s,
        )

    async def _pass_reply(self, delivery: Delivery[Any]) -> None:
        """Pass a reply to the caller that waits for it, or count it."""
        pending = self._pending.get(delivery.packet.correlation)
        if pending is None or pending.queue.full():
            self.late += 1
        elif pending.accepts(delivery):
            pending.queue.put_nowait(delivery)


class RpcServer(Generic[Q, R]):
    """Replies to requests, each on the reply topic of the client that its topic names.

    Args:
        bus: the connection; the caller enters it.
        requests: the filter of the requests.
        replies: the topic of the replies.
        answer: makes the reply to a request; None: send none.
        too_large: makes the substitute for a reply that does not fit into a message; None: no reply is sent, and the
            request becomes a dead letter.
        optional: if the broker refuses the subscription, there are no replies, and the process continues.
        queue: most requests that wait; more of QoS 0 are dropped.
        timeout_s: seconds that sending a reply may take.

    """

    def __init__(
        self,
        bus: Bus,
        requests: Filter[Q],
        replies: Topic[R],
        answer: Callable[[Delivery[Q]], Awaitable[R | None]],
        *,
        too_large: Callable[[TooLargeError], R] | None = None,
        optional: bool = False,
        queue: int = QUEUE,
        timeout_s: float = PUBLISH_TIMEOUT,
    ) -> None:
        self._bus = bus
        self._requests = requests
        self._replies = replies
        self._make_reply = answer
        self._too_large = too_large
        self._optional = optional
        self._queue = queue
        self._timeout_s = timeout_s

    async def start(self) -> None:
        """Subscribe to the requests. Raises RefusedError if the broker refuses; if ``optional``, logs it instead."""
        try:
            await self._bus.subscribe(self._requests, self._answer_request, queue=self._queue)
        except RefusedError as error:
            if not self._optional:
                raise
            log.warning("requests not subscribed", filter=self._requests.text, error=str(error))

    async def _answer_request(self, delivery: Delivery[Q]) -> None:
        """Answer one request. Raises InvalidFieldError for one whose reply would go to another topic."""
        address = self._replies.at(client=delivery.names["client"])
        if delivery.packet.response_topic != address.text:
            raise InvalidFieldError("response topic", delivery.packet.response_topic, f"use {address}")
        reply = await self._make_reply(delivery)
        try:
            if reply is not None:
                await self._send(address, reply, delivery.packet.correlation)
        except BusError as error:  # the client repeats the request
            log.info("reply not sent", to=address.text, error=str(error))

    async def _send(self, address: Address[R], reply: R, correlation: bytes) -> None:
        """Send a reply, or its substitute if it is too large.

        Raises BusError, and TooLargeError if there is no substitute.
        """
        try:
            await self._bus.publish(address, reply, correlation=correlation, timeout_s=self._timeout_s)
        except TooLargeError as error:
            if self._too_large is None:
                raise
            await self._bus.publish(address, self._too_large(error), correlation=correlation)
