"""One connection that a broker accepted: what an adapter implements. ``linked.py`` keeps one after the other up.

A link ends once and is never used again, so no state of an old connection can leak into a new one.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from halimede.bus.held import Acknowledge
from halimede.bus.message import Grants, Packet
from halimede.errors import DisconnectedError

#: seconds that closing a connection may take
CLOSE_TIMEOUT = 2.0

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


class Slots(asyncio.Semaphore):
    """Places for publishes that the broker has not answered yet."""

    def take(self) -> bool:
        """Take one without waiting; False when there is none, or others wait for one."""
        if self.locked():
            return False
        self._value -= 1
        return True


class Answer(asyncio.Future[int]):
    """The broker's word on a packet. ``size``: the bytes of a publish that has a slot."""

    size = 0


class Link(ABC):
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
        self._answers: dict[int, Answer] = {}

    @abstractmethod
    def publish(self, packet: Packet) -> Answer:
        """Send a packet; the future brings the reason code, or DisconnectedError."""

    @abstractmethod
    def subscribe(self, filter_: str, qos: int) -> Answer:
        """Subscribe; the future brings the granted QoS or a failure code, or DisconnectedError."""

    @abstractmethod
    def unsubscribe(self, filter_: str) -> Answer:
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

    def publish_in_slot(self, packet: Packet, size: int) -> Answer:
        """Send a packet in a slot that the caller has taken; it is free again once the broker has answered."""
        try:
            answer = self.publish(packet)
        except BaseException:
            self.slots.release()
            raise
        if answer.done():
            self.slots.release()
        else:
            answer.size = size
            self.owed += size
        return answer

    def _expect(self, key: int) -> Answer:
        answer = Answer()
        self._answers[key] = answer
        if self.ended.done():
            self._unanswered(key, f"the connection was lost: {self.ended.result().reason}")
        return answer

    def _answer(self, key: int, reason: int) -> None:
        answer = self._answers.pop(key, None)
        if answer is not None:
            self._settle(answer, reason)

    def _unanswered(self, key: int, reason: str) -> None:
        answer = self._answers.pop(key, None)
        if answer is not None:
            self._settle(answer, DisconnectedError(reason))

    def _settle(self, answer: Answer, word: int | DisconnectedError) -> None:
        """Tell who asked, and let go of its slot."""
        if answer.size:
            self.owed -= answer.size
            answer.size = 0
            self.slots.release()
        if answer.done():
            return
        if isinstance(word, int):
            answer.set_result(word)
        else:
            answer.set_exception(word)
            answer.exception()  # whoever asked may have left: an error that nobody reads is none
