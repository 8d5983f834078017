"""The bus as the rest of the code sees it: typed publish and subscribe over an adapter that moves packets.

``Bus`` is the port; adapters implement ``send``, ``listen`` and the connection. Two rules hold for every adapter, and
the conformance suite checks them. A handled message is acknowledged only after its handler returned, or with ``later``
after its ``done``. Each subscription has its own queue and handles its messages in order, so that a slow handler does
not delay the messages of another subscription.

``receiver`` checks and decodes each message before its handler is called. A message that cannot be read, or whose
handler fails, is counted and refused (published as a dead letter for operators), and acknowledged like any other: a
redelivery would fail again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Generic, Self, TypeVar

import structlog

from halimede import codec, topics
from halimede.bus.message import (
    MAX_PROPERTIES,
    MAX_PROPERTY,
    NO_SUBSCRIBER,
    AcceptsNames,
    Announce,
    Announcement,
    BusStats,
    Cleared,
    Delivery,
    Grants,
    Handler,
    HandlerNow,
    Packet,
    Receive,
    ReceiveNow,
    check_reason,
)
from halimede.errors import BusError, DecodeError, InvalidFieldError, shorten_middle
from halimede.messages import DeadLetter
from halimede.topic import Address, Filter, Topic

M = TypeVar("M")
log = structlog.get_logger()
#: seconds that a publish waits for its acknowledgement
PUBLISH_TIMEOUT = 10.0
#: most dead letters of one client in a second
DEAD_LETTERS_PER_SECOND = 10
#: most refused subscriptions and births that are named
MOST_REFUSED = 20
#: node in the dead letters of clients that run on no node
NO_NODE = "none"
#: bytes of a refused message that its dead letter shows
HEAD_BYTES = 32
#: most topics whose names are cached for one subscription, and most characters of a cached topic
MOST_CACHED, LONGEST_CACHED = 4096, 512


class DeadLetterWriter:
    """Writes the dead letters of one client, at most ten a second, for its ``Bus`` to publish."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        #: times of recent letters, in seconds of the loop's clock
        self._recent: list[float] = []

    def write(self, packet: Packet, reason: str) -> DeadLetter | None:
        """Log a refused message and return its dead letter; above the rate limit do neither, and return None."""
        now = asyncio.get_running_loop().time()
        self._recent = [t for t in self._recent if now - t < 1]
        if len(self._recent) >= DEAD_LETTERS_PER_SECOND:
            return None  # only counted: a flood must not fill the log or its disk
        self._recent.append(now)
        log.warning(
            "message refused", topic=packet.topic[:256], reason=shorten_middle(reason, 4096), size=len(packet.payload)
        )
        return DeadLetter(
            client=self._client_id[:256],
            topic=packet.topic[:4096],
            reason=shorten_middle(reason, 4096),
            size=len(packet.payload),
            head=packet.payload[:HEAD_BYTES].hex(),
        )


class Bus(ABC):
    """A connection to the bus, kept up until the ``async with`` block ends.

    Entering does not wait for the broker: use ``wait_connected``. While disconnected, ``publish`` raises
    DisconnectedError at once; subscriptions are restored after a reconnect.
    """

    def __init__(self, client_id: str, announce: Announce | None = None) -> None:
        #: the client's name in logs, metrics and dead letters, and its client id unless it has a secret ``session_id``
        self.client_id = client_id
        #: the client id in its CONNECT: whoever knows this id can take the session over
        self.session_id = client_id
        #: the node of this client: the broker accepts its dead letters only under this name
        self.node = NO_NODE
        #: makes birth and will of each connection
        self.announce = announce or Announcement
        #: called before each attempt to connect, which would end the connection of another client with the same id:
        #: returns why there must be no attempt yet, empty if there may be one
        self.obstacle: Callable[[], str] = lambda: ""
        #: make only one connection; ``over`` is set when that connection has ended, or failed
        self.once = False
        self.over = asyncio.Event()
        #: whether the last connection resumed the session of an earlier one
        self.resumed = False
        #: counts of connections and messages
        self.stats = BusStats()
        #: limits of the last accepted connection
        self.grants = Grants()
        #: subscriptions and birth that the broker refused at the last connect, by filter or topic, with the reason
        self.refused: dict[str, str] = {}
        self._dead_letters = DeadLetterWriter(client_id)
        #: the newest dead letters without a connection
        self._unsent_dead_letters: deque[DeadLetter] = deque(maxlen=DEAD_LETTERS_PER_SECOND)
        self._hooks: list[Callable[[], Awaitable[None]]] = []

    @property
    def certificate_end(self) -> float | None:
        """The Unix time at which this client's or the broker's certificate ends, whichever is first; None: unknown."""
        return None

    # --- methods of adapters ----------------------------------------------------------------------------------

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Start connecting."""

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect, so that the broker publishes the will."""

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether the broker has accepted this client, so that it can publish."""

    @property
    def owed(self) -> int:
        """The number of bytes of publishes that the broker has not acknowledged yet."""
        return 0

    @property
    def unacknowledged(self) -> int:
        """The number of received messages that are acknowledged later, and are not yet."""
        return 0

    @property
    def oldest_s(self) -> float:
        """Seconds since the oldest unacknowledged message arrived; 0 without one."""
        return 0.0

    @property
    @abstractmethod
    def max_packet(self) -> int:
        """Most bytes in one packet to the broker."""

    @abstractmethod
    async def wait_connected(self, timeout_s: float) -> None:
        """Wait for the broker. Raises DisconnectedError with the last reason if it does not connect in time."""

    @abstractmethod
    async def send(self, packet: Packet, timeout_s: float = PUBLISH_TIMEOUT) -> int:
        """Send one packet and return the broker's reason code (0 for QoS 0), within ``timeout_s`` seconds.

        Raises DisconnectedError if the connection is down, or breaks or times out before the answer; TooLargeError over
        ``max_packet``, before anything is sent.
        """

    def post(self, packet: Packet) -> asyncio.Future[int] | None:  # noqa: ARG002  # adapters may do without
        """Send one packet now if that needs no wait; None: nothing was sent, use ``send``.

        The future returns what ``send`` returns, or raises DisconnectedError; the caller sets its deadline. Raises
        TooLargeError.
        """
        return None

    @abstractmethod
    async def listen(
        self,
        filter_: str,
        qos: int,
        receive: Receive | ReceiveNow,
        queue: int,
        *,
        later: bool = False,
        drop_oldest: bool = False,
        inherit: bool = False,
    ) -> None:
        """Subscribe, now and on every reconnect. At most ``queue`` messages of QoS 0 wait for ``receive``.

        The receive maximum bounds messages of QoS 1, not ``queue``. With a ``queue`` of 0 ``receive`` is a plain
        function (``ReceiveNow``), called when a message arrives. ``later``: a message is acknowledged by its ``done``,
        not when ``receive`` returns. ``drop_oldest``: a full queue drops and acknowledges its oldest message, also one
        of QoS 1. ``inherit``: no subscription is sent; messages of a session that another client began are handled.
        Raises RefusedError if the broker does not grant it, ValueError as ``subscribe``.
        """

    @abstractmethod
    async def unlisten(self, filter_: str) -> None:
        """End the subscription of a filter; the running handler finishes. Queued messages are dropped and counted.

        Dropped messages of a shared filter are not acknowledged, so that the broker can send them to another member of
        the group.

        A session that outlives connections drops nothing: this returns after all of the broker's messages for the
        client are acknowledged, which may take long; if cancelled, it leaves the rest in the session.
        """

    @abstractmethod
    async def recall(self, filter_: Filter[Any]) -> None:
        """Make the broker send a subscription's retained messages again, at the latest when reconnected."""

    @abstractmethod
    def resolve_id_conflict(self) -> None:
        """Handle a proven conflict of two clients with one id: the one that connected later disconnects and pauses."""

    @abstractmethod
    def renew(self) -> None:
        """Connect again, because birth and will have changed."""

    # --- methods of callers -----------------------------------------------------------------------------------

    def on_connect(self, hook: Callable[[], Awaitable[None]]) -> None:
        """Call ``hook`` after each connect and reconnect from now on, once birth and subscriptions are answered."""
        self._hooks.append(hook)

    async def publish(
        self,
        address: Address[M],
        body: M,
        *,
        qos: int | None = None,
        reply_to: Address[Any] | None = None,
        correlation: bytes = b"",
        expiry_s: int | None = None,
        properties: Mapping[str, str] | None = None,
        timeout_s: float = PUBLISH_TIMEOUT,
    ) -> bool:
        """Publish a body; return whether the broker found a subscriber (always True at QoS 0).

        ``qos``: None for the topic's own. ``reply_to``, ``correlation``: where an answer goes, and what identifies it.
        ``expiry_s``: seconds after which the broker drops it. ``properties``: user properties. ``timeout_s``: seconds
        for the acknowledgement. Raises DisconnectedError (retry later), RefusedError (do not retry) and TooLargeError.
        """
        topic = address.topic
        packet = Packet(
            topic=address.text,
            payload=codec.encode(topic, body),
            qos=topic.qos if qos is None else qos,
            retain=topic.retain,
            response_topic=reply_to.text if reply_to else "",
            correlation=correlation,
            expiry_s=expiry_s,
            properties=tuple(properties.items()) if properties else (),
        )
        return check_reason(packet.topic, await self.send(packet, timeout_s)) != NO_SUBSCRIBER

    def publish_now(
        self,
        address: Address[M],
        body: M,
        *,
        tail: memoryview | None = None,
        reply_to: Address[Any] | None = None,
        correlation: bytes = b"",
        expiry_s: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> asyncio.Future[int] | None:
        """Publish a body now or not at all (None), as ``post`` does; ``publish`` describes the parameters.

        ``check_reason`` checks the future's result. ``tail``: bytes of the body's last field, which is empty in
        ``body``; they are not copied.
        """
        topic = address.topic
        if tail is not None and tail.nbytes != len(tail):
            tail = tail.cast("B")  # its users count bytes by its length
        return self.post(
            Packet(
                topic=address.text,
                payload=codec.encode(topic, body) if tail is None else codec.encode_before(topic, body, tail),
                qos=topic.qos,
                retain=topic.retain,
                response_topic=reply_to.text if reply_to else "",
                correlation=correlation,
                expiry_s=expiry_s,
                properties=tuple(properties.items()) if properties else (),
                tail=b"" if tail is None else tail,
            )
        )

    async def clear(self, address: Address[Any], *, timeout_s: float = PUBLISH_TIMEOUT) -> None:
        """Remove the retained message of an address. Raises the errors of ``publish``."""
        packet = Packet(topic=address.text, payload=b"", qos=1, retain=True)
        check_reason(packet.topic, await self.send(packet, timeout_s))

    async def subscribe(
        self,
        filter_: Filter[M],
        handler: Handler[M],
        *,
        cleared: Cleared | None = None,
        accepts: AcceptsNames | None = None,
        queue: int = 1000,
        later: bool = False,
        drop_oldest: bool = False,
        inherit: bool = False,
    ) -> None:
        """Pass every message of ``filter_`` to ``handler``; unreadable ones are dead-lettered and acknowledged.

        ``cleared`` is called for a retained message that was removed, ``accepts`` before a body is decoded: if it
        returns False, the message is acknowledged and dropped. ``queue``: most messages of QoS 0 that wait for the
        handler. Raises RefusedError if the broker does not grant it, ValueError if another filter of this bus can get
        the same message: brokers differ in how often they send it then.

        ``later``: a message that the handler accepted without an error is acknowledged when its packet's ``done`` is
        called, at any later time. The connection's receive maximum bounds their number: with more, nothing is read, so
        the handler must not wait for an answer on this connection. ``drop_oldest``: a full queue drops and acknowledges
        its oldest message. ``inherit``: send no subscription, because an earlier client of the session has.
        """
        receive = receiver(filter_.topic, handler, self.stats, self.dead_letter, cleared=cleared, accepts=accepts)
        await self.listen(
            filter_.text, filter_.topic.qos, receive, queue, later=later, drop_oldest=drop_oldest, inherit=inherit
        )

    async def subscribe_now(self, filter_: Filter[M], handler: HandlerNow[M]) -> None:
        """Subscribe a handler that is a plain function: it is called when a message arrives, without a queue.

        Raises RefusedError, and ValueError as ``subscribe``.
        """
        receive = receiver_now(filter_.topic, handler, self.stats, self._dead_letter_now)
        await self.listen(filter_.text, filter_.topic.qos, receive, 0)

    async def unsubscribe(self, filter_: Filter[Any]) -> None:
        """End the subscription of a filter, as ``unlisten`` describes."""
        await self.unlisten(filter_.text)

    async def reply(
        self, request: Delivery[Any], topic: Topic[M], body: M, *, properties: Mapping[str, str] | None = None
    ) -> bool:
        """Answer a request, but only on ``topic``; return whether the requester listens.

        Raises InvalidFieldError if the request has another response topic, and the errors of ``publish``.
        """
        response = request.packet.response_topic
        if topic.parse(response) is None:
            raise InvalidFieldError("response topic", response, f"answers go to {topic.template} alone")
        address = Address(topic, response)
        return await self.publish(address, body, correlation=request.packet.correlation, properties=properties)

    async def dead_letter(self, packet: Packet, reason: str) -> None:
        """Publish a dead letter for a refused packet, at most ten a second; without a connection, on the next one."""
        dead_letter = self._dead_letters.write(packet, reason)
        if dead_letter and self.connected:
            await self._send_dead_letter(dead_letter)
        elif dead_letter:
            self._unsent_dead_letters.append(dead_letter)

    async def _send_dead_letter(self, dead_letter: DeadLetter) -> None:
        """Publish a dead letter, or log that it was not possible."""
        try:
            await self.publish(topics.DEAD_LETTER.at(node=self.node, client=self.client_id), dead_letter)
        except BusError as error:
            log.debug("dead letter not sent", error=str(error))

    def _dead_letter_now(self, packet: Packet, reason: str) -> None:
        """Publish a dead letter now, if the connection has a free slot; without a connection, on the next one."""
        dead_letter = self._dead_letters.write(packet, reason)
        if dead_letter and not self.connected:
            self._unsent_dead_letters.append(dead_letter)
        elif dead_letter:
            try:
                self.publish_now(topics.DEAD_LETTER.at(node=self.node, client=self.client_id), dead_letter)
            except BusError as error:
                log.debug("dead letter not sent", error=str(error))

    async def _run_connect_hooks(self) -> None:
        """Publish the unsent dead letters, then run the hooks concurrently; a failing hook is logged.

        Adapters call it when birth and subscriptions are answered.
        """
        while self._unsent_dead_letters and self.connected:
            await self._send_dead_letter(self._unsent_dead_letters.popleft())
        for result in await asyncio.gather(*(hook() for hook in self._hooks), return_exceptions=True):
            if isinstance(result, BusError):
                log.warning("connect hook interrupted", error=str(result))
            elif isinstance(result, Exception):
                log.error("connect hook failed", exc_info=result)


def refused_names(connections: Iterable[Bus], *, birth: str = "") -> list[str]:
    """Return the filters and birth topics that the broker refuses to a process, sorted: the first MOST_REFUSED.

    ``birth``: the topic of the birth that will have this list, which is left out: who reads the list has received it.
    """
    return sorted({name for bus in connections for name in bus.refused if name != birth})[:MOST_REFUSED]


def refusal_text(names: Sequence[str]) -> str:
    """Return the problem of a process to which the broker refuses ``names``, as a text; empty without names."""
    return f"the broker refuses its subscription or birth: {', '.join(names)}" if names else ""


class AddressCache(dict[str, tuple[Address[M], Mapping[str, str]]], Generic[M]):
    """Address and names by the topic's text, for the messages of one subscription; a lookup adds what is missing.

    A lookup raises DecodeError if a name in the topic is not valid.
    """

    def __init__(self, topic: Topic[M]) -> None:
        super().__init__()
        self._topic = topic

    def __missing__(self, text: str) -> tuple[Address[M], Mapping[str, str]]:
        names = self._topic.parse(text)
        if names is None:
            raise DecodeError("a name in the topic is not valid")
        entry = Address(self._topic, text), MappingProxyType(names)
        if len(self) >= MOST_CACHED:
            self.clear()
        if len(text) <= LONGEST_CACHED:
            self[text] = entry
        return entry


def receiver(
    topic: Topic[M],
    handler: Handler[M],
    stats: BusStats,
    dead_letter: Callable[[Packet, str], Awaitable[None]],
    *,
    cleared: Cleared | None = None,
    accepts: AcceptsNames | None = None,
) -> Receive:
    """Return the function that decodes each packet of a subscription and calls its handler.

    ``dead_letter`` is called with a packet that is refused, and the reason; ``stats`` counts it. ``Bus.subscribe``
    describes the other parameters.
    """
    addresses = AddressCache(topic)

    async def receive(packet: Packet) -> None:
        try:
            address, names = addresses[packet.topic]
            if packet.properties:
                check_properties(packet)
            if topic.retain and not packet.payload:
                if cleared:
                    await cleared(names)
            elif not accepts or await accepts(names):
                body = codec.decode(topic, packet.payload)
                await handler(Delivery(address, names, body, packet))
                return  # with ``later`` the handler acknowledges
        except (DecodeError, InvalidFieldError) as error:
            stats.rejected += 1
            await dead_letter(packet, str(error))
        except Exception as error:
            stats.failed_handlers += 1
            log.exception("handler failed", topic=packet.topic)
            await dead_letter(packet, f"the receiver failed: {type(error).__name__}")
        packet.done()

    return receive


def receiver_now(
    topic: Topic[M], handler: HandlerNow[M], stats: BusStats, dead_letter: Callable[[Packet, str], None]
) -> ReceiveNow:
    """Return a plain function that decodes each packet and calls ``handler``, and refuses packets as ``receiver``."""
    addresses = AddressCache(topic)

    def receive(packet: Packet) -> None:
        try:
            address, names = addresses[packet.topic]
            if packet.properties:
                check_properties(packet)
            handler(Delivery(address, names, codec.decode(topic, packet.payload), packet))
        except (DecodeError, InvalidFieldError) as error:
            stats.rejected += 1
            dead_letter(packet, str(error))
        except Exception as error:
            stats.failed_handlers += 1
            log.exception("handler failed", topic=packet.topic)
            dead_letter(packet, f"the receiver failed: {type(error).__name__}")

    return receive


def check_properties(packet: Packet) -> None:
    """Raise DecodeError if a message has too many or too long user properties."""
    if len(packet.properties) > MAX_PROPERTIES:
        raise DecodeError(f"more than {MAX_PROPERTIES} user properties")
    for name, value in packet.properties:
        if len(name.encode()) > MAX_PROPERTY or len(value.encode()) > MAX_PROPERTY:
            raise DecodeError(f"a user property of more than {MAX_PROPERTY} bytes")
