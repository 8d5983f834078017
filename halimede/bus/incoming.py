"""What comes in over a client's connections: which subscription gets it, and what of it is still to be acknowledged."""

from __future__ import annotations

from collections.abc import Mapping

from halimede.bus.held import Acknowledge, Held, Ticket
from halimede.bus.message import BusStats, Packet
from halimede.bus.packets import Prefix
from halimede.bus.subscriptions import Subscription

#: topics whose subscription is remembered
ROUTES = 4096


class Incoming:
    """The subscriptions of one client. ``durable``: its session outlives its connections.

    Then nothing that arrives before its handler is known is acknowledged and dropped: it waits for that handler.
    """

    def __init__(self, stats: BusStats, prefix: Prefix, *, durable: bool) -> None:
        self.held = Held(durable=durable)
        self._stats = stats
        self._prefix = prefix
        self._subscriptions: dict[str, Subscription] = {}
        #: who gets the messages of a topic: the same few come again and again
        self._routes: dict[str, Subscription] = {}
        #: what a session brought before its handler was known; the receive maximum bounds it
        self._unclaimed: list[tuple[Packet, Ticket]] = []

    @property
    def durable(self) -> bool:
        """Whether the session outlives its connections."""
        return self.held.durable

    @property
    def unfinished(self) -> bool:
        """Whether the session, if it is to stay, has anything in it."""
        return bool(self._subscriptions) or self.held.busy

    def get(self, filter_: str) -> Subscription | None:
        """Return the subscription of a filter."""
        return self._subscriptions.get(filter_)

    def asked(self) -> Mapping[str, int]:
        """Return what the broker is to be asked for: filters and their QoS."""
        return {name: each.qos for name, each in self._subscriptions.items() if each.asked}

    def add(self, subscription: Subscription) -> None:
        """Hand over to a subscription from now on, beginning with what waits for it."""
        self._subscriptions[subscription.filter] = subscription
        self._routes.clear()
        waiting, self._unclaimed = self._unclaimed, []
        for packet, ticket in waiting:
            self._hand(packet, ticket)

    def remove(self, filter_: str) -> Subscription | None:
        """Close a subscription and forget it; return it if there was one."""
        subscription = self._subscriptions.pop(filter_, None)
        self._routes.clear()
        if subscription:
            subscription.close()
        return subscription

    def dispatch(self, packet: Packet, acknowledge: Acknowledge | None, key: int) -> None:
        """Take a message that has arrived (``link.Deliver``)."""
        packet = self._prefix.removed(packet)
        if not self.durable:
            subscription = self._route(packet.topic)
            if subscription and subscription.at_once:
                subscription.hand_over(packet)
                if acknowledge:
                    acknowledge()
                return
        ticket = self.held.take(key, packet, acknowledge) if acknowledge else None
        if ticket or not acknowledge:  # else it is in hand already
            self._hand(packet, ticket)

    def disconnected(self) -> None:
        """The connection is gone. Of a session that outlives it the broker sends again what has no handler here."""
        self.held.disconnected()
        for _, ticket in self._unclaimed:
            self.held.drop(ticket)
        self._unclaimed.clear()
        if not self.durable:
            for subscription in self._subscriptions.values():
                subscription.disown()

    def _hand(self, packet: Packet, ticket: Ticket | None) -> None:
        if subscription := self._route(packet.topic):
            subscription.offer(packet, ticket)
            return
        if ticket and self.durable:
            self._unclaimed.append((packet, ticket))
            return
        # sent before the broker saw our unsubscribe
        self._stats.dropped += 1
        if ticket:
            ticket()

    def _route(self, topic: str) -> Subscription | None:
        """Return the subscription that takes the messages of a topic: of several the one that came first."""
        known = self._routes.get(topic)
        if known:
            return known
        levels = topic.split("/")
        for subscription in self._subscriptions.values():
            if subscription.takes(levels):
                if len(self._routes) >= ROUTES:
                    self._routes.clear()
                self._routes[topic] = subscription
                return subscription
        return None
