"""One connection to the memory broker, through whatever faults are on: lost, doubled and late messages."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from halimede.bus.memory.faults import Wire
from halimede.bus.memory.session import Session, SessionSubscription
from halimede.bus.message import Packet
from halimede.bus.reason_codes import SUCCESS
from halimede.bus.transport import CLOSE_TIMEOUT, Deliver, Ended, PendingAck, Transport

if TYPE_CHECKING:
    from halimede.bus.memory import MemoryBroker

WINDOW = 1000
LOST = "the message or its acknowledgement was lost"


class MemoryTransport(Transport):
    """One client's connection. ``MemoryBroker.join`` gives it its session."""

    session: Session

    def __init__(
        self, broker: MemoryBroker, client_id: str, will: Packet | None, deliver: Deliver, receive_maximum: int
    ) -> None:
        super().__init__(broker.max_packet, WINDOW)
        self.client_id = client_id
        self.will = will
        self._broker = broker
        self._deliver = deliver
        self._receive_maximum = receive_maximum
        self._up = Wire(broker.faults, broker.chance, self)
        self._down = Wire(broker.faults, broker.chance, self)
        self._asked = 0

    def begin(self, keep_s: int) -> None:
        """Go on with the session."""
        self.session.connect(self._transmit, self._receive_maximum, keep_s)

    def publish(self, packet: Packet) -> PendingAck:
        """Send a packet to the broker, through whatever faults are on."""
        key = self._next_key()
        answer = self._expect(key)
        if len(packet.tail):
            packet = replace(packet, payload=b"".join((packet.payload, packet.tail)), tail=b"")
        if not self._lost():
            self._up.carry(partial(self._published, key, packet, answered=True))
        elif packet.qos == 0:
            self._up.carry(partial(self._answer, key, SUCCESS))
        elif self._broker.chance.random() < 0.5:
            self._up.carry(partial(self._published, key, packet, answered=False))
        else:
            self._up.carry(partial(self._unanswered, key, LOST))
        return answer

    def subscribe(self, filter_: str, qos: int) -> PendingAck:
        """Subscribe at the broker, which sends retained messages at once."""
        key = self._next_key()
        self._up.carry(partial(self._subscribed, key, filter_, qos))
        return self._expect(key)

    def unsubscribe(self, filter_: str) -> PendingAck:
        """Unsubscribe at the broker."""
        key = self._next_key()
        self._up.carry(partial(self._unsubscribed, key, filter_))
        return self._expect(key)

    async def close(self, *, keep: bool = False) -> None:
        """Disconnect behind what is under way."""
        self._up.carry(partial(self._broker.leave, self, Ended("closed"), keep=keep))
        await asyncio.wait([self.ended], timeout=CLOSE_TIMEOUT)

    def abort(self, reason: str) -> None:
        """Break the connection: the broker publishes the will."""
        self._broker.leave(self, Ended(reason))

    def push(self, packet: Packet, qos: int, *, retained: bool = False) -> None:
        """Take a message from the broker for this client."""
        packet = replace(packet, qos=min(packet.qos, qos), retain=retained)
        if packet.qos == 0:
            if not self._lost():
                self._down.carry(partial(self._deliver, packet, None, 0))
        else:
            self.session.push(packet)

    def _lost(self) -> bool:
        faults = self._broker.faults
        return faults.happens(faults.loss, self._broker.chance)

    def _published(self, key: int, packet: Packet, *, answered: bool) -> None:
        reason = self._broker.route(packet)
        if answered:
            self._down.carry(partial(self._answer, key, reason))
        else:
            self._unanswered(key, LOST)

    def _next_key(self) -> int:
        self._asked += 1
        return self._asked

    def _subscribed(self, key: int, filter_: str, qos: int) -> None:
        entry = self.session.filters[filter_] = SessionSubscription.of(filter_, qos)
        self._down.carry(partial(self._answer, key, qos))
        self._broker.replay(self, entry)

    def _unsubscribed(self, key: int, filter_: str) -> None:
        self.session.filters.pop(filter_, None)
        self._down.carry(partial(self._answer, key, SUCCESS))

    def _transmit(self, number: int, packet: Packet) -> None:
        """Deliver a QoS 1 message; it takes a place of the receive maximum until it is acknowledged."""
        if self.ended.done() or number not in self.session.unacknowledged:
            return
        if self._lost():
            again = partial(self._transmit, number, replace(packet, duplicate=True))
            asyncio.get_running_loop().call_later(self._broker.faults.redelivery_s, again)
            return
        acknowledge = partial(self._acknowledge, number)
        self._down.carry(partial(self._deliver, packet, acknowledge, number))
        faults = self._broker.faults
        if faults.happens(faults.duplicate, self._broker.chance):
            self._down.carry(partial(self._deliver, replace(packet, duplicate=True), acknowledge, number))

    def _acknowledge(self, number: int) -> bool:
        if self.ended.done():
            return False
        self._up.carry(partial(self.session.acknowledged, number))
        return True
