"""One connection that a broker accepted: what an adapter implements. ``connection.py`` keeps one after the other up.

A link ends once and is never used again, so no state of an old connection can leak into a new one.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from halimede.bus.message import Grants, Packet
from halimede.errors import DisconnectedError

#: seconds that closing a connection may take
CLOSE_TIMEOUT = 2.0

#: tells the broker that a QoS 1 message was handled; returns whether its connection is there
Acknowledge = Callable[[], bool]
#: gets a message, what acknowledges it (None at QoS 0), and its packet identifier
Deliver = Callable[[Packet, Acknowledge | None, int], None]


@dataclass(frozen=True, slots=True)
class Ended:
    """Why a link is gone. ``taken_over``: another client connected with our id. ``barred``: it was never let in.

    ``explained``: there is nothing to guess: we ended it ourselves, whatever for, or the broker said why it did.
    """

    reason: str
    taken_over: bool = False
    barred: bool = False
    explained: bool = False


class Slots:
    """A bounded number of publishes that the broker has not answered yet. Who waits for a slot gets one in order.

    Attributes:
        free: slots that can be taken now. There are none while somebody waits.

    """

    def __init__(self, count: int) -> None:
        self.free = count
        self._waiters: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a slot without waiting; return whether there was one."""
        if not self.free:
            return False
        self.free -= 1
        return True

    async def acquire(self) -> None:
        """Wait for a slot and take it."""
        if self.take():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            else:
                self.release()  # it was handed over in the same turn of the loop
            raise

    def release(self) -> None:
        """Give a slot back: to the first who waits for one, else it is free."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.free += 1


class PendingAck(asyncio.Future[int]):
    """The broker's word on a packet. ``size``: the bytes of a publish that has a slot."""

    size = 0


class Transport(ABC):
    """One accepted connection. ``publish``, ``subscribe`` and ``unsubscribe`` send at once, in the order called."""

    def __init__(self, max_packet: int, window: int) -> None:
        self.max_packet = max_packet
        self.grants = Grants()
        #: whether the broker had kept the session of an earlier connection
        self.resumed = False
        #: places for publishes that the broker has not answered yet
        self.slots = Slots(window)
        #: bytes of the publishes that have one
        self.owed = 0
        self.ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._answers: dict[int, PendingAck] = {}

    @abstractmethod
    def publish(self, packet: Packet) -> PendingAck:
        """Send a packet; the future brings the reason code, or DisconnectedError."""

    @abstractmethod
    def subscribe(self, filter_: str, qos: int) -> PendingAck:
        """Subscribe; the future brings the granted QoS or a failure code, or DisconnectedError."""

    @abstractmethod
    def unsubscribe(self, filter_: str) -> PendingAck:
        """Unsubscribe; the future brings the reason code, or DisconnectedError."""

    @abstractmethod
    async def close(self, *, keep: bool = False) -> None:
        """Send what waits, then disconnect so that the broker publishes the will.

        ``keep``: the session stays for the time that it has; otherwise it ends.
        """

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Break the connection at once. Without effect on one that has ended."""

    def end(self, ended: Ended) -> None:
        """Adapters call this when the connection is gone: whoever waits for an answer is told."""
        if self.ended.done():
            return
        self.ended.set_result(ended)
        for key in list(self._answers):
            self._unanswered(key, f"the connection was lost: {ended.reason}")

    def publish_in_slot(self, packet: Packet, size: int) -> PendingAck:
        """Send a packet in a slot that the caller has taken; it is free again once the broker has answered."""
        try:
            answer = self.publish(packet)
        except BaseException:
            self.slots.release()
            raise
        if answer.done():
            self.slots.release()
        else:
            answer.size = max(size, 1)  # an empty one has a slot as well
            self.owed += answer.size
        return answer

    def _expect(self, key: int) -> PendingAck:
        answer = PendingAck()
        self._answers[key] = answer
        if self.ended.done():
            self._unanswered(key, f"the connection was lost: {self.ended.result().reason}")
        return answer

    def _answer(self, key: int, reason: int) -> None:
        self._settle(self._answers.pop(key, None), reason)

    def _unanswered(self, key: int, reason: str) -> None:
        self._settle(self._answers.pop(key, None), DisconnectedError(reason))

    def _settle(self, answer: PendingAck | None, outcome: int | DisconnectedError) -> None:
        """Give an answer to who asked, and its slot back. Without effect where nobody has asked."""
        if answer is None:
            return
        if answer.size:
            self.owed -= answer.size
            answer.size = 0
            self.slots.release()
        if answer.done():
            return
        if isinstance(outcome, int):
            answer.set_result(outcome)
        else:
            answer.set_exception(outcome)
            answer.exception()  # whoever asked may have left: an error that nobody reads is none
