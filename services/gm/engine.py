"""Carries out what controllers decide: looks at a resource, plans, does; shows its status on the bus.

One queue of keys drives it, fed by edits, reports and presences. Looking again is always safe, so nobody says what
happened, only where to look. Reports make it look at most once a second at one resource, however many nodes report.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

import structlog

from halimede.api import Resource
from halimede.bus import Bus
from halimede.errors import InvalidFieldError
from halimede.messages import Held, NodeStatus, Presence, Status, StatusDocument, Sync
from halimede.names import Key
from halimede.topic import Address
from halimede.topics import STATUS
from services.gm.cluster.port import Cluster, ConflictError, Stored, utc_now
from services.gm.controllers import CONTROLLERS, Observed, plan
from services.gm.controllers.actions import (
    Action,
    ClearStatus,
    Delivery,
    Finalize,
    Forget,
    Keep,
    Record,
    Send,
    WriteStatus,
)
from services.gm.downstream import Downstream
from services.gm.index import Entry, Index
from services.gm.nodes import Change, Nodes
from services.gm.reports import Reports
from services.gm.workqueue import WorkQueue, reached

log = structlog.get_logger()

#: seconds between two writes of one status
STATUS_SPACING = 1.0
#: seconds that a sync waits for the birth of its connection, which tells the node's labels
BIRTH_PATIENCE = 2.0
#: seconds that nodes get to show themselves after GM was away: longer than their back-off
NODE_PATIENCE = 15.0
#: seconds between two times that a node's word makes us connect anew with a higher epoch: it is needed once at most
OVERTAKE_SPACING = 60.0


class Engine:
    """The controllers' eyes and hands. ``queue`` is where to say that a resource needs a look."""

    def __init__(self, bus: Bus, cluster: Cluster, out: Bus | None = None) -> None:
        self.nodes = Nodes()
        self.reports = Reports()
        self.index = Index(self.nodes)
        self.downstream = Downstream(out or bus, cluster.epoch, self.nodes.online)
        self.queue: WorkQueue[Key] = WorkQueue("reconcile", self._reconcile, spacing=STATUS_SPACING)
        self.shown: WorkQueue[Key] = WorkQueue("status topics", self._show)
        self.answers: WorkQueue[str] = WorkQueue("syncs", self._answer)
        #: syncs heard, and statuses written
        self.syncs = self.status_writes = 0
        self._bus = bus
        #: what GM says leaves here: acknowledgements must not wait behind what nodes say
        self._out = out or bus
        self._cluster = cluster
        self._syncs: dict[str, Sync] = {}
        self._next_write: dict[Key, float] = {}
        self._showing: dict[Key, asyncio.Lock] = {}
        self._next_overtake = 0.0
        self._doubt = asyncio.Event()

    # --- what happens -----------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Take what the cluster has and what GM remembers: before anything is asked of us."""
        memory = await self._cluster.recall()
        for node in memory.drained:
            self.nodes.mark(node, drained=True)
        for presence in memory.nodes:
            self.nodes.restore(presence)
        resources = list(self._cluster.resources())
        self.reports.restore(memory.reports, {stored.key: stored.uid for stored in resources})
        for stored in resources:
            await self._changed(stored.key)
            for node, report in self.reports.of(stored.key).items():
                if report.live:
                    told = report.status
                    self.downstream.acknowledged(node, stored.key, told.uid, told.observed_generation)

    async def follow(self) -> None:
        """Look at whatever is edited, until cancelled."""
        async for key in self._cluster.changes():
            await self._changed(key)

    async def watch(self) -> None:
        """Take nodes as gone that did not show themselves once the broker was there again, until cancelled."""
        while True:
            await self._doubt.wait()
            self._doubt.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(NODE_PATIENCE):
                    await self._doubt.wait()
                    continue
            for node in self.nodes.unconfirmed() if self._bus.connected else []:
                await self.node_changed(node, self.nodes.lost(node))

    async def node_changed(self, node: str, change: Change) -> None:
        """A node came, went or got other labels."""
        keys: set[Key] = self.index.node_changed(node) if change.labels else set()
        if change.online:
            keys |= self.downstream.keys(node)
            keys |= set(self.index.assigned(node))
            online = self.nodes.online(node)
            self.downstream.returned(node)
            reason, message = ("NodeOnline", "the node is there") if online else ("NodeOffline", "the node is gone")
            await self._cluster.record("Normal" if online else "Warning", reason, f"node/{node}", message)
        for key in keys:
            self.queue.add(key, spaced=True)

    def born(self, presence: Presence) -> None:
        """A node's birth arrived: a sync may have waited for it."""
        if presence.node in self._syncs:
            self.answers.add(presence.node)

    def synced(self, node: str, sync: Sync) -> None:
        """A node said what it holds and asks for what it should."""
        self.syncs += 1
        self._syncs[node] = sync
        patience = 0.0 if self.nodes.described(node) else BIRTH_PATIENCE
        self.answers.add(node, at=asyncio.get_running_loop().time() + patience)

    async def behind(self, epoch: int) -> None:
        """A node follows that epoch of GM: with a lower one it would ignore us for ever."""
        ours = self._cluster.epoch
        if epoch <= ours or not reached(self._next_overtake):
            return
        self._next_overtake = asyncio.get_running_loop().time() + OVERTAKE_SPACING
        if not await self._cluster.overtake(epoch):
            log.error("nodes follow another global manager", epoch=ours, followed=epoch)
            return
        self.downstream.epoch = self._cluster.epoch
        text = f"nodes follow epoch {epoch} of an earlier store: this one counts on from there, not from {ours}"
        await self._cluster.record("Warning", "EpochRaised", "gm", text)
        self._bus.renew()

    async def unknown(self, node: str, key: Key, told: NodeStatus) -> None:
        """A node has reported on a uid that is not (any more) the resource's."""
        held = Held(
            plural=key.plural, namespace=key.namespace, name=key.name, uid=told.uid, generation=told.observed_generation
        )
        await self._forget_unknown(node, key, held)

    async def forget_orphan(self, key: Key) -> bool:
        """Take from all nodes what only they know (see ``Cluster.complete``); return whether any holds it."""
        held = self.downstream.held(key)
        for node, version in held.items():
            await self._cluster.bury(version.uid, version.generation)  # others may hold it, and be away
            self.downstream.forget(node, key, version.uid, version.generation)
        return bool(held)

    def connecting(self) -> None:
        """A connection is about to be made: whatever nodes say from now on is news."""
        self.nodes.doubt()

    def reconnected(self) -> None:
        """The broker is there (again): it may have forgotten everything, and we may have missed something."""
        for name, node in self.nodes.items():
            if node.online:
                self.downstream.returned(name)
        self._doubt.set()
        self.say_all()

    def say_all(self) -> None:
        """The connection by which we speak is there (again): send what waits, show how everything stands."""
        self.downstream.wake()
        for stored in self._cluster.resources():
            self.shown.add(stored.key)

    async def _changed(self, key: Key) -> None:
        stored, old = self._cluster.get(key), self.index.get(key)
        if old and (stored is None or stored.uid != old.resource.metadata.uid):
            self.reports.drop(key)
            self.downstream.drop(key, old.resource.metadata.uid)
        elif stored is not None and stored.deleting:
            self.downstream.withdraw(key)
        entry = None
        if stored is not None:
            try:
                entry = CONTROLLERS[key.plural].entry(stored.resource)
            except InvalidFieldError as error:
                await self._cluster.record("Warning", "Invalid", str(key), str(error))
        concerned = self.index.put(key, entry)
        # the service before what it names: a node lets go of it first
        for each in (key, *sorted(concerned)):
            self.queue.add(each)

    # --- looking and doing ------------------------------------------------------------------------------------

    async def _reconcile(self, key: Key) -> None:
        stored, entry = self._cluster.get(key), self.index.get(key)
        if stored is None or entry is None:
            self.queue.forget(key)
            self._next_write.pop(key, None)
            self._showing.pop(key, None)
            return
        for action in plan(entry.resource, self._observe(stored, entry)):
            if isinstance(action, WriteStatus):
                # the last one counts: the key comes again when its second is over
                due = self._next_write.get(key, 0.0)
                if not reached(due):
                    self.queue.add(key, at=due)
                    return
                self._next_write[key] = asyncio.get_running_loop().time() + STATUS_SPACING
            try:
                await self._do(action, stored)
            except ConflictError:
                self.queue.add(key)
                return

    async def _do(self, action: Action, stored: Stored) -> None:
        match action:
            case WriteStatus(key, status):
                await self._cluster.write_status(key, status, stored.resource_version)
                self.status_writes += 1
                self.shown.add(key)
            case ClearStatus(key):
                async with self._showing.setdefault(key, asyncio.Lock()):  # what is on its way comes first
                    await self._out.clear(_topic(key))
            case Finalize(key, uid):
                await self._cluster.finalize(key, uid)
            case Record(kind, reason, about, message):
                await self._cluster.record(kind, reason, about, message)
            case _:
                self._deliver(action)

    def _deliver(self, action: Delivery) -> None:
        match action:
            case Send(node, resource):
                self.downstream.want(node, resource)
            case Keep(node, key, uid):
                self.downstream.keep(node, key, uid)
            case Forget(node, key, uid, generation):
                self.downstream.forget(node, key, uid, generation)

    def _observe(self, stored: Stored, entry: Entry, node: str | None = None) -> Observed:
        """Look at a resource, on all nodes or (for who shall hold what) on one alone."""
        key = stored.key
        holders = self.downstream.holders(key)
        if not stored.deleting:
            # a node whose labels are not known yet is left as it is
            holders = frozenset(holder for holder in holders if self.nodes.described(holder))
        placed = self.index.placed(key) if node is None else {}
        if node is not None:
            roles = self.index.belongs(key, node)
            placed = {} if roles is None else {node: roles}
            holders &= {node}
        return Observed(
            now=utc_now(),
            status=stored.status,
            placed=placed,
            holders=holders,
            nodes=self.nodes,
            reports=self.reports.of(key),
            references={reference: self._existing(reference) for reference in entry.references},
        )

    # --- answering syncs --------------------------------------------------------------------------------------

    async def _answer(self, node: str) -> None:
        sync = self._syncs.pop(node, None)
        if sync is None:
            return
        before = self.downstream.synced(node, sync.holds)
        held = {Key(h.plural, h.namespace, h.name): h for h in sync.holds}
        # services first: they bring what they refer to in the right order
        for key in dict.fromkeys([*sorted(self.index.assigned(node)), *held]):
            stored, entry = self._cluster.get(key), self.index.get(key)
            if stored is not None and entry is not None:
                for action in self._deliveries(stored, entry, node):
                    self._deliver(action)
        for key, holding in held.items():
            await self._forget_unknown(node, key, holding)
        self.downstream.answer(node)
        for key in before - held.keys():  # a deletion may have waited for this node alone
            if (stored := self._cluster.get(key)) and stored.deleting:
                self.queue.add(key)

    def _deliveries(self, stored: Stored, entry: Entry, node: str) -> Iterable[Delivery]:
        observed = self._observe(stored, entry, node)
        if stored.deleting:
            return [Forget(n, stored.key, stored.uid, entry.resource.metadata.generation) for n in observed.holders]
        return CONTROLLERS[stored.key.plural].deliver(entry.resource, observed)

    async def _forget_unknown(self, node: str, key: Key, held: Held) -> None:
        """Take from a node what was deleted while it was away: nobody has that uid."""
        stored = self._cluster.get(key)
        if stored is not None and stored.uid == held.uid:
            return
        generation = held.generation
        if stored is None and not self._cluster.complete:
            last = self._cluster.buried(held.uid)
            if last is None:
                # our own store was lost: what runs out there may be all that is left of the user's work
                text = "the store was lost and does not know it: apply it again, or delete it"
                await self._cluster.record("Warning", "Unknown", str(key), f"node {node} holds it, but {text}")
                return
            generation = max(generation, last)
        self.downstream.forget(node, key, held.uid, generation)

    def _existing(self, key: Key) -> Resource[Any] | None:
        entry = self.index.get(key)
        return entry.resource if entry and entry.resource.metadata.deletion_timestamp is None else None

    # --- showing ----------------------------------------------------------------------------------------------

    async def _show(self, key: Key) -> None:
        """Publish a status, as it is now. While the broker is away there is nothing to do: its return shows all."""
        async with self._showing.setdefault(key, asyncio.Lock()):
            stored = self._cluster.get(key)
            if stored is None or stored.status is None or stored.deleting or not self._out.connected:
                self.shown.forget(key)
                return
            await self._out.publish(_topic(key), _document(stored, stored.status))


def _document(stored: Stored, status: Status) -> StatusDocument:
    resource = stored.resource
    return StatusDocument(
        api_version=resource.kind.api_version,
        kind=resource.kind.kind,
        namespace=stored.key.namespace,
        name=stored.key.name,
        uid=stored.uid,
        generation=resource.metadata.generation,
        status=status,
    )


def _topic(key: Key) -> Address[StatusDocument]:
    return STATUS.at(ns=key.namespace, plural=key.plural, name=key.name)
