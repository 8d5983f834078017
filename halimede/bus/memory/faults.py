"""What goes wrong between the memory broker and its clients, on demand and repeatable."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from halimede.bus.transport import Transport


@dataclass
class Faults:
    """What goes wrong, from now on: may be changed at any time. Shares are 0..1, times are seconds, one way.

    A lost QoS 0 message is gone. A QoS 1 publish is lost on its way in or its acknowledgement on the way out, each as
    likely: both give DisconnectedError. A QoS 1 delivery that is lost comes again, flagged, after ``redelivery_s``.
    """

    delay_s: tuple[float, float] = (0.0, 0.0)
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    reorder_s: float = 0.05
    redelivery_s: float = 1.0

    def happens(self, share: float, chance: random.Random) -> bool:
        """Whether a fault of this share strikes now. Chance is only asked where it is needed."""
        return share > 0 and chance.random() < share


class Wire:
    """One direction of a connection. Keeps order, but for what ``faults.reorder`` holds back."""

    def __init__(self, faults: Faults, chance: random.Random, link: Transport) -> None:
        self._faults = faults
        self._chance = chance
        self._link = link
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._armed = False

    def carry(self, arrive: Callable[[], None]) -> None:
        """Call ``arrive`` at the other end, if the connection is still there by then."""
        loop, faults = asyncio.get_running_loop(), self._faults
        at = loop.time() + (self._chance.uniform(*faults.delay_s) if faults.delay_s[1] else 0.0)
        if faults.happens(faults.reorder, self._chance):
            loop.call_at(at + faults.reorder_s, self._late, arrive)
            return
        if self._waiting:
            at = max(at, self._waiting[-1][0])
        self._waiting.append((at, arrive))
        if not self._armed:
            self._arm()

    def _late(self, arrive: Callable[[], None]) -> None:
        if not self._link.ended.done():
            arrive()

    def _arm(self) -> None:
        self._armed = True
        asyncio.get_running_loop().call_at(self._waiting[0][0], self._arrived)

    def _arrived(self) -> None:
        self._armed = False
        now, first = asyncio.get_running_loop().time(), True
        while self._waiting and (first or self._waiting[0][0] <= now) and not self._link.ended.done():
            first = False
            self._waiting.popleft()[1]()
        if self._waiting and not self._link.ended.done():
            self._arm()
