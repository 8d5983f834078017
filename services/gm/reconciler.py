"""Carries out what controllers decide: looks at a resource, plans, does.

Looking again is always safe, so nobody says what happened, only where to look. Reports make it look at most once a
second at one resource, however many nodes report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from halimede.names import Key
from services.gm.cluster.port import Cluster, ConflictError, NotAcceptedError, NotOursError
from services.gm.controllers import CONTROLLERS, plan
from services.gm.controllers.actions import (
    Action,
    ClearStatus,
    Delivery,
    Ensure,
    Finalize,
    Forget,
    Hold,
    Keep,
    Record,
    Remove,
    Send,
    WriteStatus,
)
from services.gm.controllers.base import conflicts
from services.gm.display import Display
from services.gm.downstream import Downstream
from services.gm.index import Index
from services.gm.look import Look
from services.gm.tally import Problem
from services.gm.workloads.settings import PodSettings
from services.gm.workqueue import WorkQueue, reached

log = structlog.get_logger()

#: seconds between two writes of one status
STATUS_SPACING = 1.0
#: seconds until a missing Secret is looked for again: they are not watched
SECRET_PATIENCE = 5.0
#: seconds until what was changed meanwhile is looked at again, unless the change itself comes to be known sooner
CONFLICT_PATIENCE = 0.2
#: seconds until an object that the cluster did not take is tried again
TROUBLE_PATIENCE = 10.0


class Reconciler:
    """The controllers' hands. ``queue`` is where to say that a resource needs a look."""

    def __init__(
        self,
        cluster: Cluster,
        index: Index,
        downstream: Downstream,
        *,
        display: Display,
        look: Look,
        pods: PodSettings | None,
    ) -> None:
        self.queue: WorkQueue[Key] = WorkQueue("reconcile", self._reconcile, spacing=STATUS_SPACING)
        #: statuses written
        self.writes = 0
        #: before that time of the loop reports of earlier days may still come in: statuses would be written twice
        self.settled_at = 0.0
        self._cluster = cluster
        self._index = index
        self._downstream = downstream
        self._display = display
        self._look = look
        self._pods = pods
        self._next_write: dict[Key, float] = {}

    def decide(self, key: Key, node: str) -> Iterable[Delivery]:
        """Decide what one node shall hold of a resource."""
        stored, entry = self._cluster.get(key), self._index.get(key)
        if stored is None or entry is None:
            return []
        observed = self._look.at(stored, entry, node)
        if stored.deleting:
            return [Forget(n, key, stored.uid, entry.resource.metadata.generation) for n in observed.holders]
        if observed.unheld:
            self.queue.add(key)  # first its deletion is made to wait for the node
            return []
        return CONTROLLERS[key.plural].deliver(entry.resource, observed)

    def deliver(self, action: Delivery) -> None:
        """Have a node hold something, or not."""
        match action:
            case Send(node, resource):
                self._downstream.want(node, resource)
            case Keep(node, key, uid):
                self._downstream.keep(node, key, uid)
            case Forget(node, key, uid, generation):
                self._downstream.forget(node, key, uid, generation)

    async def _reconcile(self, key: Key) -> None:
        stored, entry = self._cluster.get(key), self._index.get(key)
        if stored is None or entry is None:
            self.queue.forget(key)
            self._display.forget(key)
            self._next_write.pop(key, None)
            self._look.troubles.pop(key, None)
            return
        observed = self._look.at(stored, entry)
        if self._pods and entry.roles:
            observed = await self._look.at_pods(observed, entry, self._pods)
            if observed.pods and None in observed.pods.workers.secrets.values():
                self.queue.add(key, at=asyncio.get_running_loop().time() + SECRET_PATIENCE)
        actions = [*plan(entry.resource, observed), *conflicts(self._cluster.seconds(key), stored, observed.now)]
        troubles: list[Problem] = []
        try:
            await asyncio.gather(*(self._cluster.hold(a.key, a.uid) for a in actions if isinstance(a, Hold)))
            for action in actions:
                if isinstance(action, WriteStatus) and (due := self._may_write(key)):
                    # the last one counts: the key comes again when its second is over
                    self.queue.add(key, at=due)
                    break
                if isinstance(action, Ensure):
                    troubles += await self._ensure(action)
                else:
                    await self._do(action)
        except ConflictError as error:
            log.info("looking again", key=str(key), reason=str(error))
            self.queue.add(key, at=asyncio.get_running_loop().time() + CONFLICT_PATIENCE)
        self._take_troubles(key, troubles)

    async def _ensure(self, action: Ensure) -> Iterable[Problem]:
        """Make an object; return what is in the way: a condition, since trying at once again would not help."""
        try:
            await self._cluster.ensure(action.body)
        except NotOursError as error:
            return [Problem("NotOurs", str(error))]
        except NotAcceptedError as error:
            return [Problem("NotAccepted", str(error))]
        return ()

    def _take_troubles(self, key: Key, troubles: list[Problem]) -> None:
        known = self._look.troubles.pop(key, ())
        if troubles:
            self._look.troubles[key] = tuple(troubles)
            self.queue.add(key, at=asyncio.get_running_loop().time() + TROUBLE_PATIENCE)
        if tuple(troubles) != known:
            self.queue.add(key)

    def _may_write(self, key: Key) -> float:
        """Return when a status may be written, 0 if that is now (and then it is not for another second)."""
        due = max(self._next_write.get(key, 0.0), self.settled_at)
        if not reached(due):
            return due
        self._next_write[key] = asyncio.get_running_loop().time() + STATUS_SPACING
        return 0.0

    async def _do(self, action: Action) -> None:
        match action:
            case WriteStatus(key, status, second):
                stored = second or self._cluster.get(key)
                if stored is None:
                    return
                await self._cluster.write_status(stored, status)
                self.writes += 1
                if not second:
                    self._display.queue.add(key)
            case ClearStatus(key):
                await self._display.clear(key)
            case Hold() | Ensure():
                pass  # these have been done already
            case Remove(ref, uid):
                await self._cluster.remove(ref, uid)
            case Finalize(key, uid):
                await self._cluster.finalize(key, uid)
            case Record(kind, reason, about, message):
                await self._cluster.record(kind, reason, about, message)
            case _:
                self.deliver(action)
