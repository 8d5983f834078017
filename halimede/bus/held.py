"""What the broker still waits for: QoS 1 messages that have arrived and are not acknowledged yet.

Where a session outlives its connection the broker sends these again on the next one. What is in hand already is then
recognised, and is not handled a second time: its acknowledgement goes out on the new connection instead. Packet
identifiers alone do not prove that it is the same message, since another client may have gone on with the session
meanwhile and set them free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from halimede.bus.message import Packet

#: tells the broker that a QoS 1 message was handled; returns whether its connection is there
Acknowledge = Callable[[], bool]


class Ticket:
    """One message that is to be acknowledged, once, by calling this."""

    __slots__ = ("_acknowledge", "_book", "done", "key", "packet")

    def __init__(self, book: Held, key: int, packet: Packet, acknowledge: Acknowledge) -> None:
        self.key, self.packet = key, packet
        self.done = False
        self._book = book
        self._acknowledge: Acknowledge | None = acknowledge

    @property
    def attached(self) -> bool:
        """Whether the connection that it came over, or came again over, is there."""
        return self._acknowledge is not None

    def __call__(self) -> None:
        """Acknowledge, now or as soon as the broker sends the message again."""
        if self.done:
            return
        self.done = True
        acknowledge, self._acknowledge = self._acknowledge, None
        self._book.settled(self, acknowledged=acknowledge is not None and acknowledge())

    def attach(self, acknowledge: Acknowledge) -> None:
        """Take note that the broker has sent the message again."""
        if self.done:
            self._book.forget(self)
            acknowledge()
        else:
            self._acknowledge = acknowledge

    def detach(self) -> None:
        """The connection is gone."""
        self._acknowledge = None


class Held:
    """The tickets of one client, across its connections. ``durable``: its session outlives them."""

    def __init__(self, *, durable: bool) -> None:
        self.durable = durable
        self._tickets: dict[int, Ticket] = {}
        self._busy: set[Ticket] = set()
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

    def take(self, key: int, packet: Packet, acknowledge: Acknowledge) -> Ticket | None:
        """Note a message that has arrived under a packet identifier; None: we have it, there is nothing to do."""
        known = self._tickets.get(key) if self.durable and packet.duplicate else None
        if known and (known.packet.topic, known.packet.payload) == (packet.topic, packet.payload):
            known.attach(acknowledge)
            return None
        ticket = Ticket(self, key, packet, acknowledge)
        self._tickets[key] = ticket
        self._busy.add(ticket)
        return ticket

    def settled(self, ticket: Ticket, *, acknowledged: bool) -> None:
        """A ticket is done: that much less is in hand. One whose connection is gone may still come again."""
        self._busy.discard(ticket)
        if not self._busy:
            self._idle.set()
        if acknowledged or not self.durable:
            self.forget(ticket)

    def forget(self, ticket: Ticket) -> None:
        """Take the next message under its identifier for another one."""
        if self._tickets.get(ticket.key) is ticket:
            del self._tickets[ticket.key]

    def drop(self, ticket: Ticket) -> None:
        """Nobody handles this one; the broker is to send it again, or to another client."""
        self.forget(ticket)
        self._busy.discard(ticket)
        if not self._busy:
            self._idle.set()

    def disconnected(self) -> None:
        """The connection is gone: no acknowledgement goes out until a message comes again."""
        for ticket in self._tickets.values():
            ticket.detach()
        if not self.durable:
            self._tickets.clear()

    def resumed(self) -> None:
        """The broker has sent again on a new connection what it had: what it did not send is no longer ours."""
        for ticket in [each for each in self._tickets.values() if not each.attached]:
            self.forget(ticket)
