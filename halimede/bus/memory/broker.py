"""A broker in this process, for tests and simulation: it behaves as Mosquitto, and has faults on demand.

``MemoryBus`` is its client. It needs only an event loop, so a whole system runs in simulated time. Messages are
immutable and shared, not copied: a simulation of a thousand nodes fits into one process.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from halimede.bus.connection import ReconnectingBus
from halimede.bus.memory.connection import Faults, MemoryTransport, RetainedMessage, Session, SessionSubscription, store
from halimede.bus.message import NO_SUBSCRIBER, SUCCESS, Announce, Packet
from halimede.bus.topic_filter import matches
from halimede.bus.transport import Deliver, Ended, Transport
from halimede.errors import DisconnectedError

#: most bytes of a packet
MAX_PACKET = 16 * 1024 * 1024 + 64 * 1024
#: QoS 1 messages that wait for one client beyond its receive maximum; more are dropped
MAX_QUEUED = 20_000
#: most QoS 1 messages that a client may have unacknowledged
RECEIVE_MAXIMUM = 1000


class MemoryBroker:
    """Topics, retained messages, shared subscriptions, wills. ``seed`` makes faults and back-off repeatable.

    ``max_packet``: most bytes of a packet. ``max_queued``: most messages that wait for one client.

    Attributes:
        faults: the active faults; tests change its fields at any time.
        running: whether it accepts clients.
        links: present connections by client id.
        sessions: by client id; those of disconnected clients until they expire.
        reports_absence: False: publishers do not learn that a message had no subscriber, as on some brokers.

    """

    def __init__(self, *, seed: int = 0, max_packet: int = MAX_PACKET, max_queued: int = MAX_QUEUED) -> None:
        self.faults = Faults()
        #: the random numbers of faults and back-off
        self.chance = random.Random(seed)  # noqa: S311 - faults, not secrets
        #: most bytes of a packet, and most messages that wait for one client
        self.max_packet = max_packet
        self.max_queued = max_queued
        self.running = self.reports_absence = True
        self.links: dict[str, MemoryTransport] = {}
        self.sessions: dict[str, Session] = {}
        #: sessions of disconnected clients
        self._waiting: dict[str, Session] = {}
        self._overflowed = 0
        self._retained: dict[str, RetainedMessage] = {}
        self._group_deliveries: defaultdict[tuple[str, str], Iterator[int]] = defaultdict(itertools.count)

    @property
    def overflowed(self) -> int:
        """The number of messages dropped because a client's queue was full; their publishers received success."""
        return self._overflowed + sum(session.overflowed for session in self.sessions.values())

    def stop(self) -> None:
        """Stop as from ``kill -9``: all clients are disconnected, retained messages and sessions are lost."""
        self.running = False
        links, self.links = list(self.links.values()), {}
        self.sessions.clear()
        self._waiting.clear()
        self._retained.clear()
        self._group_deliveries.clear()
        for link in links:
            link.end(Ended("the broker is gone"))

    def start(self) -> None:
        """Accept clients again after ``stop``."""
        self.running = True

    def restart(self) -> None:
        """Stop and start: clients find an empty broker after their back-off."""
        self.stop()
        self.start()

    def retained_payload(self, topic: str) -> bytes | None:
        """Return the payload of the retained message of a topic, None without one."""
        stored = self._retained.get(topic)
        packet = stored.packet_at(asyncio.get_running_loop().time()) if stored else None
        return bytes(packet.payload) if packet else None

    def join(self, link: MemoryTransport, keep_s: int) -> None:
        """Accept a client, in place of another one of that id; it continues a kept session.

        ``keep_s``: seconds for which its session outlives the connection; 0: it starts a new one.
        """
        previous = self.links.get(link.client_id)
        if previous:
            self.leave(previous, Ended("session taken over", taken_over=True))
        self._expire()
        if not keep_s:
            self._end(link.client_id)
        link.resumed = link.client_id in self.sessions
        link.session = self.sessions.setdefault(link.client_id, Session(self.max_queued))
        self._waiting.pop(link.client_id, None)
        self.links[link.client_id] = link
        link.begin(keep_s)

    def leave(self, link: MemoryTransport, ended: Ended, *, keep: bool = True) -> None:
        """Remove a client for the reason ``ended``, and publish its will; do nothing if it has been removed.

        ``keep``: the session stays for its lifetime; otherwise it ends.
        """
        if self.links.get(link.client_id) is link:
            del self.links[link.client_id]
            link.end(ended)
            link.session.disconnect()
            self._waiting[link.client_id] = link.session
            if not keep or not link.session.keep_s:
                self._end(link.client_id)
            if link.will:
                self.route(link.will)

    def _end(self, client_id: str) -> None:
        """Remove a session."""
        session = self.sessions.pop(client_id, None)
        self._waiting.pop(client_id, None)
        self._overflowed += session.overflowed if session else 0

    def _expire(self) -> None:
        """Remove the sessions whose time has passed."""
        now = asyncio.get_running_loop().time()
        for client_id in [name for name, session in self._waiting.items() if now >= session.expires]:
            self._end(client_id)

    def route(self, packet: Packet) -> int:
        """Deliver a message to all subscribers; return the reason code for its publisher (SUCCESS or NO_SUBSCRIBER)."""
        if packet.retain and packet.payload:
            self._retained[packet.topic] = store(packet)
        elif packet.retain:
            self._retained.pop(packet.topic, None)
        self._expire()
        has_subscriber = False
        groups: dict[tuple[str, str], list[tuple[str, int]]] = {}
        for client_id, filter_, entry in self._matching_subscriptions(packet.topic.split("/")):
            has_subscriber = True
            if entry.group:
                groups.setdefault((entry.group, filter_), []).append((client_id, entry.qos))
            else:
                self._push(client_id, packet, entry.qos)
        for key, members in groups.items():
            client_id, qos = members[next(self._group_deliveries[key]) % len(members)]
            self._push(client_id, packet, qos)
        return SUCCESS if has_subscriber or packet.qos == 0 or not self.reports_absence else NO_SUBSCRIBER

    def _matching_subscriptions(self, levels: list[str]) -> Iterator[tuple[str, str, SessionSubscription]]:
        """Yield client id, filter and subscription for all that match a topic, given as its levels."""
        for client_id, session in self.sessions.items():
            for filter_, entry in session.filters.items():
                if matches(entry.levels, levels):
                    yield client_id, filter_, entry

    def _push(self, client_id: str, packet: Packet, qos: int) -> None:
        """Send a message to a client, or queue it in its session."""
        link = self.links.get(client_id)
        if link:
            link.push(packet, qos)
        elif min(packet.qos, qos):
            self.sessions[client_id].push(replace(packet, qos=1, retain=False))

    def replay(self, link: MemoryTransport, entry: SessionSubscription) -> None:
        """Send the retained messages that match the new subscription ``entry``, unless it is a shared one."""
        if entry.group:
            return
        now = asyncio.get_running_loop().time()
        for topic, stored in self._retained.items():
            packet = stored.packet_at(now)
            if packet and matches(entry.levels, topic.split("/")):
                link.push(packet, entry.qos, retained=True)


class MemoryBus(ReconnectingBus):
    """A client of a MemoryBroker, a ``Bus``. ``cut`` disconnects its network until ``heal``.

    ``session_s``: seconds for which the broker keeps its session; 0: the session ends with the connection.
    ``receive_maximum``: most messages that the broker sends before the first is acknowledged. ``prefix``: levels before
    every topic; empty: none.
    """

    def __init__(
        self,
        client_id: str,
        broker: MemoryBroker,
        announce: Announce | None = None,
        *,
        receive_maximum: int = RECEIVE_MAXIMUM,
        session_s: int = 0,
        prefix: str = "",
    ) -> None:
        super().__init__(
            client_id,
            announce,
            where="memory",
            chance=broker.chance,
            prefix=prefix,
            durable=bool(session_s),
            receive_maximum=receive_maximum,
        )
        self._broker = broker
        self._receive_maximum = receive_maximum
        self._session_s = session_s
        self._cut_off = False

    def cut(self) -> None:
        """Lose the connection: the broker publishes the will, and the network is down until ``heal``."""
        self._cut_off = True
        if isinstance(self._link, MemoryTransport):
            self._broker.leave(self._link, Ended("the connection is cut"))

    def heal(self) -> None:
        """Let the next attempt to connect succeed."""
        self._cut_off = False

    async def _open(self, will: Packet | None, deliver: Deliver) -> Transport:
        """Join the broker. Raises DisconnectedError if the network is down or the broker does not run."""
        await asyncio.sleep(self._broker.faults.delay_s[1] * 2)
        if self._cut_off:
            raise DisconnectedError("the connection is cut")
        if not self._broker.running:
            raise DisconnectedError("the broker is not running")
        link = MemoryTransport(self._broker, self.session_id, will, deliver, self._receive_maximum)
        self._broker.join(link, self._session_s)
        return link
