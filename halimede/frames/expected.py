"""Samples that wait for an answer, and which replies are believed: one by whom a sample was sent to, with its own id.

The first good answer to a sample counts. Whatever comes after it, or too late, or to nothing that was asked is counted
and dropped.
"""

from __future__ import annotations

from collections.abc import Callable

from halimede.bus import Delivery
from halimede.frames.asks import Ask
from halimede.frames.recent import Recent
from halimede.frames.seldom import Seldom
from halimede.messages import Reply

#: correlations of samples that are over, remembered to tell a late reply from a forged one
REMEMBERED = 4096


class Expected:
    """The samples under way, by their correlation. ``answered`` is called after each answer."""

    def __init__(self, answered: Callable[[], None]) -> None:
        self.asks: dict[bytes, Ask] = {}
        #: answers to samples that were given up; to answered ones; to nothing that was asked
        self.late = self.repeated = self.unknown = 0
        self._answered = answered
        #: samples that are over, and whether they were answered
        self._done: Recent[bytes, bool] = Recent(REMEMBERED)
        self._seldom = Seldom()

    def over(self, ask: Ask) -> None:
        """Expect no answer to a sample any more."""
        del self.asks[ask.correlation]
        self._done.put(ask.correlation, ask.reply is not None)

    def replied(self, delivery: Delivery[Reply]) -> None:
        """Give a reply to the sample that it answers, or count it."""
        reply, correlation = delivery.body, delivery.packet.correlation
        ask = self.asks.get(correlation)
        if ask is None:
            answered = self._done.get(correlation)
            if answered is None:
                self._disbelieve("reply to nothing that was asked", reply)
            elif answered:
                self.repeated += 1
            else:
                self.late += 1
        elif reply.id != ask.frame.id:
            self._disbelieve("reply with another sample's id", reply)
        elif not ask.asked & {"", reply.worker}:
            self._disbelieve("reply of a worker that was not asked", reply)
        elif ask.reply or (reply.prediction is None and not (ask.out and ask.worker in {"", reply.worker})):
            self.repeated += 1  # also the refusal of a worker that no longer has the sample
        else:
            ask.reply = reply
            ask.turn.set()
            self._answered()

    def _disbelieve(self, event: str, reply: Reply) -> None:
        self.unknown += 1
        self._seldom.warning(event, worker=reply.worker)
