"""Who has to be there before a system counts as up: GM and every node, by what they say of themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from halimede.bus.message import Delivery
from halimede.messages import GmPresence, Presence


class ReadinessWaiter:
    """Waits for the presence of GM and of every node."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.missing = {"global manager", *(f"node {node}" for node in nodes)}
        self.complete = asyncio.Event()
        #: where GM's page is
        self.page = ""

    async def gm(self, delivery: Delivery[GmPresence]) -> None:
        """Hear GM."""
        if delivery.body.online:
            self.page = delivery.body.http
            self._here("global manager")

    async def node(self, delivery: Delivery[Presence]) -> None:
        """Hear a node's LC."""
        if delivery.body.online:
            self._here(f"node {delivery.names['node']}")

    def _here(self, name: str) -> None:
        self.missing.discard(name)
        if not self.missing:
            self.complete.set()
