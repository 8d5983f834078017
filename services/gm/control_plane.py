"""GM's event loop: each event puts the keys of the resources that it concerns into one work queue.

An event is an edit of a resource, a presence, report or sync of a node, or a connection. It first updates the state of
nodes, reports or placements, which the control plane owns. Then the reconciler takes each key from the queue, compares
the resource with that state, and acts. A node that came online sends a sync, the list of what the node holds:
``SyncResponder`` answers with the inserts and deletes that the node needs.
"""

from __future__ import annotations

import asyncio

import structlog

from halimede.bus import Bus
from halimede.bus.ordering import MAX_INTEGER
from halimede.errors import InvalidFieldError
from halimede.messages import Held, NodeStatus, Presence, Sync
from halimede.names import Key
from services.gm.cluster.port import Cluster, LostVersion, NodeSeen, WorkersChanged
from services.gm.controllers import CONTROLLERS
from services.gm.downstream import Downstream
from services.gm.node_infos import NodeInfos
from services.gm.nodes import Change, Nodes
from services.gm.reconciler import Reconciler, SnapshotReader
from services.gm.reference_index import ReferenceIndex
from services.gm.reports import NodeReports
from services.gm.status_topics import StatusTopics
from services.gm.system_observer import SystemObserver
from services.gm.worker_file_store import WorkerFileStore
from services.gm.workloads.pod_settings import PodSettings
from services.gm.workloads.pod_status import nodes_by_worker
from services.gm.workqueue import WorkQueue, has_come

log = structlog.get_logger()
#: seconds in which the broker sends retained reports, after a connection and (without one) after the start
SETTLED_S, SETTLED_ALONE_S = 2.0, 15.0
#: seconds in which a node must confirm that it is online: longer than its back-off
NODE_PATIENCE = 14.0
#: the same while other nodes still appear, because GM has many messages to process; seconds between two checks of that
LONG_PATIENCE, APPEAR_S = 60.0, 2.0
#: seconds between two reconnections with a higher epoch because a node follows one: one is enough in general
OVERTAKE_SPACING = 60.0
#: seconds that a sync waits for the birth of its connection, which has the node's labels
BIRTH_PATIENCE = 2.0


class ControlPlane:
    """Adds the resources that an event concerns to ``queue``, to be reconciled."""

    def __init__(self, bus: Bus, cluster: Cluster, out: Bus | None = None, pods: PodSettings | None = None) -> None:
        self.nodes = Nodes()
        self.reports = NodeReports()
        self.index = ReferenceIndex(self.nodes, pods=pods is not None)
        self.downstream = Downstream(out or bus, cluster.epoch, self.nodes.is_online, cluster.session_key)
        self.display = StatusTopics(out or bus, cluster)
        self.files = WorkerFileStore(lambda key: self.queue.add(key, first=True))
        reader = SnapshotReader(
            cluster, self.nodes, self.reports, self.index, self.downstream, pods is not None, self.files
        )
        self.reconciler = Reconciler(
            cluster,
            self.index,
            self.downstream,
            display=self.display,
            snapshots=reader,
            pods=pods,
            chosen=self._changed,
        )
        self.queue = self.reconciler.queue
        self.syncs = SyncResponder(cluster, self.index, self.downstream, self.reconciler)
        #: the nodes as users see them, and the facts for the checks of the system
        self.infos = NodeInfos(cluster, self.nodes, self.reports, self.index, self.downstream)
        self.observer = SystemObserver(bus, cluster, self.nodes, self.reports, self.infos)
        self._bus = bus
        self._cluster = cluster
        self._pods = pods is not None
        self._next_overtake = 0.0
        self._doubt = asyncio.Event()
        #: loop time of the first check, on this connection, that saw a node unconfirmed
        self._unconfirmed_since: dict[str, float] = {}

    # --- what happens -----------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Load resources from the cluster and what GM stored: before it receives any message."""
        memory = await self._cluster.recall()
        for node in memory.drained:
            self.nodes.set_drained(node, drained=True)
        for presence in memory.nodes:
            self.nodes.restore(presence)
        resources = list(self._cluster.resources())
        self.reports.restore(memory.reports, {stored.key: stored.uid for stored in resources})
        for stored in resources:
            await self._changed(stored.key)
            for node, report in self.reports.of(stored.key).items():
                if report.live:
                    status = report.status
                    self.downstream.acknowledge(node, stored.key, status.uid, status.observed_generation)
        if self._pods:
            # there only statuses are stored, but the broker retains the nodes' own reports
            self.reconciler.settled_at = asyncio.get_running_loop().time() + SETTLED_ALONE_S

    async def follow(self) -> None:
        """Process changes of the cluster until cancelled."""
        async for happening in self._cluster.changes():
            match happening:
                case Key():
                    await self._changed(happening)
                case WorkersChanged(key):
                    self._scheduled(key)
                    self.queue.add(key)
                case NodeSeen(name, node):
                    await self.node_changed(name, self.nodes.register(name, node))

    async def watch(self) -> None:
        """Take nodes as offline that did not confirm that they are online; runs until cancelled."""
        while True:
            await self._doubt.wait()
            self._doubt.clear()
            while self.nodes.list_unconfirmed():
                for node in self._silent_nodes():
                    await self.node_changed(node, self.nodes.set_offline(node))
                await asyncio.sleep(APPEAR_S)

    def _silent_nodes(self) -> list[str]:
        """Return the nodes that have been unconfirmed for too long while GM was connected."""
        now, unconfirmed = asyncio.get_running_loop().time(), self.nodes.list_unconfirmed()
        if not self._bus.connected:
            self._unconfirmed_since.clear()
            return []
        patience = NODE_PATIENCE if self._unconfirmed_since.keys() <= set(unconfirmed) else LONG_PATIENCE
        since = {node: self._unconfirmed_since.get(node, now) for node in unconfirmed}
        silent = [node for node in unconfirmed if now - since[node] >= patience]
        self._unconfirmed_since = {node: since[node] for node in since.keys() - silent}
        return silent

    async def process_presence(self, presence: Presence, *, retained: bool) -> None:
        """Process a birth or will; ``retained``: the broker sent it because GM has subscribed."""
        change = self.nodes.process_presence(presence, retained=retained)
        if retained and self.nodes.is_unconfirmed(presence.node):
            self._doubt.set()
        await self.node_changed(presence.node, change)

    async def node_changed(self, node: str, change: Change) -> None:
        """Process that a node came online, went offline, became ready or not, or got other labels."""
        keys: set[Key] = self.index.node_changed(node) if change.labels else set()
        if change.ready:
            keys |= set(self.index.keys_on(node))
        if change.online:
            keys |= self.downstream.keys(node)
            keys |= set(self.index.keys_on(node))
            online = self.nodes.is_online(node)
            self.downstream.connection_changed(node)
            reason, message = ("NodeOnline", "the node is online") if online else ("NodeOffline", "the node is offline")
            if has_come(self.reconciler.settled_at):  # before that, these are only retained presences
                await self._cluster.record("Normal" if online else "Warning", reason, f"node/{node}", message)
        for key in keys:
            self.queue.add(key, spaced=True)

    async def raise_epoch(self, epoch: int) -> None:
        """Raise the epoch above one that a node follows: the node ignores a GM with a lower epoch."""
        present = self._cluster.epoch
        if epoch <= present or not has_come(self._next_overtake):
            return
        self._next_overtake = asyncio.get_running_loop().time() + OVERTAKE_SPACING
        if not await self._cluster.overtake(epoch):
            log.error("epoch not raised", epoch=present, followed=epoch)
            return
        self.downstream.sender.epoch = self._cluster.epoch
        text = f"nodes follow epoch {epoch} of an earlier store: the epoch is raised from {present} to one above that"
        await self._cluster.record("Warning", "EpochRaised", "gm", text)
        self._bus.renew()

    async def process_unknown_report(self, node: str, key: Key, status: NodeStatus) -> None:
        """Process a report on a uid that is not, or no longer, the uid of the resource."""
        uid, generation = status.uid, status.observed_generation
        if self._cluster.get(key) is None and not self._cluster.complete:
            self.downstream.acknowledge(node, key, uid, generation)
        holding = Held(plural=key.plural, namespace=key.namespace, name=key.name, uid=uid, generation=generation)
        await self.syncs.forget_unknown(node, key, holding)

    def lost_version(self, key: Key) -> LostVersion | None:
        """Return the uid that all nodes hold of a resource that was lost with an earlier store, with its generation.

        If it is applied again and continues that uid, no worker restarts. None if nodes hold different uids, or if the
        uid was deleted as far as GM or a connected node knows: a deleted resource must not return.
        """
        if self._cluster.complete or self._cluster.get(key):
            return None
        versions = self.downstream.reported_versions(key).values()
        uids = {version.uid for version in versions}
        generation = max((version.generation for version in versions), default=MAX_INTEGER)
        uid = uids.pop() if len(uids) == 1 and generation < MAX_INTEGER else ""
        used = any(stored.uid == uid for stored in self._cluster.resources())
        if not uid or used or self._cluster.deleted_generation(uid) is not None or self.syncs.is_deleted(uid):
            return None
        return LostVersion(uid, generation)

    async def forget_orphan(self, key: Key) -> bool:
        """Delete from all nodes a resource that only they hold (see ``Cluster.complete``); return whether any did."""
        versions = self.downstream.reported_versions(key)
        for node, version in versions.items():
            await self._cluster.bury(version.uid, version.generation)  # offline nodes may hold it as well
            self.downstream.forget(node, key, version.uid, version.generation)
        return bool(versions)

    def connecting(self) -> None:
        """Prepare for a new connection: from now on nodes prove that they are online."""
        self.nodes.doubt()
        self._unconfirmed_since.clear()

    def reconnected(self) -> None:
        """Process a connection: the broker may have lost its state, and GM may have missed messages."""
        for name, node in self.nodes.items():
            # a sync may arrive before this call: then GM answers it and need not wait for another
            if node.online and not self.downstream.is_answering(name):
                self.downstream.connection_changed(name)
        self._doubt.set()
        self.reconciler.settled_at = min(self.reconciler.settled_at, asyncio.get_running_loop().time() + SETTLED_S)
        self.publish_all()

    def publish_all(self) -> None:
        """Send waiting messages and publish all statuses, after a connection of the sending bus."""
        self.downstream.wake()
        self.display.publish_all()

    async def _changed(self, key: Key) -> None:
        stored, old = self._cluster.get(key), self.index.get(key)
        if old and stored is None and self._cluster.exists(key, old.resource.metadata.uid):
            return  # the resource exists but cannot be read: nodes keep it
        if old and (stored is None or stored.uid != old.resource.metadata.uid):
            self.reports.drop(key)
            self.downstream.drop(key, old.resource.metadata.uid)
        elif stored is not None and stored.deleting:
            self.downstream.withdraw(key)
        if old and stored is None:
            self.display.clear_deleted(key)
        entry = None
        if stored is not None:
            try:
                entry = CONTROLLERS[key.plural].entry(stored.resource, stored.status)
            except InvalidFieldError as error:
                await self._cluster.record("Warning", "Invalid", str(key), str(error))
        concerned = self.index.put(key, entry)
        if entry:
            self._scheduled(key)
        # the service before the resources that it names: a node must release the service first
        for waiting_key in (key, *sorted(concerned)):
            self.queue.add(waiting_key, first=True)  # an edit must not wait behind messages of nodes and pods

    def _scheduled(self, key: Key) -> None:
        """Record the nodes of a service's pods."""
        if self._pods:
            for concerned in self.index.set_scheduled(key, nodes_by_worker(self._cluster.workers(key).pods)):
                self.queue.add(concerned)


class SyncResponder:
    """Answers syncs: sends inserts that the node lacks and deletes of what it must not hold, then ``synced``.

    The reconciler decides which resources the node shall hold.
    """

    def __init__(self, cluster: Cluster, index: ReferenceIndex, downstream: Downstream, reconciler: Reconciler) -> None:
        self._cluster = cluster
        self._index = index
        self._downstream = downstream
        self._reconciler = reconciler
        self._waiting: dict[str, Sync] = {}
        #: uids that nodes have deleted, by node
        self._deleted: dict[str, frozenset[str]] = {}
        #: syncs received
        self.count = 0
        self.queue: WorkQueue[str] = WorkQueue("syncs", self._answer)

    def receive(self, node: str, sync: Sync, *, described: bool) -> None:
        """Process a sync: the list of what a node holds; ``described``: the node's labels are known."""
        self.count += 1
        self._waiting[node] = sync
        self._deleted.pop(node, None)
        if sync.deleted and not self._cluster.complete:
            self._deleted[node] = frozenset(sync.deleted)
        patience = 0.0 if described else BIRTH_PATIENCE
        self.queue.add(node, at=asyncio.get_running_loop().time() + patience)

    def is_deleted(self, uid: str) -> bool:
        """Whether a node knows that a uid was deleted; used where ``Cluster.complete`` is False."""
        return any(uid in uids for uids in self._deleted.values())

    def answer_waiting(self, node: str) -> None:
        """Answer a sync that waited for the node's birth, if there is one."""
        if node in self._waiting:
            self.queue.add(node)

    async def _answer(self, node: str) -> None:
        sync = self._waiting.pop(node, None)
        if sync is None:
            return
        before = self._downstream.replace_reported(node, sync.holds)
        holdings = {Key(h.plural, h.namespace, h.name): h for h in sync.holds}
        # services first: their references are sent with them in the right order
        for key in dict.fromkeys([*sorted(self._index.keys_on(node)), *holdings]):
            for action in self._reconciler.decide(key, node):
                self._reconciler.deliver(action)
        unknown = [await self.forget_unknown(node, key, holding) for key, holding in holdings.items()]
        self._downstream.answer(node, unknown.count(True))
        for key in before - holdings.keys():  # a deletion may have waited only for this node
            if (stored := self._cluster.get(key)) and stored.deleting:
                self._reconciler.queue.add(key)

    async def forget_unknown(self, node: str, key: Key, holding: Held) -> bool:
        """Send a node the delete of a resource that was deleted while the node was offline: its uid is unknown.

        Return True if nothing is sent because the resource was lost.
        """
        if self._cluster.exists(key, holding.uid):
            return False
        stored = self._cluster.get(key)
        generation = holding.generation
        if stored is None and not self._cluster.complete:
            last = self._cluster.deleted_generation(holding.uid)
            if last is None:
                # GM's store was lost: the node may have the only copy of the user's resource
                text = "it was lost with an earlier store: apply it again, or delete it"
                await self._cluster.record("Warning", "Unknown", str(key), f"node {node} holds it, but {text}")
                return True
            generation = max(generation, last)
        self._downstream.forget(node, key, holding.uid, generation)
        return False
