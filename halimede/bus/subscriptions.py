"""Delivers each message of a connection to its handler: matching subscription, queue, acknowledgement.

A handled message is acknowledged after its handler. Each subscription is handled in order and independently, so
acknowledgements of one connection may be sent in another order than the messages arrived (MQTT 4.6 requires clients to
keep the order; Mosquitto and EMQX use only the packet identifier). If acknowledgements of a fast subscription waited
for a slow one, both would block.

If a session outlives its connection, the broker sends unacknowledged messages again on the next one
(``UnackedMessages``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from halimede.bus.message import BusStats, Grants, Packet, Receive, ReceiveNow
from halimede.bus.topic_filter import Prefix, has_overlap, matches, split_shared
from halimede.bus.transport import Acknowledge

log = structlog.get_logger()

#: most topics whose subscription is cached, and most characters of a cached one
MOST_ROUTES, LONGEST_ROUTED = 4096, 512

#: the receive maximum of MQTT v5 for a client that sets none
NO_LIMIT = Grants().receive_maximum
#: messages in progress above the receive maximum at which a connection is not read any more: those that an earlier
#: connection has delivered count as well
EXCESS = 8

#: acknowledges a message: an ``AckToken``, or the transport's function if the session ends with its connection
Done = Callable[[], object]


class Dispatcher:
    """The subscriptions of one client: passes each received message to the subscription that matches its topic.

    ``unacked``: its messages that are not acknowledged yet.

    A message without a subscription is dropped and acknowledged. If the session outlives its connections, a QoS 1
    message waits instead, because its handler may not be known yet.
    """

    def __init__(self, stats: BusStats, prefix: Prefix, unacked: UnackedMessages) -> None:
        self.durable = unacked.durable
        self.unacked = unacked
        self._stats = stats
        self._prefix = prefix
        self._subscriptions: dict[str, Subscription] = {}
        #: the subscription of each topic: messages use the same few topics
        self._routes: dict[str, Subscription] = {}
        #: messages of a session that arrived before their handler was known; the receive maximum bounds them
        self._unclaimed: list[tuple[Packet, AckToken]] = []

    @property
    def unfinished(self) -> bool:
        """Whether a kept session has any content: subscriptions, or messages in progress."""
        return bool(self._subscriptions) or self.unacked.busy

    def get(self, filter_: str) -> Subscription | None:
        """Return the subscription of a filter, None without one."""
        return self._subscriptions.get(filter_)

    def conflict(self, filter_: str, *, requested: bool) -> str | None:
        """Return the filter of a subscription that excludes a new one for ``filter_``; None if nothing excludes it.

        Excluded are an equal filter, and a filter that can get the same messages. ``requested``: the new filter will be
        sent to the broker. Filters that an earlier client of the session has sent may overlap: then the subscription
        that was added first handles a message.
        """
        levels = split_shared(filter_)[1].split("/")
        for name, subscription in self._subscriptions.items():
            if name == filter_ or (requested and subscription.requested and subscription.has_overlap_with(levels)):
                return name
        return None

    def requested_filters(self) -> Mapping[str, int]:
        """Return the filters to subscribe to, with their QoS."""
        return {name: subscription.qos for name, subscription in self._subscriptions.items() if subscription.requested}

    def add(self, subscription: Subscription) -> None:
        """Add a subscription; messages that wait for it are delivered first."""
        self._subscriptions[subscription.filter] = subscription
        self._routes.clear()
        waiting, self._unclaimed = self._unclaimed, []
        for packet, token in waiting:
            if taker := self._route(packet.topic):
                taker.offer(packet, token)
            else:
                self._unclaimed.append((packet, token))

    def remove(self, filter_: str) -> Subscription | None:
        """Close and remove a subscription; return it if there was one."""
        subscription = self._subscriptions.pop(filter_, None)
        self._routes.clear()
        if subscription:
            subscription.close()
        return subscription

    def dispatch(self, packet: Packet, acknowledge: Acknowledge | None, key: int) -> None:
        """Deliver a message that has arrived: a ``Deliver``. ``key``: its packet identifier.

        ``acknowledge`` acknowledges it to the broker; None at QoS 0.
        """
        if self._prefix.text:
            packet = self._prefix.remove_from(packet)
        subscription = self._routes.get(packet.topic) or self._route(packet.topic)
        done: Done | None = acknowledge
        if acknowledge and (self.durable or (subscription and subscription.later)):
            token = self.unacked.record(key, packet, acknowledge)
            if token is None:
                return  # it is already in progress
            if subscription is None and self.durable:
                self._unclaimed.append((packet, token))
                return
            done = token
        if subscription:
            subscription.offer(packet, done)
            return
        # sent before the broker received the unsubscribe
        self._stats.dropped += 1
        if done:
            done()

    def disconnected(self) -> None:
        """Handle the end of the connection: no acknowledgement can be sent on it any more.

        Messages that wait for a handler are forgotten, because the broker sends them again.
        """
        self.unacked.disconnected()
        for _, token in self._unclaimed:
            self.unacked.settle(token)  # not acknowledged: the broker sends it again, or to another client
        self._unclaimed.clear()
        if not self.durable:
            for subscription in self._subscriptions.values():
                subscription.drop_acknowledgements()

    def _route(self, topic: str) -> Subscription | None:
        """Return the subscription of a topic, the first one if several match; None without one."""
        levels = topic.split("/")
        for subscription in self._subscriptions.values():
            if subscription.matches(levels):
                if len(self._routes) >= MOST_ROUTES:
                    self._routes.clear()
                if len(topic) <= LONGEST_ROUTED:
                    self._routes[topic] = subscription
                return subscription
        return None


class Subscription:
    """Queue and pump of one filter: ``pump`` passes messages to ``receive`` in order.

    In a queue of ``limit`` messages a new one takes the place of the oldest message that needs no acknowledgement,
    because it has QoS 0 or its connection has ended. Without such a message, a new one of QoS 0 is dropped, and one of
    QoS 1 is queued above the limit. With ``drop_oldest`` the new message takes the place of the oldest one in any case,
    which is acknowledged. With a ``limit`` of 0 there is no queue: ``receive`` is a plain function, called when a
    message arrives.

    QoS 1 needs no bound here: the connection's receive maximum is one, because the broker sends no more than that
    before it receives acknowledgements. Mosquitto 2.0.11 obeys it only until the first acknowledgement, or if it is 1.
    Then messages that are acknowledged later are bounded by ``UnackedMessages``, and those of other subscriptions by
    the broker's queue for a client, ``max_queued_messages``.

    ``later``: the receiver acknowledges each message by itself, with the packet's ``done``. ``requested``: send the
    subscription to the broker; otherwise only handle its messages, because an earlier client of the session has
    subscribed.
    """

    def __init__(
        self,
        filter_: str,
        qos: int,
        receive: Receive | ReceiveNow,
        limit: int,
        stats: BusStats,
        *,
        later: bool = False,
        drop_oldest: bool = False,
        requested: bool = True,
    ) -> None:
        self.filter = filter_
        self.qos = qos
        self.requested = requested
        self.later = later
        self._group, plain = split_shared(filter_)
        self._levels = plain.split("/")
        self._receive = receive
        self._limit = limit
        self._drops_all = drop_oldest
        self._stats = stats
        self._waiting: deque[tuple[Packet, Done | None]] = deque()
        #: set while the pump waits for a message
        self._wake: asyncio.Future[None] | None = None
        self._closed = False

    def matches(self, topic: list[str]) -> bool:
        """Whether a topic, given as its levels, belongs to this subscription."""
        return matches(self._levels, topic)

    def has_overlap_with(self, levels: list[str]) -> bool:
        """Whether a topic of another filter, given as its levels, can belong to this subscription."""
        return has_overlap(self._levels, levels)

    def offer(self, packet: Packet, acknowledge: Done | None) -> None:
        """Queue a message that has arrived, or handle it now if there is no queue; a full queue may drop a message.

        ``acknowledge``: acknowledges it to the broker; None: it needs no acknowledgement.
        """
        if not self._limit:
            try:
                self._receive(packet)
            except Exception:
                self._stats.failed_handlers += 1
                log.exception("receiver failed", topic=packet.topic)
            if acknowledge:
                acknowledge()
            return
        if len(self._waiting) >= self._limit and not self._drop_oldest() and acknowledge is None:
            self._stats.dropped += 1
            return
        if self.later:
            packet.arrived = asyncio.get_running_loop().time()
        self._waiting.append((packet, acknowledge))
        if self._wake and not self._wake.done():
            self._wake.set_result(None)

    def drop_acknowledgements(self) -> None:
        """Remove the acknowledgements of queued messages, because their connection has ended."""
        self._waiting = deque((packet, None) for packet, _ in self._waiting)

    def close(self) -> None:
        """Drop queued messages, and end ``pump`` once the running handler has returned.

        Dropped messages of a shared filter are left unacknowledged, so that a broker can send them to another member.
        Those of a plain filter are acknowledged, because they would occupy the connection's receive maximum for ever.
        """
        self._closed = True
        for _, acknowledge in self._waiting:
            self._stats.dropped += 1
            if acknowledge and not self._group:
                acknowledge()
        self._waiting.clear()
        if self._wake and not self._wake.done():
            self._wake.set_result(None)

    async def pump(self) -> None:
        """Call ``receive`` for each queued message until closed or cancelled."""
        loop = asyncio.get_running_loop()
        while not self._closed:
            if not self._waiting:
                self._wake = loop.create_future()
                await self._wake
                continue
            packet, acknowledge = self._waiting.popleft()
            later = self.later
            if later and isinstance(acknowledge, AckToken):
                packet = replace(packet, done=acknowledge)
            try:
                await self._receive(packet)  # type: ignore[misc]  # it has a queue
            except Exception:
                self._stats.failed_handlers += 1
                log.exception("receiver failed", topic=packet.topic)
                later = False
            if acknowledge and not later:
                acknowledge()

    def _drop_oldest(self) -> bool:
        """Drop the oldest message that may be dropped; return whether there was one."""
        for index, (_, acknowledge) in enumerate(self._waiting):
            if acknowledge is None or self._drops_all:
                del self._waiting[index]
                self._stats.dropped += 1
                if acknowledge:
                    acknowledge()
                return True
        return False


@dataclass(slots=True, eq=False)
class AckToken:
    """Acknowledges one message once, when it is called; ``messages`` has it among those in progress until then.

    ``key``: the message's packet identifier. ``acknowledge``: does it on the last connection that delivered the
    message; None after that connection has ended. ``done``: the token was called.
    """

    messages: UnackedMessages
    key: int
    packet: Packet
    acknowledge: Acknowledge | None
    done: bool = False

    def __call__(self) -> None:
        """Acknowledge now, or as soon as the broker sends the message again."""
        if self.done:
            return
        self.done = True
        acknowledge, self.acknowledge = self.acknowledge, None
        self.messages.settle(self, forget=acknowledge is not None and acknowledge())


class UnackedMessages:
    """The QoS 1 messages that have arrived and are not acknowledged yet, as tokens.

    If the session outlives its connections (``durable``), the broker sends these again on the next one. A message in
    progress is then recognised, and not handled a second time: its acknowledgement is sent on the new connection
    instead. Packet identifiers alone do not prove that it is the same message, because another client may have
    continued the session meanwhile and freed them.

    Without ``durable`` it only has messages that their receivers acknowledge later.

    A broker that obeys ``receive_maximum`` sends no more before it receives acknowledgements. ``on_full`` is called
    with True if more than ``EXCESS`` messages above it are in progress, and with False once no more than the receive
    maximum are: the connection is not read meanwhile. So a handler of these messages must not wait for an answer on
    this connection.
    """

    def __init__(
        self, *, durable: bool, receive_maximum: int = NO_LIMIT, on_full: Callable[[bool], None] = lambda _: None
    ) -> None:
        self.durable = durable
        #: whether there are too many messages in progress
        self.full = False
        self._receive_maximum = receive_maximum
        self._on_full = on_full
        #: by packet identifier: the messages that are recognised when the broker sends them again
        self._tokens: dict[int, AckToken] = {}
        #: the messages in progress
        self._busy: set[AckToken] = set()
        self._idle = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Whether any message is in progress: arrived, and not acknowledged."""
        return bool(self._busy)

    @property
    def count(self) -> int:
        """The number of messages in progress."""
        return len(self._busy)

    def arrival_times(self) -> list[float]:
        """Return when the messages in progress arrived, in loop time; without those whose handler is not known yet."""
        return [token.packet.arrived for token in self._busy if token.packet.arrived]

    async def wait_idle(self) -> None:
        """Wait, without a deadline, until no message is in progress."""
        while self._busy:
            self._idle.clear()
            await self._idle.wait()

    def record(self, key: int, packet: Packet, acknowledge: Acknowledge) -> AckToken | None:
        """Record a message by its packet identifier ``key``; return its token.

        None: the broker has sent a recognised message again. It is acknowledged now if its token was called, else when
        its token is called.
        """
        token = self._tokens.get(key) if self.durable and packet.duplicate else None
        if token and (token.packet.topic, token.packet.payload) == (packet.topic, packet.payload):
            if token.done:
                self.settle(token)
                acknowledge()
            else:
                token.acknowledge = acknowledge
            return None
        token = self._tokens[key] = AckToken(self, key, packet, acknowledge)
        self._busy.add(token)
        if len(self._busy) > self._receive_maximum + EXCESS and not self.full:
            self.full = True
            self._on_full(True)  # noqa: FBT003  # as ``on_full``
        return token

    def settle(self, token: AckToken, *, forget: bool = True) -> None:
        """Record that a message is no longer in progress. ``forget``: do not recognise it when it is sent again."""
        self._busy.discard(token)
        if not self._busy:
            self._idle.set()
        if self.full and len(self._busy) <= self._receive_maximum:
            self.full = False
            self._on_full(False)  # noqa: FBT003  # as ``on_full``
        if forget and self._tokens.get(token.key) is token:
            del self._tokens[token.key]

    def disconnected(self) -> None:
        """Handle the end of the connection: a durable message is acknowledged when the broker sends it again."""
        for token in self._tokens.values():
            token.acknowledge = None
        if not self.durable:
            self._tokens.clear()

    def forget_unrepeated(self) -> None:
        """Forget the messages that the broker did not send again on a new connection."""
        self._tokens = {key: token for key, token in self._tokens.items() if token.acknowledge}
