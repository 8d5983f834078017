"""Workers that are pods: GM creates them and kubelet runs them. This node knows only their reports.

Kubernetes chooses their names. A report counts if it names a service that the node holds, its uid, and a role. A pod's
last report is stored within a second, other reports every few seconds, however many there are. A controller that is
killed needs no replay, because each running pod reports its counts again.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import structlog

from halimede.api import Resource, dataset, jointinference, matches, multiedge, placements
from halimede.api.jointinference import EdgeWorkerSpec
from halimede.api.placement import SERVICES, Placement
from halimede.bus.port import Bus
from halimede.messages import NodeStatus, TaskInfo, WorkerInfo, WorkerReport
from halimede.models import FetchError, local_path
from halimede.names import Key
from halimede.stats.totals import GROWING, MOMENTARY, add_up, vanished
from services.lc.models.lookup import Models
from services.lc.paths import NodePaths, Worker
from services.lc.planning.plan import ObservedWorker, Plan
from services.lc.planning.resource_state import Lack, Preparation, RequiredFile, ResourceState
from services.lc.pods.store import Owner, PodRecord
from services.lc.status_reporter import WORST_FIRST, add_roles, status_of
from services.lc.store import NodeResource, NodeStore
from services.lc.supervisor.process import Role, Start
from services.lc.supervisor.worker_state import WorkerPhase
from services.lc.worker_files import move_away

log = structlog.get_logger()
#: seconds between two checks for silent pods, and between two writes of received reports
LOOK_S, WRITE_S = 1.0, 5.0
#: states after which a pod may never report again
LAST_WORDS = frozenset({"completed", "failed"})
#: services that have left this node and may return, with their counts here
MAX_LEFT = 64
#: ended pods whose names are remembered, because one of their containers may be restarted
KEPT = 32
#: seconds of silence after which a pod that has not completed is over for good
RETURNS_S = 3600.0
#: pods in one report; more than run on any node
MAX_LIVE = 256
#: ended or silent pods whose names are remembered: all may become silent at once
MAX_GONE = MAX_LIVE + KEPT
#: starts of counters of one pod that are remembered, in case the broker delivers one of their reports again
MAX_ENDED = 4
#: a worker is silent after this number of its report periods, and at least so many seconds
SILENT_PERIODS, SILENT_S = 3, 30.0
#: report period of a worker that does not report one (Sedna's default)
UNKNOWN_PERIOD_S = 30.0
#: the phase for a worker's own state, and the reason if it reports none
STANDS: Mapping[str, tuple[WorkerPhase, str]] = {
    "starting": ("Pending", "Starting"),
    "running": ("Running", ""),
    "failed": ("Failed", "WorkerFailed"),
    "completed": ("Pending", "Completed"),
}


class PodWorkers:
    """The pods of this node. ``changed`` is called with a service when one of its pods has become silent."""

    def __init__(self, folders: NodePaths, bus: Bus, store: NodeStore, changed: Callable[[Key], None]) -> None:
        self.restarts = 0
        self._folders = folders
        self._node = folders.node
        self._bus = bus
        self._store = store
        self._changed = changed
        self._services: dict[Owner, PodCounts] = {}
        #: pods with reports since the last write, the latest last
        self._unwritten: dict[tuple[Owner, Worker], None] = {}
        #: whether one of these reports is a pod's last
        self._urgent = False

    @property
    def running(self) -> Mapping[Worker, ObservedWorker]:
        """Always empty: plans stop no pod."""
        return {}

    @property
    def models(self) -> Collection[Path | str]:
        """Always empty: pods have their own copies."""
        return ()

    def adopt(self) -> None:
        """Load the stored reports; running pods report again before they count as silent."""
        now = asyncio.get_running_loop().time()
        for owner, worker, record in self._store.pods.found:
            if record.info.role:
                pod = Pod(record.info, record.info.role, now, gone=record.gone, ended=record.ended)
                self._services.setdefault(owner, PodCounts()).pods[worker] = pod
        for owner, role, counts in self._store.pods.found_retired:
            self._services.setdefault(owner, PodCounts()).retired[role] = counts

    def tasks(self) -> dict[str, Coroutine[None, None, None]]:
        """Return the task that checks for silent pods and stores reports."""
        return {"pods": self._watch()}

    def carry_out(self, plan: Plan) -> None:
        """Drop the pods of services whose name has another uid now, and of services that left long ago.

        Not at once: a pod that moves to another node may return, and its service's counts must never fall. It also
        makes the folders for hard samples, so that they belong to the user of the workers: kubelet's would be root's.
        """
        for folder in (standing.kept for standing in plan.standings.values() if standing.kept):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:  # the next plan tries again
                log.warning("folder for hard samples not made", folder=str(folder), error=str(error))
        held = {(standing.key, standing.uid) for standing in plan.standings.values()}
        for owner in self._services.keys() - held:
            if live := self._services[owner].live:
                self._services[owner] = self._services.pop(owner)  # the service that left last is dropped last
                self._end(owner, live)
        left = [owner for owner in self._services if owner not in held]
        gone = {owner for owner in left if owner[0] in plan.standings}
        if over := gone | set(left[: max(0, len(left) - MAX_LEFT)]):
            try:
                self._store.pods.forget(over)
            except sqlite3.Error as error:  # tried again later, like counts that cannot be stored
                log.warning("pod counts not removed", error=str(error))
                return
            for owner in over:
                del self._services[owner]
            self._unwritten = {heard: None for heard in self._unwritten if heard[0] not in over}

    def receive(self, worker: Worker, info: WorkerInfo) -> Key | None:
        """Process a pod's report."""
        keys = (Key(plural, info.namespace, info.owner_name) for plural in SERVICES)
        found = ((key, held) for key in keys if (held := self._store.held.get(key)) and held.uid == info.owner_uid)
        key, held = next(found, (None, None))
        if not info.role or key is None or held is None:
            return None
        owner = (key, held.uid)
        service = self._services.setdefault(owner, PodCounts())
        if not service.update(worker, info.role, info, asyncio.get_running_loop().time()):
            return None
        self._unwritten.pop((owner, worker), None)
        self._unwritten[owner, worker] = None
        self._urgent |= info.status in LAST_WORDS
        return key

    def status(self, standing: ResourceState) -> NodeStatus:
        """Return the report on a resource: the states that its pods report, and the sum of their counts."""
        service = self._services.get((standing.key, standing.uid)) or PodCounts()
        reports = [pod.report() for pod in service.live.values()]
        views = [standing.settled] if standing.settled else []
        views += [Lack(report.phase, report.reason, report.message) for report in reports]
        silent = Lack("Pending", "NoWorkerHere", f"none of its pods on node {self._node} has reported yet")
        return status_of(standing, views or [silent], sorted(reports, key=lambda r: r.name), service.total())

    def reports(self) -> list[WorkerReport]:
        """Return the states of all pods."""
        return [pod.report() for service in self._services.values() for pod in service.live.values()]

    def busy(self, service: Key) -> bool:  # noqa: ARG002  # of the port
        """Always False: GM observes whether pods have ended."""
        return False

    def clear_away(self, service: Key) -> None:
        """Move a service's hard samples away for removal; a pod's other files end with it."""
        if service.plural == jointinference.PLURAL:
            move_away(self._folders, self._folders.kept(service.namespace, service.name))

    async def stop_all(self) -> None:
        """Store the received reports."""
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
        """Restart all silence timers: without a broker no report can arrive."""
        for service in self._services.values():
            for pod in service.pods.values():
                pod.heard_at = now

    def _end_silent(self, now: float) -> None:
        for owner, service in self._services.items():
            for worker in service.silent(now):
                log.info("pod timed out", worker=str(worker), service=str(owner[0]))
                self._end(owner, [worker])
                self._changed(owner[0])

    def _end(self, owner: Owner, workers: Iterable[Worker]) -> None:
        for worker in workers:
            self._services[owner].end(worker)
            self._unwritten[owner, worker] = None

    def _write(self) -> None:
        """Store the received reports, and the sums of surplus pods. What cannot be stored waits."""
        rows, now = self._store.pods, asyncio.get_running_loop().time()
        try:
            if self._unwritten:
                # together: a report that replaces larger counts, and the sum that has these from now on
                sums = [(o, role, s.retired[role]) for o, s in self._services.items() for role in s.unwritten]
                heard = [(owner, worker, self._record(owner, worker)) for owner, worker in self._unwritten]
                rows.write(heard, sums)
                self._unwritten.clear()
                for service in self._services.values():
                    service.unwritten.clear()
            self._urgent = False
            for owner, service in self._services.items():
                for worker in service.surplus(now):
                    role, counts = service.with_retired(worker)
                    rows.retire(owner, worker, role, counts)
                    service.retire(worker, role, counts)
        except sqlite3.Error as error:
            log.warning("pod counts not written", error=str(error))

    def _record(self, owner: Owner, worker: Worker) -> PodRecord:
        pod = self._services[owner].pods[worker]
        return PodRecord(pod.info, pod.gone, pod.ended)


@dataclass(slots=True)
class Pod:
    """One pod: its last report, its last counters, and the time of the report.

    ``ended``: the starts of counters that the same pod had before, since its folder was made anew.
    """

    info: WorkerInfo
    role: Role
    heard_at: float
    gone: bool = False
    ended: tuple[str, ...] = ()

    def overtaken(self, counts: TaskInfo) -> bool:
        """Whether the broker has delivered a report again that is older than the last one.

        The time alone does not tell: the machine's clock may be behind after a power cut. Then its counts still grow.
        """
        last = self.info.task_info
        if last is None or counts.start_time in self.ended:
            return last is not None
        older = counts.start_time == last.start_time and counts.current_time < last.current_time
        return older and all(getattr(counts, name) <= getattr(last, name) for name in GROWING)

    @property
    def patience_s(self) -> float:
        """Seconds without a report after which it is silent."""
        return max(SILENT_S, SILENT_PERIODS * (self.info.period_s or UNKNOWN_PERIOD_S))

    def over(self, now: float) -> bool:
        """Whether an ended pod is not expected to report again."""
        return self.info.status == "completed" or now - self.heard_at > RETURNS_S

    def report(self) -> WorkerReport:
        """Return its state by its last report."""
        info = self.info
        phase, otherwise = STANDS[info.status]
        own = info.status in {"running", "failed"}
        reason, message = (info.reason or otherwise, info.message) if own else (otherwise, "")
        told = WorkerReport(
            name=info.name,
            role=self.role,
            phase=phase,
            reason=reason,
            message=message,
            http=info.http,
            model=info.model,
            training=info.training,
        )
        if info.owner_kind == multiedge.KIND or info.tier:  # if several workers share a role, each shows its counts
            told.part, told.task_info = info.tier, info.task_info
        return told


@dataclass(slots=True)
class PodCounts:
    """All pods of one service's uid that ever ran here, and the sum of their counts.

    A pod's counts only grow, and stay when it is replaced. Pods are known by name, in the order of their last reports.
    Only a limited number of ended pods keep their names, so that replaced pods take bounded memory; the counts of the
    others are added up for each role. A pod whose name was dropped must not report again, or it would be counted twice:
    so a name is dropped only when its pod has completed, or was silent for long.
    """

    pods: dict[Worker, Pod] = field(default_factory=dict)
    retired: dict[Role, TaskInfo] = field(default_factory=dict)
    #: roles whose sums have changed and are not stored yet
    unwritten: set[Role] = field(default_factory=set)

    def update(self, worker: Worker, role: Role, info: WorkerInfo, now: float) -> bool:
        """Record a pod's report; return False if there are too many pods for a new one.

        Counts that are less than before are those of a folder that was made anew: the earlier ones stay in the sum.
        """
        known = self.pods.get(worker)
        if (known is None or known.gone) and len(self.live) >= MAX_LIVE:
            return False
        counts, ended = info.task_info or info.owner_info, known.ended if known else ()
        if known and (counts is None or known.overtaken(counts)):
            counts = known.info.task_info
        elif known and counts and (before := known.info.task_info) and (lost := vanished(before, counts)):
            self._add(known.role, lost)
            starts = (*ended, before.start_time)
            ended = tuple(each for each in starts if each not in {"", counts.start_time})[-MAX_ENDED:]
            log.warning("pod state lost", worker=str(worker), counts=lost.inference_number)
        self.pods.pop(worker, None)
        told = msgspec.structs.replace(info, task_info=counts, owner_info=None)
        self.pods[worker] = Pod(told, role, now, ended=ended)
        if info.status == "completed":
            self.end(worker)
        return True

    def end(self, worker: Worker) -> None:
        """Mark a pod as ended; its counts stay."""
        pod = self.pods[worker]
        pod.gone = True
        if pod.info.task_info:  # frames that were open in it are lost
            counts = msgspec.structs.replace(pod.info.task_info, **MOMENTARY)
            pod.info = msgspec.structs.replace(pod.info, task_info=counts)

    def silent(self, now: float) -> list[Worker]:
        """Return the pods that have become silent."""
        return [worker for worker, pod in self.live.items() if now - pod.heard_at > pod.patience_s]

    def surplus(self, now: float) -> list[Worker]:
        """Return the pods whose names may be dropped; those that may return only at the limit."""
        gone = [worker for worker, pod in self.pods.items() if pod.gone]
        over = [worker for worker in gone if self.pods[worker].over(now)]
        waiting = [worker for worker in gone if not self.pods[worker].over(now)]
        return [*over, *waiting][: max(0, len(over) - KEPT, len(gone) - MAX_GONE)]

    def with_retired(self, worker: Worker) -> tuple[Role, TaskInfo | None]:
        """Return a pod's role, and the sum of that role including its counts."""
        pod = self.pods[worker]
        infos = [info for info in (self.retired.get(pod.role), pod.info.task_info) if info]
        return pod.role, add_up(infos) if infos else None

    def _add(self, role: Role, counts: TaskInfo) -> None:
        """Add counts to the sum of a role."""
        self.retired[role] = add_up([*(info for info in [self.retired.get(role)] if info), counts])
        self.unwritten.add(role)

    def retire(self, worker: Worker, role: Role, counts: TaskInfo | None) -> None:
        """Drop a pod's name; ``counts`` is the sum of its role from now on."""
        del self.pods[worker]
        if counts:
            self.retired[role] = counts

    @property
    def live(self) -> Mapping[Worker, Pod]:
        """The pods that still report."""
        return {worker: pod for worker, pod in self.pods.items() if not pod.gone}

    def total(self) -> TaskInfo | None:
        """Return the sum of all pods' counts; None if no present edge pod has reported any."""
        told: dict[Role, list[TaskInfo]] = {"edge": [], "cloud": [], "serve": []}
        for role, counts in self.retired.items():
            told[role].append(counts)
        for pod in self.pods.values():
            if pod.info.task_info:
                told[pod.role].append(pod.info.task_info)
        if not told["edge"] and any(pod.role == "edge" for pod in self.pods.values()):
            return None
        return add_roles(told["edge"], told["cloud"])


@dataclass(frozen=True, slots=True)
class PodNode:
    """A node with pods, for plans: its name, its labels as far as they are known, and its folders.

    It does not decide which pods run here, and the node's labels need not be known: only a role whose pods name another
    node is excluded. A Model is prepared in advance if GM has sent it and this controller can: the node's own files are
    mounted into the pods that need them, and only pods receive a Model's credentials. A Dataset is counted if its
    folder is mounted into the pod of this controller as well.
    """

    name: str
    labels: Mapping[str, str]
    folders: NodePaths

    def leaves(self, resource: Resource[Any]) -> str:
        """Return why a Model or Dataset is left to the pods, empty if it is not."""
        spec = resource.spec
        try:
            local = local_path(spec.url) is not None
        except FetchError:  # the preparer reports it
            return ""
        if local:
            return "" if resource.kind.plural == dataset.PLURAL else "its pods read it from the node's files"
        return f"its pods download it: only they have the Secret {spec.credential_name}" if spec.credential_name else ""

    def service(
        self, held: NodeResource, resource: Resource[Any], models: Models
    ) -> tuple[ResourceState, dict[Worker, Start]]:
        """Return the state of a service's models on this node; there is nothing to start."""
        asked = [p for p in placements(resource.spec) if p.pod.node_name in {"", self.name}]
        here = [p for p in asked if models.held(p, held.key) or matches(p.pod, self.name, self.labels)] or asked
        lacks = [lack for p in here if (lack := self._lack(p, held.key, models))]
        used = tuple(output for p in here for output in models.output(p, held.key))
        nowhere = Lack("Pending", "NoPlacement", f"its workers are not placed on node {self.name}")
        settled = min(lacks, key=lambda lack: WORST_FIRST.index(lack.phase), default=None if asked else nowhere)
        edges = (p.worker for p in asked if p.pod.node_name and isinstance(p.worker, EdgeWorkerSpec))
        keeps = any(worker.keep_hard_samples for worker in edges)
        kept = self.folders.kept(held.key.namespace, held.key.name) if keeps else None
        return ResourceState(held.key, held.uid, held.generation, models=used, settled=settled, kept=kept), {}

    def served(self, held: NodeResource, resource: Resource[Any]) -> RequiredFile | None:  # of the port
        """Always None: pods bring their own models."""

    def server(
        self,
        held: NodeResource,
        resource: Resource[Any],  # noqa: ARG002
        preparation: Preparation | None,  # noqa: ARG002
    ) -> tuple[ResourceState, dict[Worker, Start]]:
        """Return a settled state without a server: pods serve."""
        return ResourceState(
            held.key, held.uid, held.generation, settled=Lack("Ready", "LeftToPods", "pods serve it")
        ), {}

    def _lack(self, placement: Placement, service: Key, models: Models) -> Lack | None:
        left = {
            item.held.key.name
            for item in models.held(placement, service)
            if item.resource and self.leaves(item.resource)
        }
        for name in placement.models:
            found = models.find(name, service, self.name)
            if isinstance(found, Lack) and name not in left:
                return found
        return None
