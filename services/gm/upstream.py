"""Receives the nodes' messages (``Upstream``): presences, reports, syncs and dead letters.

A presence shows whether a node is online. A report is the state of one resource on a node. A sync lists all that a node
holds. A dead letter is a message that a client could not read.

A body that contradicts its topic is refused, so that a node can report only on itself (the broker's rules restrict who
may write a topic). A handler checks the message. ``IngressLimiter`` then runs its work: at once, or later if the node
is above its rate. The work records the message and queues resources to be reconciled. When a surge of messages is over,
GM requests the retained messages again: the broker drops messages for a client that is too slow.
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
#: characters of a dead letter's topic in its event
MAX_TOPIC_SHOWN = 256
#: nodes that are known or have sent a message; above that number, messages of a new node are dropped
MAX_NODES = 10_000
#: cost of a presence or a sync: as much as so many small reports
HEAVY_COST = 20.0
#: messages of events: about a node above its limit, and about a node name (in place of ``{}``) that is used twice
FLOOD_TEXT = "its messages exceed the limit of one node: GM reads only the newest of each topic, with delay"
DUPLICATE_TEXT = (
    "two local controllers with different stores use this node name and disconnect each other: stop one, or"
    " start one with another --node than {}"
)
log = structlog.get_logger()
#: what a message causes, after its checks
Work = Callable[[], Awaitable[None]]
#: budget of a node, per second and burst, far above any node's need. A small report costs 1
RATE, BURST = 200.0, 1000.0
#: messages of all nodes, per second and burst, above which there is a surge: the broker may have dropped some
CROWD_RATE, CROWD_BURST = 1000.0, 2000.0
#: bytes of a message that cost 1 in addition
KIBIBYTE = 1024
#: most topics of one node whose newest message waits, as many as one sync may name; most bytes of all waiting messages
MAX_WAITING_TOPICS, MAX_WAITING_BYTES = 10_000, 64 * 1024 * 1024
#: seconds below the rate of a surge after which the surge is over
CALM_S = 2.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A message that waits: its work, the cost of the work in small reports, and its bytes."""

    work: Work
    cost: float
    size: int


class IngressLimiter:
    """Limits the message rate of each node, so that one node cannot starve the others.

    Each node has a budget. Within it, the node's messages are processed at once, in order. Beyond it, only the newest
    message of each topic waits, and is processed by ``run`` as the budget allows: a report is a whole state, so an
    older one is not needed. ``on_flood`` is called with the name of a node that goes beyond its budget, ``on_calm``
    when a surge of all nodes' messages is over.

    Attributes:
        overtaken: number of messages that a newer one of their topic replaced before they were processed.
        dropped: number of messages that were dropped: too many waited, or ``accepts`` returned False.

    """

    def __init__(self, on_flood: Callable[[str], Awaitable[None]], on_calm: Callable[[], Awaitable[None]]) -> None:
        self.overtaken = self.dropped = 0
        self._on_flood = on_flood
        self._on_calm = on_calm
        self._budgets: RateLimit[str] = RateLimit(RATE, BURST)
        self._crowd: RateLimit[str] = RateLimit(CROWD_RATE, CROWD_BURST)
        #: the waiting messages by node and topic, the oldest first, and the bytes of all of them
        self._nodes: dict[str, dict[str, _Waiting]] = {}
        self._bytes = 0
        self._wake = asyncio.Event()
        #: the event loop's time of the end of the surge, if it does not continue; infinite without a surge
        self._calm_at = math.inf

    @property
    def waiting(self) -> int:
        """The number of messages that wait because of their node's limit."""
        return sum(len(topics) for topics in self._nodes.values())

    def count_message(self) -> None:
        """Count a message, to notice a surge of all nodes together. Call it for each message that is not retained."""
        if not self._crowd.spend(""):
            self._calm_at = asyncio.get_running_loop().time() + CALM_S
            self._wake.set()

    async def accepts(self, node: str) -> bool:
        """Whether to read a message of a node: its budget is not spent, and none of its messages waits.

        If not, count the message as dropped and call ``on_flood``. The message is lost, so call this only for one that
        the node sends again by itself, such as a sync.
        """
        if node not in self._nodes and self._budgets.budget_of(node) > 0:
            return True
        self.dropped += 1
        await self._on_flood(node)
        return False

    async def offer(self, node: str, topic: str, work: Work, *, size: int, cost: float = 1.0) -> None:
        """Run ``work`` now; or later, in place of the waiting work of that topic; or never, if too many messages wait.

        ``size``: bytes of the message. ``cost``: of the work, in small reports; each KiB of ``size`` is added.
        """
        cost += size / KIBIBYTE
        waiting = self._nodes.get(node)
        if waiting is None and self._budgets.spend(node, cost):
            await work()
            return
        if waiting is None:
            waiting = self._nodes[node] = {}
            self._wake.set()
            await self._on_flood(node)
        if old := waiting.pop(topic, None):
            self.overtaken += 1
            self._bytes -= old.size
        if len(waiting) >= MAX_WAITING_TOPICS or self._bytes + size > MAX_WAITING_BYTES:
            self.dropped += 1
            return
        waiting[topic] = _Waiting(work, cost, size)
        self._bytes += size

    async def run(self) -> None:
        """Process waiting messages as budgets allow, and notice the end of each surge, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._nodes or self._calm_at < math.inf:
                for node in list(self._nodes):
                    await self._process_oldest(node)
                if asyncio.get_running_loop().time() >= self._calm_at:
                    self._calm_at = math.inf
                    await self._on_calm()
                await asyncio.sleep(1 / RATE)

    async def _process_oldest(self, node: str) -> None:
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
    """GM's subscriptions to presences, reports, syncs and dead letters. ``start`` it, and run ``intake``."""

    def __init__(self, bus: Bus, cluster: Cluster, plane: ControlPlane) -> None:
        self._bus = bus
        self._cluster = cluster
        self._plane = plane
        #: the present second of the event loop's time, and the dead letters in it
        self._second = 0
        self._letters_this_second = 0
        #: number of dead letters received
        self.dead_letters = 0
        #: the sequence number of each node's last sync
        self._synced: dict[str, SequenceNumber] = {}
        #: nodes that have sent reports, or cleared them, but no presence and no sync
        self._strangers: set[str] = set()
        self.intake = IngressLimiter(self._flooded, self._calmed)

    async def start(self) -> None:
        """Subscribe; called once, before the first connection."""
        await self._bus.subscribe(PRESENCE.filter(), self._presence)
        await self._bus.subscribe(NODE_STATUS.filter(), self._status, cleared=self._status_cleared)
        await self._bus.subscribe(SYNC.filter(), self._sync, accepts=self._may_sync)
        await self._bus.subscribe(DEAD_LETTER.filter(), self._dead_letter)

    async def _presence(self, delivery: Delivery[Presence]) -> None:
        """Check a presence. Raises InvalidFieldError."""
        node, presence = delivery.names["node"], delivery.body
        if presence.node != node:
            raise InvalidFieldError("node", presence.node, f"the topic is of node {node}: set that name")
        check_epoch(presence.epoch)
        work = partial(self._take_presence, node, presence, retained=delivery.packet.retain)
        await self._offer(delivery, work, HEAVY_COST)

    async def _take_presence(self, node: str, presence: Presence, *, retained: bool) -> None:
        """Process a checked presence."""
        await self._plane.process_presence(presence, retained=retained)
        if presence.online:
            self._plane.syncs.answer_waiting(node)
            if self._plane.nodes.is_duplicate(presence):
                await self._cluster.record("Warning", "DuplicateNode", f"node/{node}", DUPLICATE_TEXT.format(node))

    async def _may_sync(self, names: Mapping[str, str]) -> bool:
        """Whether a sync of the node in ``names`` is decoded at all."""
        # the longest sync takes tens of milliseconds to decode; a node repeats its sync until it is answered
        if await self.intake.accepts(names["node"]):
            return True  # ``_offer`` counts it
        self.intake.count_message()
        return False

    async def _sync(self, delivery: Delivery[Sync]) -> None:
        """Check a sync. Raises InvalidFieldError."""
        node, stamp = delivery.names["node"], _stamp(delivery)
        check_epoch(delivery.body.epoch)
        check_epoch(delivery.body.gm_epoch, "gmEpoch")
        await self._offer(delivery, partial(self._take_sync, node, delivery.body, stamp), HEAVY_COST)

    async def _take_sync(self, node: str, sync: Sync, stamp: SequenceNumber) -> None:
        """Process a checked sync, unless a later one has arrived before."""
        last = self._synced.get(node, stamp)
        self._synced[node] = stamp
        if stamp.epoch == last.epoch and stamp.is_overtaken_by(last):
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
        """Check a report. Raises InvalidFieldError."""
        node, key, stamp = delivery.names["node"], _key(delivery.names), _stamp(delivery)
        if not delivery.packet.retain:
            self._plane.nodes.confirm(node, stamp.epoch)
        await self._offer(delivery, partial(self._take_status, node, key, delivery.body, stamp))

    async def _take_status(self, node: str, key: Key, status: NodeStatus, stamp: SequenceNumber) -> None:
        """Process a checked report on a resource."""
        stored, has_uid = self._cluster.get(key), bool(status.uid)
        if not has_uid:
            if stored is None:
                return  # nothing on the node can be named in a delete
            status = complete_report(status, stored, self._plane.index.roles_on(key, node) or frozenset())
        if stored is None or stored.uid != status.uid:
            # an earlier uid of that name: a retained report, or an old insert has reached the node late
            await self._plane.process_unknown_report(node, key, status)
        elif self._plane.reports.take(key, node, status, stamp):
            is_last = has_uid and self._plane.downstream.acknowledge(node, key, status.uid, status.observed_generation)
            # users wait for the last node's acknowledgement, not for counts
            self._plane.queue.add(key, spaced=not is_last)
            for watcher in self._plane.index.watchers(key):
                self._plane.queue.add(watcher, spaced=True)

    async def _status_cleared(self, names: Mapping[str, str]) -> None:
        """Receive the empty message that clears a report: the node no longer holds the resource."""
        node, key = names["node"], _key(names)

        async def clear() -> None:
            self._process_cleared(node, key)

        if await self._is_admitted(node):
            await self.intake.offer(node, NODE_STATUS.at(**names).text, clear, size=0)

    async def _offer(self, delivery: Delivery[Any], work: Work, cost: float = 1.0) -> None:
        """Give the work of a checked message to the limiter, unless its node is not admitted."""
        node = delivery.names["node"]
        if not delivery.packet.retain:
            self.intake.count_message()
        if await self._is_admitted(node):
            await self.intake.offer(node, delivery.address.text, work, size=len(delivery.packet.payload), cost=cost)

    async def _is_admitted(self, node: str) -> bool:
        """Whether messages of a node are processed: of each known node, and of a limited number of unknown ones.

        An unknown node is counted as a stranger; above the limit an event is recorded.
        """
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
        """Record that a node is above its limit."""
        await self._cluster.record("Warning", "NodeFlood", f"node/{node}", FLOOD_TEXT)

    async def _calmed(self) -> None:
        """Request the retained messages again after a surge."""
        await self._bus.recall(PRESENCE.filter())
        await self._bus.recall(NODE_STATUS.filter())

    def _process_cleared(self, node: str, key: Key) -> None:
        """Process that a node no longer holds a resource."""
        self._plane.reports.mark_cleared(key, node)
        self._plane.downstream.clear_reported(node, key)
        self._plane.queue.add(key)

    async def _dead_letter(self, delivery: Delivery[DeadLetter]) -> None:
        """Count a dead letter, and record it as an event unless there are too many."""
        self.dead_letters += 1
        self._plane.observer.receive_dead_letter(delivery.body)
        self.intake.count_message()
        second = int(asyncio.get_running_loop().time())
        self._letters_this_second = self._letters_this_second + 1 if second == self._second else 1
        self._second = second
        if self._letters_this_second <= DEAD_LETTERS_PER_SECOND:
            dead_letter = delivery.body
            text = f"{dead_letter.topic[:MAX_TOPIC_SHOWN]}: {dead_letter.reason} ({dead_letter.size} bytes)"
            await self._cluster.record("Warning", "DeadLetter", f"client/{delivery.names['client']}", text)


def complete_report(status: NodeStatus, stored: StoredResource, roles: Collection[str]) -> NodeStatus:
    """Return a report that names no uid, with uid and generation of the stored resource.

    ``roles``: those of the resource's workers on the node. If the report has no workers, one of each role is added with
    the report's phase, unless that is Ready.
    """
    workers = [
        WorkerReport(name=role, role=role, phase=status.phase)
        for role in get_args(WorkerRole)
        if role in roles and status.phase != "Ready"
    ]
    generation, workers = stored.resource.metadata.generation, status.workers or workers
    return msgspec.structs.replace(status, uid=stored.uid, observed_generation=generation, workers=workers)


def _stamp(delivery: Delivery[Any]) -> SequenceNumber:
    """Return the sequence number of a message. Raises InvalidFieldError for an impossible one."""
    stamp = SequenceNumber.read(delivery.properties)
    check_epoch(stamp.epoch)
    return stamp


def _key(names: Mapping[str, str]) -> Key:
    """Return the resource that a topic names."""
    return Key(names["plural"], names["ns"], names["name"])
