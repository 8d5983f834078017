"""Limits the message rate of each node, so that one node cannot starve the others.

Each node has a budget. Within it what it says is taken at once, in order. Beyond it only the newest of each topic is
kept and taken as the budget allows: reports are states, so what is overtaken need never be looked at.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from services.gm.rate_limit import RateLimit

log = structlog.get_logger()

Work = Callable[[], Awaitable[None]]
#: what a node may spend, a second and at once: far more than any needs. A small report costs 1
RATE, BURST = 200.0, 1000.0
#: what all may say together before it counts as a crowd, in which the broker may have dropped something
CROWD_RATE, CROWD_BURST = 1000.0, 2000.0
KIBIBYTE = 1024
#: topics of one node of which the newest waits, as many as one sync may name; and bytes of all that waits
MOST_TOPICS, MOST_BYTES = 10_000, 64 * 1024 * 1024
#: seconds without a crowd after which it is over
CALM = 2.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    work: Work
    cost: float
    size: int


class IngressLimiter:
    """``offer`` a node's message; ``run`` processes the delayed ones. ``calmed`` is called at the end of a surge.

    Attributes:
        overtaken: messages replaced by a newer one on their topic before they were looked at.
        dropped: those for which there was no room, or that the node repeats by itself.

    """

    def __init__(self, flooded: Callable[[str], Awaitable[None]], calmed: Callable[[], Awaitable[None]]) -> None:
        self.overtaken = self.dropped = 0
        self._flooded = flooded
        self._calmed = calmed
        self._budgets: RateLimit[str] = RateLimit(RATE, BURST)
        self._crowd: RateLimit[str] = RateLimit(CROWD_RATE, CROWD_BURST)
        self._nodes: dict[str, dict[str, _Waiting]] = {}
        self._bytes = 0
        self._wake = asyncio.Event()
        #: when the crowd will be over, if nobody adds to it; infinite without one
        self._calm_at = math.inf

    @property
    def waiting(self) -> int:
        """Messages that wait because of their node's rate limit."""
        return sum(len(topics) for topics in self._nodes.values())

    def heard(self) -> None:
        """Count a message, of whomever: what the broker sends because it retains it is none."""
        if not self._crowd.spend(""):
            self._calm_at = asyncio.get_running_loop().time() + CALM
            self._wake.set()

    async def allows(self, node: str) -> bool:
        """Whether a node may say something now; for what it says again by itself, so that nobody need read it first."""
        if node not in self._nodes and self._budgets.left(node) > 0:
            return True
        self.dropped += 1
        await self._flooded(node)
        return False

    async def offer(self, node: str, topic: str, work: Work, *, size: int, cost: float = 1.0) -> None:
        """Do ``work`` now, or later in place of what waits from that topic. ``size``: bytes that it came in."""
        cost += size / KIBIBYTE
        waiting = self._nodes.get(node)
        if waiting is None and self._budgets.spend(node, cost):
            await work()
            return
        if waiting is None:
            waiting = self._nodes[node] = {}
            self._wake.set()
            await self._flooded(node)
        if old := waiting.pop(topic, None):
            self.overtaken += 1
            self._bytes -= old.size
        if len(waiting) >= MOST_TOPICS or self._bytes + size > MOST_BYTES:
            self.dropped += 1
            return
        waiting[topic] = _Waiting(work, cost, size)
        self._bytes += size

    async def run(self) -> None:
        """Take what waits until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._nodes or self._calm_at < math.inf:
                for node in list(self._nodes):
                    await self._next(node)
                if asyncio.get_running_loop().time() >= self._calm_at:
                    self._calm_at = math.inf
                    await self._calmed()
                await asyncio.sleep(1 / RATE)

    async def _next(self, node: str) -> None:
        """Take one message of a node, the one that has waited longest, if its budget allows."""
        waiting = self._nodes[node]
        topic = next(iter(waiting), "")
        if topic and not self._budgets.spend(node, waiting[topic].cost):
            return
        if topic:
            taken = waiting.pop(topic)
            self._bytes -= taken.size
            try:
                await taken.work()
            except Exception:  # what is wrong with one message stops no other
                log.exception("message failed", node=node, topic=topic)
        if not waiting:
            del self._nodes[node]
