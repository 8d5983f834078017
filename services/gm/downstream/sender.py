"""Sends to a node what is in its line, once, and learns from the broker what became of it.

What the broker did not take is noted for the next try and holds up nothing else. When to try, and what, the line says.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TypeVar

import structlog

from halimede.bus import Bus
from halimede.bus.ordering import SequenceNumber
from halimede.bus.reason_codes import judge
from halimede.errors import BusError, HalimedeError, RefusedError, TooLargeError
from halimede.messages import Synced
from halimede.topic import Address
from halimede.topics import SYNCED
from services.gm.downstream.node_state import Attempt, NodeState

log = structlog.get_logger()
M = TypeVar("M")

#: how often a broker's refusal counts: repeating hardly helps, but its rules may be mended
REFUSED = 16


class DownstreamSender:
    """GM's voice to all nodes. ``epoch`` goes with every message, as it is then."""

    def __init__(self, bus: Bus, epoch: int) -> None:
        self.epoch = epoch
        self._bus = bus
        self._number = 0
        #: messages sent, and those among them that were sent again
        self.sent = self.resent = 0

    async def send(
        self, line: NodeState, attempt: Attempt, address: Address[M], body: M, patience: float = 0.0
    ) -> None:
        """Send once. Nobody waits for the broker's word, but for the answer to a sync, which has to come behind.

        ``patience``: seconds that the node's answer may take because of others. Raises BusError when the broker is
        away.
        """
        stamp = self._stamp()
        try:
            answer = None if line.sync else self._bus.publish_now(address, body, properties=stamp)
            if answer is None:
                await self._bus.publish(address, body, properties=stamp)
        except (RefusedError, TooLargeError) as error:
            self._refused(attempt, address.text, error, patience)
            return
        again = attempt.count > 0
        attempt.sent(_now(), patience)
        if answer is None:
            self._taken(again=again)
            if line.sync:
                line.sync.count += 1
        else:
            answer.add_done_callback(partial(self._answer_came, attempt, address.text, patience, again=again))
            await asyncio.sleep(0)  # what one turn of the loop sends leaves at its end: nodes have work the sooner

    async def synced(self, node: str, count: int) -> None:
        """End the answer to a sync, which took so many messages. Raises BusError when the broker is away."""
        body = Synced(epoch=self.epoch, count=count)
        await self._bus.publish(SYNCED.at(node=node), body, properties=self._stamp())

    def _answer_came(
        self, attempt: Attempt, topic: str, patience: float, answer: asyncio.Future[int], *, again: bool
    ) -> None:
        try:
            judge(topic, answer.result())
        except RefusedError as error:
            self._refused(attempt, topic, error, patience)
        except BusError:
            attempt.due = _now()  # ``wake`` of the lines tries it again
        else:
            self._taken(again=again)

    def _taken(self, *, again: bool) -> None:
        self.sent += 1
        self.resent += again

    def _refused(self, attempt: Attempt, topic: str, error: HalimedeError, patience: float) -> None:
        """Take note of what the broker does not take: the rest must not wait for it."""
        log.warning("not sent", topic=topic, error=str(error))
        attempt.count = REFUSED
        attempt.sent(_now(), patience)

    def _stamp(self) -> dict[str, str]:
        self._number += 1
        return SequenceNumber(self.epoch, self._number).properties


def _now() -> float:
    return asyncio.get_running_loop().time()
