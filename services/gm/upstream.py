"""Takes in what nodes say: reports, presences, syncs; and what anybody could not read.

A body that contradicts its topic is refused, so that a node speaks for itself alone (the broker's rules say who may
write a topic). Handlers only note what they hear and where to look: none waits for anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from halimede.bus import Bus, Delivery
from halimede.errors import InvalidFieldError
from halimede.messages import DeadLetter, NodeStatus, Presence, Sync
from halimede.names import Key
from halimede.topics import DEAD_LETTER, NODE_STATUS, PRESENCE, SYNC
from services.gm.cluster.port import Cluster
from services.gm.engine import Engine

log = structlog.get_logger()

#: dead letters that become events, per second; the rest is only logged by whoever refused them
LETTERS_PER_SECOND = 5
MAX_TOPIC_SHOWN = 256


class Upstream:
    """The four subscriptions."""

    def __init__(self, bus: Bus, cluster: Cluster, engine: Engine) -> None:
        self._bus = bus
        self._cluster = cluster
        self._engine = engine
        self._second = 0
        self._letters = 0

    async def start(self) -> None:
        """Subscribe."""
        await self._bus.subscribe(PRESENCE.filter(), self._presence)
        await self._bus.subscribe(NODE_STATUS.filter(), self._status, cleared=self._status_cleared)
        await self._bus.subscribe(SYNC.filter(), self._sync)
        await self._bus.subscribe(DEAD_LETTER.filter(), self._dead_letter)

    async def _presence(self, delivery: Delivery[Presence]) -> None:
        node, presence = delivery.names["node"], delivery.body
        if presence.node != node:
            raise InvalidFieldError("node", presence.node, f"this is the topic of {node}: write its name")
        await self._engine.node_changed(node, self._engine.nodes.saw(presence))
        if presence.online:
            self._engine.born(presence)

    async def _sync(self, delivery: Delivery[Sync]) -> None:
        node = delivery.names["node"]
        await self._engine.node_changed(node, self._engine.nodes.synced(node, delivery.body.epoch))
        holds = {Key(held.plural, held.namespace, held.name): held.uid for held in delivery.body.holds}
        for key in self._engine.reports.missing(node, holds):  # a sync is the whole truth
            self._cleared(node, key)
        self._engine.synced(node, delivery.body)

    async def _status(self, delivery: Delivery[NodeStatus]) -> None:
        node, key, told = delivery.names["node"], _key(delivery.names), delivery.body
        stored = self._cluster.get(key)
        if stored is None or stored.uid != told.uid:
            return  # an earlier life of that name, kept by the broker; the node's sync will clear it up
        if self._engine.reports.take(key, node, told):
            self._engine.downstream.acknowledged(node, key, told.uid, told.observed_generation)
            self._engine.queue.add(key, spaced=True)

    async def _status_cleared(self, names: Mapping[str, str]) -> None:
        self._cleared(names["node"], _key(names))

    def _cleared(self, node: str, key: Key) -> None:
        self._engine.reports.cleared(key, node)
        self._engine.downstream.cleared(node, key)
        self._engine.queue.add(key)

    async def _dead_letter(self, delivery: Delivery[DeadLetter]) -> None:
        second = int(asyncio.get_running_loop().time())
        self._letters = self._letters + 1 if second == self._second else 1
        self._second = second
        if self._letters <= LETTERS_PER_SECOND:
            letter = delivery.body
            text = f"{letter.topic[:MAX_TOPIC_SHOWN]}: {letter.reason} ({letter.size} bytes)"
            await self._cluster.record("Warning", "DeadLetter", f"client/{delivery.names['client']}", text)


def _key(names: Mapping[str, str]) -> Key:
    return Key(names["plural"], names["ns"], names["name"])
