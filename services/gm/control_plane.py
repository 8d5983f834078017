"""GM's control plane (``ControlPlane``): each event puts the keys of the resources that it concerns into one queue.

An event is an edit of a resource, a presence (birth or will), report or sync of a node, or a connection. It first
updates the state of nodes, reports or placements, which the control plane owns. Then the reconciler takes each key from
the queue, compares the resource with that state, and acts. A node that came online sends a sync, the list of what it
holds: ``SyncResponder`` answers with the inserts (resources to hold) and deletes that the node needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

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
from services.gm.occupancy_topics import OccupancyTopics
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
#: seconds in which the broker sends retained reports to a GM on Kubernetes: after a connection, and (without one) after
#: the start
SETTLED_S, SETTLED_ALONE_S = 2.0, 15.0
#: seconds in which a node must confirm that it is online: longer than the longest pause of its reconnections
NODE_PATIENCE = 14.0
#: seconds in which a node must confirm while other nodes still do, since GM then has many messages to process; seconds
#: between two checks of unconfirmed nodes
LONG_PATIENCE, RECHECK_S = 60.0, 2.0
#: least seconds between two reconnections of GM with a higher epoch
OVERTAKE_SPACING = 60.0
#: seconds that a sync waits for the birth of its connection, which has the node's labels
BIRTH_PATIENCE = 2.0


class ControlPlane:
    """Owns GM's state of nodes and reports; each event updates it, and adds keys of resources to ``queue``.

    The caller runs ``follow``, ``watch``, the queues and the other tasks (``GlobalManager.run`` lists them). ``quiet``:
    the connection for GM's messages; None: ``bus``. ``pods``: the settings of worker pods; None: nodes start workers
    themselves.

    Attributes:
        nodes: the nodes that GM knows.
        reports: the last report of each node on each resource.
        index: which resources name which others, and where each is placed.
        downstream: sends nodes their resources.
        display: publishes statuses.
        occupancy: clears occupancy events that no service has any longer.
        files: brings files of workers into GM's store of files.
        reconciler: decides and acts for each key of ``queue``.
        syncs: answers syncs of nodes.
        infos: the nodes as users see them.
        observer: the facts for the checks of the system.

    """

    def __init__(self, bus: Bus, cluster: Cluster, quiet: Bus | None = None, pods: PodSettings | None = None) -> None:
        self.nodes = Nodes()
        self.reports = NodeReports()
        index = self.index = ReferenceIndex(self.nodes, pods=pods is not None)
        self.downstream = Downstream(quiet or bus, cluster.epoch, self.nodes.is_online, cluster.session_key)
        self.display = StatusTopics(quiet or bus, cluster)
        self.occupancy = OccupancyTopics(bus, cluster)
        self.files = WorkerFileStore(lambda key: self.queue.add(key, first=True))
        reader = SnapshotReader(cluster, self.nodes, self.reports, index, self.downstream, pods is not None, self.files)
        self.reconciler = Reconciler(
            cluster, index, self.downstream, display=self.display, snapshots=reader, pods=pods, changed=self._changed
        )
        self.queue = self.reconciler.queue
        self.syncs = SyncResponder(cluster, self.index, self.downstream, self.reconciler)
        self.infos = NodeInfos(cluster, self.nodes, self.reports, self.index, self.downstream)
        self.observer = SystemObserver(bus, cluster, self.nodes, self.reports, self.infos)
        self._bus = bus
        self._cluster = cluster
        self._pods = pods is not None
        #: the event loop's time before which GM's epoch is not raised again
        self._next_overtake = 0.0
        #: set when a node may be unconfirmed: GM does not know whether it is really online
        self._doubt = asyncio.Event()
        #: the event loop's time of the first check, on this connection, that saw a node unconfirmed
        self._unconfirmed_since: dict[str, float] = {}

    # --- what happens -----------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Load the resources from the cluster, and the stored nodes and reports. Called before any message arrives."""
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
            # a cluster of pods stores only statuses, but the broker retains the nodes' own reports
            self.reconciler.settled_at = asyncio.get_running_loop().time() + SETTLED_ALONE_S

    async def follow(self) -> None:
        """Process changes of the cluster (edits, and on Kubernetes pods and nodes) until cancelled."""
        async for happening in self._cluster.changes():
            match happening:
                case Key():
                    await self._changed(happening)
                case WorkersChanged(key):
                    self._update_scheduled(key)
                    self.queue.add(key)
                case NodeSeen(name, node):
                    await self.node_changed(name, self.nodes.register(name, node))

    async def watch(self) -> None:
        """Mark nodes as offline that do not confirm in time that they are online, until cancelled."""
        while True:
            await self._doubt.wait()
            self._doubt.clear()
            while self.nodes.list_unconfirmed():
                for node in self._silent_nodes():
                    await self.node_changed(node, self.nodes.set_offline(node))
                await asyncio.sleep(RECHECK_S)

    def _silent_nodes(self) -> list[str]:
        """Return the nodes that have been unconfirmed for too long while GM was connected; note the times of others."""
        now, unconfirmed = asyncio.get_running_loop().time(), self.nodes.list_unconfirmed()
        if not self._bus.connected:
            self._unconfirmed_since.clear()
            return []
        # nodes still confirm if a node of the last check is no longer unconfirmed
        patience = NODE_PATIENCE if self._unconfirmed_since.keys() <= set(unconfirmed) else LONG_PATIENCE
        since = {node: self._unconfirmed_since.get(node, now) for node in unconfirmed}
        silent = [node for node in unconfirmed if now - since[node] >= patience]
        self._unconfirmed_since = {node: since[node] for node in since.keys() - silent}
        return silent

    async def process_presence(self, presence: Presence, *, retained: bool) -> None:
        """Process a birth or will; ``retained``: the broker sent it because GM has subscribed, however old it is."""
        change = self.nodes.process_presence(presence, retained=retained)
        if retained and self.nodes.is_unconfirmed(presence.node):
            self._doubt.set()
        await self.node_changed(presence.node, change)

    async def node_changed(self, node: str, change: Change) -> None:
        """Queue the resources that a node's change concerns.

        If the node came online or went offline, ``downstream`` is told, and an event recorded.
        """
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
        """Raise GM's epoch above a higher one that a node follows, and connect again: nodes ignore lower epochs.

        Does nothing within 60 s after the last time, or if this GM must not raise its epoch.
        """
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
        """Process a node's report on a uid that the resource does not have, or no longer.

        The node must delete what has that uid, unless GM's store may have lost the resource.
        """
        uid, generation = status.uid, status.observed_generation
        if self._cluster.get(key) is None and not self._cluster.complete:
            self.downstream.acknowledge(node, key, uid, generation)
        holding = Held(plural=key.plural, namespace=key.namespace, name=key.name, uid=uid, generation=generation)
        await self.syncs.forget_unknown(node, key, holding)

    def lost_version(self, key: Key) -> LostVersion | None:
        """Return the version of a resource that nodes hold and GM's store has lost, or has only in an older version.

        If the resource is applied again with its uid and a higher generation, nodes accept it, and no worker restarts
        for the uid. None: nothing is lost, nodes hold different uids of a lost resource, another resource has the uid,
        or GM or a node knows that the uid was deleted: a deleted resource must not return.
        """
        versions = self.downstream.reported_versions(key).values()
        if stored := self._cluster.get(key):
            entry = self.index.get(key)
            newest = max((version.generation for version in versions if version.uid == stored.uid), default=0)
            if entry is None or not entry.resource.metadata.generation < newest < MAX_INTEGER:
                return None
            # nodes receive the user's generation plus what GM adds to it
            missing = newest - entry.resource.metadata.generation
            return LostVersion(stored.uid, stored.resource.metadata.generation + missing)
        if self._cluster.complete:
            return None
        uids = {version.uid for version in versions}
        generation = max((version.generation for version in versions), default=MAX_INTEGER)
        uid = uids.pop() if len(uids) == 1 and generation < MAX_INTEGER else ""
        used = any(stored.uid == uid for stored in self._cluster.resources())
        if not uid or used or self._cluster.deleted_generation(uid) is not None or self.syncs.is_deleted(uid):
            return None
        return LostVersion(uid, generation)

    async def forget_orphan(self, key: Key) -> Collection[str]:
        """Delete a resource that only nodes hold, because GM's store was lost.

        Return the names of these nodes; empty: no node holds the resource.
        """
        versions = self.downstream.reported_versions(key)
        for node, version in versions.items():
            await self._cluster.bury(version.uid, version.generation)  # offline nodes may hold the resource as well
            self.downstream.forget(node, key, version.uid, version.generation)
        return versions

    def connecting(self) -> None:
        """Prepare for a connection: from now on each node must confirm that it is online."""
        self.nodes.doubt()
        self._unconfirmed_since.clear()

    def reconnected(self) -> None:
        """Process a new connection: the broker may have lost its state, and GM may have missed messages.

        Statuses and waiting messages are published again, and each online node is expected to sync.
        """
        for name, node in self.nodes.items():
            # a sync may arrive before this call: then GM answers it and need not wait for another
            if node.online and not self.downstream.is_answering(name):
                self.downstream.connection_changed(name)
        self._doubt.set()
        self.reconciler.settled_at = min(self.reconciler.settled_at, asyncio.get_running_loop().time() + SETTLED_S)
        self.publish_all()

    def publish_all(self) -> None:
        """Send waiting messages and publish all statuses, after a connection of the bus that sends them."""
        self.downstream.wake()
        self.display.publish_all()

    async def _changed(self, key: Key) -> None:
        """Process that a resource was created, edited or deleted, or that its status changes what nodes receive."""
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
            self.occupancy.clear_deleted(key)
        else:
            self.occupancy.check(key)
        entry = None
        if stored is not None:
            try:
                entry = CONTROLLERS[key.plural].entry(stored.resource, stored.status)
            except InvalidFieldError as error:
                await self._cluster.record("Warning", "Invalid", str(key), str(error))
        concerned = self.index.put(key, entry)
        if entry:
            self._update_scheduled(key)
        # the service before the resources that it names: a node must release the service first
        for waiting_key in (key, *sorted(concerned)):
            self.queue.add(waiting_key, first=True)  # an edit must not wait behind messages of nodes and pods

    def _update_scheduled(self, key: Key) -> None:
        """Put the nodes on which the scheduler has placed a service's pods into the index; queue what this concerns."""
        if self._pods:
            for concerned in self.index.set_scheduled(key, nodes_by_worker(self._cluster.workers(key).pods)):
                self.queue.add(concerned)


class SyncResponder:
    """Answers syncs: sends the inserts that the node lacks, deletes of what it must not hold, and then ``synced``.

    The reconciler decides which resources a node shall hold. The caller runs ``queue``.
    """

    def __init__(self, cluster: Cluster, index: ReferenceIndex, downstream: Downstream, reconciler: Reconciler) -> None:
        self._cluster = cluster
        self._index = index
        self._downstream = downstream
        self._reconciler = reconciler
        #: syncs that are not answered yet, by node
        self._waiting: dict[str, Sync] = {}
        #: uids that nodes have deleted by their last syncs, by node
        self._deleted: dict[str, frozenset[str]] = {}
        #: number of syncs received
        self.count = 0
        self.queue: WorkQueue[str] = WorkQueue("syncs", self._answer)

    def receive(self, node: str, sync: Sync, *, described: bool) -> None:
        """Queue a sync of a node to be answered.

        ``described``: whether GM knows the node's labels. If not, the sync waits for the node's birth, at most 2 s.
        """
        self.count += 1
        self._waiting[node] = sync
        self._deleted.pop(node, None)
        if sync.deleted and not self._cluster.complete:
            self._deleted[node] = frozenset(sync.deleted)
        patience = 0.0 if described else BIRTH_PATIENCE
        self.queue.add(node, at=asyncio.get_running_loop().time() + patience)

    def is_deleted(self, uid: str) -> bool:
        """Whether a node's last sync says that a uid was deleted. Known only while GM's store may be incomplete."""
        return any(uid in uids for uids in self._deleted.values())

    def answer_waiting(self, node: str) -> None:
        """Answer a sync that waited for the node's birth, if there is one."""
        if node in self._waiting:
            self.queue.add(node)

    async def _answer(self, node: str) -> None:
        """Answer the last sync of a node; record an event for each resource of which the node has a newer version."""
        sync = self._waiting.pop(node, None)
        if sync is None:
            return
        before = self._downstream.replace_reported(node, sync.holds)
        holdings = {Key(h.plural, h.namespace, h.name): h for h in sync.holds}
        # services first: their references are sent with them in the right order
        for key in dict.fromkeys([*sorted(self._index.keys_on(node)), *holdings]):
            for action in self._reconciler.decide(key, node):
                self._reconciler.apply_node_action(action)
        unknown = [await self.forget_unknown(node, key, holding) for key, holding in holdings.items()]
        for key, holding in holdings.items():
            entry = self._index.get(key)
            if entry is None or entry.resource.metadata.deletion_timestamp is not None:
                continue
            metadata = entry.resource.metadata
            if metadata.uid == holding.uid and metadata.generation < holding.generation:
                text = f"node {node} holds generation {holding.generation}, and the store an older one: edit it again"
                await self._cluster.record("Warning", "NewerOnNode", str(key), text)
        self._downstream.answer(node, unknown.count(True))
        for key in before - holdings.keys():  # a deletion may have waited only for this node
            if (stored := self._cluster.get(key)) and stored.deleting:
                self._reconciler.queue.add(key)

    async def forget_unknown(self, node: str, key: Key, holding: Held) -> bool:
        """Send a node the delete of what it holds (``holding``), if no resource has that uid.

        Return True, record an event, and send nothing, if the uid may be of a resource that GM's store has lost: then
        the node may have the only copy.
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
