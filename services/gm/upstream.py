"""Receives the nodes' messages: reports, presences and syncs, and dead letters.

A body that contradicts its topic is refused, so that a node can report only on itself (the broker's rules restrict who
may write a topic). A handler checks the message. ``IngressLimiter`` runs the work of the message: at once, or later if
the node is above its rate. The work records the message and queues keys, and never waits. When a surge is over, GM
requests again what may have been lost: the broker drops messages for a client that is too slow.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import msgspec
import structlog

from halimede.bus import Bus, Delivery
from halimede.bus.ordering import SequenceNumber, check_epoch
from halimede.errors import InvalidFieldError
from halimede.messages import DeadLetter, NodeStatus, Presence, Sync, WorkerReport
from halimede.messages.control import WorkerRole
from halimede.names import Key
from halimede.topics import DEAD_LETTER, NODE_STATUS, PRESENCE, SYNC
from services.gm.cluster.port import Cluster, StoredResource
from services.gm.control_plane import ControlPlane
from services.gm.rate_limit import RateLimit

#: dead letters that become events, per second; the process that refused a message logs the rest
DEAD_LETTERS_PER_SECOND = 5
MAX_TOPIC_SHOWN = 256
#: nodes that are known or have sent a report; above that, messages of a new one are dropped
MAX_NODES = 10_000
#: the cost of a presence or a sync in reports: each causes much work
WEIGHTY = 20.0
FLOOD = "its messages exceed the limit of one node: GM reads only the newest of each topic, with delay"
TWO_OF_THEM = (
    "two local controllers with different stores use this node name and disconnect each other: stop one, or"
    " start one with another --node than {}"
)
log = structlog.get_logger()
Work = Callable[[], Awaitable[None]]
#: budget of a node, per second and burst, far above any node's need. A small report costs 1
RATE, BURST = 200.0, 1000.0
#: messages of all nodes, per second and burst, above which there is a surge: the broker may have dropped some
CROWD_RATE, CROWD_BURST = 1000.0, 2000.0
KIBIBYTE = 1024
#: topics of one node whose newest message waits, as many as one sync may name; and bytes of all waiting messages
MOST_TOPICS, MOST_BYTES = 10_000, 64 * 1024 * 1024
#: seconds without a surge after which it is over
CALM = 2.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    work: Work
    cost: float
    size: int


class IngressLimiter:
    """Limits the message rate of each node, so that one node cannot starve the others.

    Each node has a budget. Within it, its messages are processed at once, in order. Beyond it, only the newest message
    of each topic is kept, and processed as the budget allows: reports are states, so an older one is not needed.
    ``offer`` a node's message; ``run`` processes the delayed ones. ``calmed`` is called at the end of a surge.

    Attributes:
        overtaken: messages that were replaced by a newer one of their topic before they were processed.
        dropped: messages above the limit of bytes, or that the node repeats by itself.

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
        #: loop time of the end of the surge, if it does not continue; infinite without one
        self._calm_at = math.inf

    @property
    def waiting(self) -> int:
        """Messages that wait because of their node's rate limit."""
        return sum(len(topics) for topics in self._nodes.values())

    def count(self) -> None:
        """Count a message of any node; retained messages do not count."""
        if not self._crowd.spend(""):
            self._calm_at = asyncio.get_running_loop().time() + CALM
            self._wake.set()

    async def accepts(self, node: str) -> bool:
        """Whether a message of a node may be processed now; for messages that it repeats, before they are decoded."""
        if node not in self._nodes and self._budgets.budget_of(node) > 0:
            return True
        self.dropped += 1
        await self._flooded(node)
        return False

    async def offer(self, node: str, topic: str, work: Work, *, size: int, cost: float = 1.0) -> None:
        """Run ``work`` now, or later in place of the waiting work of that topic. ``size``: bytes of the message."""
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
        """Process waiting messages until cancelled."""
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
        """Process the oldest waiting message of a node, if the node's budget allows."""
        waiting = self._nodes[node]
        topic = next(iter(waiting), "")
        if topic and not self._budgets.spend(node, waiting[topic].cost):
            return
        if topic:
            message = waiting.pop(topic)
            self._bytes -= message.size
            try:
                await message.work()
            except Exception:  # an error in one message must not stop the others
                log.exception("message failed", node=node, topic=topic)
        if not waiting:
            del self._nodes[node]


class Upstream:
    """The four subscriptions."""

    def __init__(self, bus: Bus, cluster: Cluster, plane: ControlPlane) -> None:
        self._bus = bus
        self._cluster = cluster
        self._plane = plane
        self._second = 0
        self._letters_this_second = 0
        #: dead letters received
        self.dead_letters = 0
        self._synced: dict[str, SequenceNumber] = {}
        #: nodes that have sent reports but no presence and no sync
        self._strangers: set[str] = set()
        self.intake = IngressLimiter(self._flooded, self._calmed)

    async def start(self) -> None:
        """Subscribe."""
        await self._bus.subscribe(PRESENCE.filter(), self._presence)
        await self._bus.subscribe(NODE_STATUS.filter(), self._status, cleared=self._status_cleared)
        await self._bus.subscribe(SYNC.filter(), self._sync, wanted=self._may_sync)
        await self._bus.subscribe(DEAD_LETTER.filter(), self._dead_letter)

    async def _presence(self, delivery: Delivery[Presence]) -> None:
        node, presence = delivery.names["node"], delivery.body
        if presence.node != node:
            raise InvalidFieldError("node", presence.node, f"the topic is of node {node}: set that name")
        check_epoch(presence.epoch)
        work = partial(self._take_presence, node, presence, retained=delivery.packet.retain)
        await self._offer(delivery, work, WEIGHTY)

    async def _take_presence(self, node: str, presence: Presence, *, retained: bool) -> None:
        await self._plane.process_presence(presence, retained=retained)
        if presence.online:
            self._plane.syncs.answer_waiting(node)
            if self._plane.nodes.is_duplicate(presence):
                await self._cluster.record("Warning", "DuplicateNode", f"node/{node}", TWO_OF_THEM.format(node))

    async def _may_sync(self, names: Mapping[str, str]) -> bool:
        # the longest sync takes tens of milliseconds to decode; a node repeats its sync until it is answered
        self.intake.count()
        return await self.intake.accepts(names["node"])

    async def _sync(self, delivery: Delivery[Sync]) -> None:
        node, stamp = delivery.names["node"], _stamp(delivery)
        check_epoch(delivery.body.epoch)
        check_epoch(delivery.body.gm_epoch, "gmEpoch")
        await self._offer(delivery, partial(self._take_sync, node, delivery.body, stamp), WEIGHTY)

    async def _take_sync(self, node: str, sync: Sync, stamp: SequenceNumber) -> None:
        last = self._synced.get(node, stamp)
        self._synced[node] = stamp
        if stamp.epoch == last.epoch and stamp.overtaken_by(last):
            self._synced[node] = last
            return
        await self._plane.raise_epoch(sync.gm_epoch)
        await self._plane.node_changed(node, self._plane.nodes.process_sync(node, sync.epoch))
        self._plane.reports.begin_epoch(node, sync.epoch)
        holds = {Key(holding.plural, holding.namespace, holding.name): holding.uid for holding in sync.holds}
        for key in self._plane.reports.uncleared_keys(node, holds):  # a sync lists all that the node holds
            self._process_cleared(node, key)
        self._plane.syncs.receive(node, sync, described=self._plane.nodes.has_labels(node))

    async def _status(self, delivery: Delivery[NodeStatus]) -> None:
        node, key, stamp = delivery.names["node"], _key(delivery.names), _stamp(delivery)
        if not delivery.packet.retain:
            self._plane.nodes.confirm(node, stamp.epoch)
        await self._offer(delivery, partial(self._take_status, node, key, delivery.body, stamp))

    async def _take_status(self, node: str, key: Key, status: NodeStatus, stamp: SequenceNumber) -> None:
        stored, named = self._cluster.get(key), bool(status.uid)
        if not named:
            if stored is None:
                return  # nothing on the node can be named in a delete
            status = attribute(status, stored, self._plane.index.roles_on(key, node) or frozenset())
        if stored is None or stored.uid != status.uid:
            # an earlier uid of that name: a retained report, or an old insert has reached the node late
            await self._plane.process_unknown_report(node, key, status)
        elif self._plane.reports.take(key, node, status, stamp):
            done = named and self._plane.downstream.acknowledge(node, key, status.uid, status.observed_generation)
            # users wait for the last node's acknowledgement, not for counts
            self._plane.queue.add(key, spaced=not done)
            for watcher in self._plane.index.watchers(key):
                self._plane.queue.add(watcher, spaced=True)

    async def _status_cleared(self, names: Mapping[str, str]) -> None:
        node, key = names["node"], _key(names)

        async def clear() -> None:
            self._process_cleared(node, key)

        if await self._is_admitted(node):
            await self.intake.offer(node, NODE_STATUS.at(**names).text, clear, size=0)

    async def _offer(self, delivery: Delivery[Any], work: Work, cost: float = 1.0) -> None:
        node = delivery.names["node"]
        if not delivery.packet.retain:
            self.intake.count()
        if await self._is_admitted(node):
            await self.intake.offer(node, delivery.address.text, work, size=len(delivery.packet.payload), cost=cost)

    async def _is_admitted(self, node: str) -> bool:
        """Whether messages of a node are accepted: of each known node, and of a limited number of unknown ones."""
        nodes = self._plane.nodes
        if node in nodes or node in self._strangers:
            return True
        if len(nodes) + len(self._strangers) >= MAX_NODES:
            self._strangers -= nodes.keys()
        if len(nodes) + len(self._strangers) >= MAX_NODES:
            text = f"{MAX_NODES} nodes are known, the limit: delete some to add new ones (halimede delete node)"
            await self._cluster.record("Warning", "TooManyNodes", "gm", text)
            return False
        self._strangers.add(node)
        return True

    async def _flooded(self, node: str) -> None:
        await self._cluster.record("Warning", "NodeFlood", f"node/{node}", FLOOD)

    async def _calmed(self) -> None:
        await self._bus.recall(PRESENCE.filter())
        await self._bus.recall(NODE_STATUS.filter())

    def _process_cleared(self, node: str, key: Key) -> None:
        self._plane.reports.mark_cleared(key, node)
        self._plane.downstream.clear_reported(node, key)
        self._plane.queue.add(key)

    async def _dead_letter(self, delivery: Delivery[DeadLetter]) -> None:
        self.dead_letters += 1
        self._plane.observer.receive_dead_letter(delivery.body)
        self.intake.count()
        second = int(asyncio.get_running_loop().time())
        self._letters_this_second = self._letters_this_second + 1 if second == self._second else 1
        self._second = second
        if self._letters_this_second <= DEAD_LETTERS_PER_SECOND:
            dead_letter = delivery.body
            text = f"{dead_letter.topic[:MAX_TOPIC_SHOWN]}: {dead_letter.reason} ({dead_letter.size} bytes)"
            await self._cluster.record("Warning", "DeadLetter", f"client/{delivery.names['client']}", text)


def attribute(status: NodeStatus, stored: StoredResource, roles: Collection[str]) -> NodeStatus:
    """Return a report without uid and workers, as in the seed, as one on the present resource and its workers there."""
    workers = [
        WorkerReport(name=role, role=role, phase=status.phase)
        for role in get_args(WorkerRole)
        if role in roles and status.phase != "Ready"
    ]
    return msgspec.structs.replace(
        status,
        uid=stored.uid,
        observed_generation=stored.resource.metadata.generation,
        workers=status.workers or workers,
    )


def _stamp(delivery: Delivery[Any]) -> SequenceNumber:
    stamp = SequenceNumber.read(delivery.properties)
    check_epoch(stamp.epoch)
    return stamp


def _key(names: Mapping[str, str]) -> Key:
    return Key(names["plural"], names["ns"], names["name"])
