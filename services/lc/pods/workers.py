"""Workers that are pods: GM creates them and kubelet runs them. This node knows only their reports.

Their names are chosen by Kubernetes. What they say counts if it names a service that is held here, its uid, and a role.
A pod's last word is written within a second, anything else every few seconds, however much pods say: a controller that
is killed has to ask nothing back, since a pod that lives tells its counts again.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from pathlib import Path

import structlog

from halimede.api import kind_of
from halimede.api.placement import SERVICES
from halimede.bus.port import Bus
from halimede.messages import NodeStatus, WorkerInfo, WorkerReport
from halimede.names import Key
from services.lc.paths import Worker
from services.lc.planning.plan import ObservedWorker, Plan
from services.lc.planning.resource_state import Lack, ResourceState
from services.lc.pods.counters import Pod, PodCounts
from services.lc.pods.store import Owner, PodRecord
from services.lc.status_builder import status_of
from services.lc.store.database import NodeStore

log = structlog.get_logger()

#: seconds between two looks for pods that are silent, and between two writings of what was heard
LOOK_S, WRITE_S = 1.0, 5.0
#: after these a pod may never speak again
LAST_WORDS = frozenset({"completed", "failed"})
#: services that have left this node and may come back, with all that was counted for them here
MAX_LEFT = 64


#: what pods say of the kind of their owner -> its plural
OWNERS = {kind_of(plural).kind.lower(): plural for plural in SERVICES}


class PodWorkers:
    """The pods of this node. ``changed`` is called with a service when one of its pods has gone silent."""

    def __init__(self, node: str, bus: Bus, store: NodeStore, changed: Callable[[Key], None]) -> None:
        self.restarts = 0
        self._node = node
        self._bus = bus
        self._store = store
        self._changed = changed
        self._services: dict[Owner, PodCounts] = {}
        #: heard since the last writing, the latest last
        self._unwritten: dict[tuple[Owner, Worker], None] = {}
        #: whether one of them is a last word
        self._urgent = False

    @property
    def running(self) -> Mapping[Worker, ObservedWorker]:
        """None: plans stop no pod."""
        return {}

    @property
    def models(self) -> Collection[Path | str]:
        """None: pods have copies of their own."""
        return ()

    def adopt(self) -> None:
        """Take what was heard before this controller; who lives speaks again before its patience ends."""
        now = asyncio.get_running_loop().time()
        for owner, worker, record in self._store.pods.found:
            if record.info.role:
                pod = Pod(record.info, record.info.role, now, gone=record.gone)
                self._services.setdefault(owner, PodCounts()).pods[worker] = pod
        for owner, role, counts in self._store.pods.found_retired:
            self._services.setdefault(owner, PodCounts()).retired[role] = counts

    def tasks(self) -> dict[str, Coroutine[None, None, None]]:
        """Look for silent pods, and write what was heard."""
        return {"pods": self._watch()}

    def carry_out(self, plan: Plan) -> None:
        """Forget the pods of services whose name stands for another uid now, and of those that left long ago.

        Not at once: a pod that moves to another node may come back, and its service's counts never go down.
        """
        held = {(standing.key, standing.uid) for standing in plan.standings.values()}
        for owner in self._services.keys() - held:
            if live := self._services[owner].live:
                self._services[owner] = self._services.pop(owner)  # the one that left last is forgotten last
                self._end(owner, live)
        left = [owner for owner in self._services if owner not in held]
        gone = {owner for owner in left if owner[0] in plan.standings}
        if over := gone | set(left[: max(0, len(left) - MAX_LEFT)]):
            try:
                self._store.pods.forget(over)
            except sqlite3.Error as error:  # as with counts that cannot be written: later
                log.warning("counts of pods not forgotten", error=str(error))
                return
            for owner in over:
                del self._services[owner]
            self._unwritten = {heard: None for heard in self._unwritten if heard[0] not in over}

    def heard(self, worker: Worker, info: WorkerInfo) -> Key | None:
        """Take what a pod says."""
        plural = OWNERS.get(info.owner_kind)
        if plural is None:
            return None
        key = Key(plural, info.namespace, info.owner_name)
        held = self._store.held.get(key)
        if not info.role or held is None or held.uid != info.owner_uid:
            return None
        owner = (key, held.uid)
        service = self._services.setdefault(owner, PodCounts())
        if not service.hear(worker, info.role, info, asyncio.get_running_loop().time()):
            return None
        self._unwritten.pop((owner, worker), None)
        self._unwritten[owner, worker] = None
        self._urgent |= info.status in LAST_WORDS
        return key

    def status(self, standing: ResourceState) -> NodeStatus:
        """Return the report on a resource: how its pods stand by their own words, and what they all have counted."""
        service = self._services.get((standing.key, standing.uid)) or PodCounts()
        reports = [pod.report() for pod in service.live.values()]
        views = [standing.settled] if standing.settled else []
        views += [Lack(report.phase, report.reason, report.message) for report in reports]
        silent = Lack("Pending", "NoWorkerHere", f"no pod of it on node {self._node} has spoken yet")
        return status_of(standing, views or [silent], sorted(reports, key=lambda r: r.name), service.total())

    def reports(self) -> list[WorkerReport]:
        """Return how all pods stand now."""
        return [pod.report() for service in self._services.values() for pod in service.live.values()]

    def busy(self, service: Key) -> bool:  # noqa: ARG002  # of the port
        """Never: whether pods have ended is GM's to see."""
        return False

    def clear_away(self, service: Key) -> None:
        """Nothing: what pods leave goes with them, and their counts went with the resource."""

    async def stop_all(self) -> None:
        """Write what was heard."""
        self._write()

    # --- inside ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        written = loop.time()
        while True:
            await asyncio.sleep(LOOK_S)
            if self._bus.connected:
                self._end_silent(loop.time())
            else:
                self._wait(loop.time())
            if self._urgent or loop.time() - written >= WRITE_S:
                self._write()
                written = loop.time()

    def _wait(self, now: float) -> None:
        """Nobody can be heard while there is no broker: patience begins when there is one."""
        for service in self._services.values():
            for pod in service.pods.values():
                pod.heard_at = now

    def _end_silent(self, now: float) -> None:
        for owner, service in self._services.items():
            for worker in service.silent(now):
                log.info("pod has gone silent", worker=str(worker), service=str(owner[0]))
                self._end(owner, [worker])
                self._changed(owner[0])

    def _end(self, owner: Owner, workers: Iterable[Worker]) -> None:
        for worker in workers:
            self._services[owner].end(worker)
            self._unwritten[owner, worker] = None

    def _write(self) -> None:
        """Write what was heard, and the sums of the pods that are too many. One that cannot be written waits."""
        rows, now = self._store.pods, asyncio.get_running_loop().time()
        try:
            if self._unwritten:
                rows.write([(owner, worker, self._record(owner, worker)) for owner, worker in self._unwritten])
                self._unwritten.clear()
            self._urgent = False
            for owner, service in self._services.items():
                for worker in service.surplus(now):
                    role, counts = service.with_retired(worker)
                    rows.retire(owner, worker, role, counts)
                    service.retire(worker, role, counts)
        except sqlite3.Error as error:
            log.warning("counts of pods not written", error=str(error))

    def _record(self, owner: Owner, worker: Worker) -> PodRecord:
        pod = self._services[owner].pods[worker]
        return PodRecord(pod.info, pod.gone)
