"""Answers nodes that sync: all that a node should hold, what it should let go of, then that this was all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from halimede.messages import Held, Sync
from halimede.names import Key
from services.gm.cluster.port import Cluster
from services.gm.controllers.actions import Delivery
from services.gm.downstream.queue import Downstream
from services.gm.reference_index import ReferenceIndex
from services.gm.workqueue import WorkQueue

#: seconds that a sync waits for the birth of its connection, which tells the node's labels
BIRTH_PATIENCE = 2.0


class SyncResponder:
    """Syncs that wait for their answer. ``decide`` says who shall hold a resource, for one node alone."""

    def __init__(
        self,
        cluster: Cluster,
        index: ReferenceIndex,
        downstream: Downstream,
        *,
        decide: Callable[[Key, str], Iterable[Delivery]],
        deliver: Callable[[Delivery], None],
        look: Callable[[Key], None],
    ) -> None:
        self._cluster = cluster
        self._index = index
        self._downstream = downstream
        self._decide = decide
        self._deliver = deliver
        self._look = look
        self._waiting: dict[str, Sync] = {}
        #: syncs heard
        self.count = 0
        self.queue: WorkQueue[str] = WorkQueue("syncs", self._answer)

    def heard(self, node: str, sync: Sync, *, described: bool) -> None:
        """A node said what it holds and asks for what it should; ``described``: its labels are known."""
        self.count += 1
        self._waiting[node] = sync
        patience = 0.0 if described else BIRTH_PATIENCE
        self.queue.add(node, at=asyncio.get_running_loop().time() + patience)

    def born(self, node: str) -> None:
        """A node's birth arrived: a sync may have waited for it."""
        if node in self._waiting:
            self.queue.add(node)

    async def _answer(self, node: str) -> None:
        sync = self._waiting.pop(node, None)
        if sync is None:
            return
        before = self._downstream.synced(node, sync.holds)
        held = {Key(h.plural, h.namespace, h.name): h for h in sync.holds}
        # services first: they bring what they refer to in the right order
        for key in dict.fromkeys([*sorted(self._index.assigned(node)), *held]):
            for action in self._decide(key, node):
                self._deliver(action)
        for key, holding in held.items():
            await self.forget_unknown(node, key, holding)
        self._downstream.answer(node)
        for key in before - held.keys():  # a deletion may have waited for this node alone
            if (stored := self._cluster.get(key)) and stored.deleting:
                self._look(key)

    async def forget_unknown(self, node: str, key: Key, held: Held) -> None:
        """Take from a node what was deleted while it was away: nobody has that uid."""
        if self._cluster.exists(key, held.uid):
            return
        stored = self._cluster.get(key)
        generation = held.generation
        if stored is None and not self._cluster.complete:
            last = self._cluster.buried(held.uid)
            if last is None:
                # our own store was lost: what runs out there may be all that is left of the user's work
                text = "the store was lost and does not know it: apply it again, or delete it"
                await self._cluster.record("Warning", "Unknown", str(key), f"node {node} holds it, but {text}")
                return
            generation = max(generation, last)
        self._downstream.forget(node, key, held.uid, generation)
