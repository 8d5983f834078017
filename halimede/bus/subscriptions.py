"""Delivers each message of a connection to its handler: matching subscription, queue, acknowledgement.

A message is acknowledged after its handler, never before. Each subscription is handled in order and by itself, so
acknowledgements of one connection may leave in another order than the messages came (MQTT 4.6 asks clients to keep
it; Mosquitto and EMQX look at the packet identifier alone). Holding a fast subscription's acknowledgements back for
a slow one would block both.

Where a session outlives its connection the broker sends on the next one again what was not acknowledged
(``UnackedMessages``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from halimede.bus.message import BusStats, Packet, Receive, ReceiveNow
from halimede.bus.topic_filter import Prefix, matches, split_shared
from halimede.bus.transport import Acknowledge

log = structlog.get_logger()

#: topics whose subscription is remembered, and characters up to which one is
ROUTES, LONGEST = 4096, 512

#: acknowledges a message: a token, or of a session that ends with its connection what the link gave
Done = Callable[[], object]


class Dispatcher:
    """The subscriptions of one client. ``durable``: its session outlives its connections.

    Then nothing that arrives before its handler is known is acknowledged and dropped: it waits for that handler.
    """

    def __init__(self, stats: BusStats, prefix: Prefix, *, durable: bool) -> None:
        self.durable = durable
        self.held = UnackedMessages(durable=durable)
        self._stats = stats
        self._prefix = prefix
        self._subscriptions: dict[str, Subscription] = {}
        #: the subscription that takes the messages of a topic: the same few topics come again and again
        self._routes: dict[str, Subscription] = {}
        #: what a session brought before its handler was known; the receive maximum bounds it
        self._unclaimed: list[tuple[Packet, AckToken]] = []

    @property
    def unfinished(self) -> bool:
        """Whether the session, if it is to stay, has anything in it."""
        return bool(self._subscriptions) or self.held.busy

    def get(self, filter_: str) -> Subscription | None:
        """Return the subscription of a filter."""
        return self._subscriptions.get(filter_)

    def asked(self) -> Mapping[str, int]:
        """Return the filters to subscribe to, with their QoS."""
        return {name: each.qos for name, each in self._subscriptions.items() if each.asked}

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
        """Close a subscription and forget it; return it if there was one."""
        subscription = self._subscriptions.pop(filter_, None)
        self._routes.clear()
        if subscription:
            subscription.close()
        return subscription

    def dispatch(self, packet: Packet, acknowledge: Acknowledge | None, key: int) -> None:
        """Deliver a message that has arrived (``transport.Deliver``)."""
        if self._prefix.text:
            packet = self._prefix.removed(packet)
        subscription = self._routes.get(packet.topic) or self._route(packet.topic)
        done: Done | None = acknowledge
        if acknowledge and (self.durable or (subscription and subscription.later)):
            token = self.held.take(key, packet, acknowledge)
            if token is None:
                return  # it is in hand already
            if subscription is None and self.durable:
                self._unclaimed.append((packet, token))
                return
            done = token
        if subscription:
            subscription.offer(packet, done)
            return
        # sent before the broker saw our unsubscribe
        self._stats.dropped += 1
        if done:
            done()

    def disconnected(self) -> None:
        """Handle the end of the connection. The broker resends durable messages that have no handler here."""
        self.held.disconnected()
        for _, token in self._unclaimed:
            self.held.settle(token)  # not acknowledged: it is sent again, or to another client
        self._unclaimed.clear()
        if not self.durable:
            for subscription in self._subscriptions.values():
                subscription.disown()

    def _route(self, topic: str) -> Subscription | None:
        """Return the subscription of a topic, the first one if several match."""
        levels = topic.split("/")
        for subscription in self._subscriptions.values():
            if subscription.takes(levels):
                if len(self._routes) >= ROUTES:
                    self._routes.clear()
                if len(topic) <= LONGEST:
                    self._routes[topic] = subscription
                return subscription
        return None


class Subscription:
    """Queue and pump of one filter. QoS 0 is dropped when it is full, oldest first; QoS 1 never is.

    QoS 1 needs no bound here: the connection's receive maximum is one, since the broker sends no more than that
    before it gets acknowledgements. (Mosquitto 2.0.11 keeps to it only until the first one, or where it is 1; then what
    it queues for a client, ``max_queued_messages``, is the bound.)

    With a ``limit`` of 0 there is no queue: ``receive`` is a plain function, called as a message comes.

    ``later``: the receiver acknowledges each message by itself, with the packet's ``done``. ``asked``: the broker is to
    be asked for it; otherwise it is handled as it comes, because an earlier client of the session has asked.
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
        asked: bool = True,
    ) -> None:
        self.filter = filter_
        self.qos = qos
        self.asked = asked
        self.later = later
        self._group, plain = split_shared(filter_)
        self._levels = plain.split("/")
        self._receive = receive
        self._limit = limit
        self._stats = stats
        self._waiting: deque[tuple[Packet, Done | None]] = deque()
        #: set while the pump waits for a message
        self._wake: asyncio.Future[None] | None = None
        self._closed = False

    def takes(self, topic: list[str]) -> bool:
        """Whether a topic, given as its levels, belongs to this subscription."""
        return matches(self._levels, topic)

    def offer(self, packet: Packet, acknowledge: Done | None) -> None:
        """Queue a message that has arrived, or handle it now if there is no queue."""
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
        self._waiting.append((packet, acknowledge))
        if self._wake and not self._wake.done():
            self._wake.set_result(None)

    def disown(self) -> None:
        """Handle the end of the connection: queued messages are handled without an acknowledgement."""
        self._waiting = deque((packet, None) for packet, _ in self._waiting)

    def close(self) -> None:
        """Drop queued messages, and end ``pump`` once the running handler has returned.

        Messages of a shared filter are left unacknowledged, so that a broker that can hand them to another member
        does; those of a plain one would only take up the connection's window for ever.
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
        """Call the handler for each message until closed or cancelled."""
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
        """Drop the oldest message without an acknowledgement; return whether there was one."""
        for index, (_, acknowledge) in enumerate(self._waiting):
            if acknowledge is None:
                del self._waiting[index]
                self._stats.dropped += 1
                return True
        return False


@dataclass(slots=True, eq=False)
class AckToken:
    """One message that is to be acknowledged, once, by calling this.

    ``acknowledge`` does it on the connection that delivered the message last, and is None once that has ended.
    """

    messages: UnackedMessages
    key: int
    packet: Packet
    acknowledge: Acknowledge | None
    done: bool = False

    def __call__(self) -> None:
        """Acknowledge, now or as soon as the broker sends the message again."""
        if self.done:
            return
        self.done = True
        acknowledge, self.acknowledge = self.acknowledge, None
        self.messages.settle(self, forget=acknowledge is not None and acknowledge())


class UnackedMessages:
    """The QoS 1 messages that have arrived and are not acknowledged yet, as tokens.

    Of a session that outlives its connections (``durable``) the broker sends these again on the next one. What is in
    hand already is then recognised, and is not handled a second time: its acknowledgement goes out on the new
    connection instead. Packet identifiers alone do not prove that it is the same message, since another client may have
    gone on with the session meanwhile and set them free.

    Of any other session only those messages are here that their receivers acknowledge by themselves, whenever.
    """

    def __init__(self, *, durable: bool) -> None:
        self.durable = durable
        self._tokens: dict[int, AckToken] = {}
        self._busy: set[AckToken] = set()
        self._idle = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Whether anything is in hand."""
        return bool(self._busy)

    async def idle(self) -> None:
        """Wait until nothing is in hand."""
        while self._busy:
            self._idle.clear()
            await self._idle.wait()

    def take(self, key: int, packet: Packet, acknowledge: Acknowledge) -> AckToken | None:
        """Record a message by its packet identifier; None: it is known already, there is nothing to do."""
        known = self._tokens.get(key) if self.durable and packet.duplicate else None
        if known and (known.packet.topic, known.packet.payload) == (packet.topic, packet.payload):
            if known.done:
                self.settle(known)
                acknowledge()
            else:
                known.acknowledge = acknowledge
            return None
        token = self._tokens[key] = AckToken(self, key, packet, acknowledge)
        self._busy.add(token)
        return token

    def settle(self, token: AckToken, *, forget: bool = True) -> None:
        """Record that a message is no longer in hand. Unless it is forgotten, it is known when it is sent again."""
        self._busy.discard(token)
        if not self._busy:
            self._idle.set()
        if forget and self._tokens.get(token.key) is token:
            del self._tokens[token.key]

    def disconnected(self) -> None:
        """Handle the end of the connection: a message is acknowledged when it is sent again."""
        for token in self._tokens.values():
            token.acknowledge = None
        if not self.durable:
            self._tokens.clear()

    def resumed(self) -> None:
        """Forget the messages that the broker did not send again on a new connection."""
        self._tokens = {key: token for key, token in self._tokens.items() if token.acknowledge}
