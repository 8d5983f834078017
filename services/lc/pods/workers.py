"""Workers that are pods (``PodWorkers``), and plans for a node of pods (``PodPlanner``).

GM creates the pods, and Kubernetes runs them under names of its own. The LC knows only their reports. A report counts
if it names a service that the node holds, its uid, and a role. The last report of a pod that ends is stored within a
second, other reports every few seconds, however many there are. After the LC was killed nothing is missing, because
each running pod reports its counts again.
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
from halimede.stats.totals import GROWING, MOMENTARY, add_up, vanished_counts
from services.lc.models.lookup import Models
from services.lc.paths import NodePaths, Worker
from services.lc.planning.node_kinds import NodeState
from services.lc.planning.plan import ObservedWorker, Plan
from services.lc.planning.resource_state import LocalPhase, Preparation, RequiredFile, ResourceState
from services.lc.pods.store import Owner, PodRecord
from services.lc.status_reporter import WORST_FIRST, add_roles, status_of
from services.lc.store import NodeResource, NodeStore
from services.lc.supervisor.process import Role
from services.lc.supervisor.worker_state import WorkerPhase
from services.lc.worker_files import move_folder

log = structlog.get_logger()
#: seconds between two checks for silent pods, and between two writes of received reports
CHECK_S, WRITE_S = 1.0, 5.0
#: states after which a pod may never report again
FINAL_STATES = frozenset({"completed", "failed"})
#: most services that have left this node and may return, whose counts are kept
MAX_DEPARTED = 64
#: most ended pods whose names are remembered although they are over for good
MAX_REMEMBERED = 32
#: seconds of silence after which a pod that has not completed is over for good
RETURNS_S = 3600.0
#: most pods of a service that report; more than run on any node
MAX_LIVE = 256
#: most ended or silent pods of a service whose names are remembered: all may become silent at once
MAX_ENDED_PODS = MAX_LIVE + MAX_REMEMBERED
#: most start times of earlier counts of one pod that are remembered, in case one of their reports arrives again
MAX_EARLIER = 4
#: time without a report after which a pod is silent: number of its report periods, and least seconds
SILENT_PERIODS, SILENT_S = 3, 30.0
#: report period, in seconds, of a worker that does not report one (Sedna's default)
UNKNOWN_PERIOD_S = 30.0
#: the phase for each state that a worker reports, and the reason if it reports none
PHASES: Mapping[str, tuple[WorkerPhase, str]] = {
    "starting": ("Pending", "Starting"),
    "running": ("Running", ""),
    "failed": ("Failed", "WorkerFailed"),
    "completed": ("Pending", "Completed"),
}


class PodWorkers:
    """A ``WorkerBackend`` of pods. ``changed`` is called with a service's key when one of its pods becomes silent."""

    def __init__(self, folders: NodePaths, bus: Bus, store: NodeStore, changed: Callable[[Key], None]) -> None:
        self.restarts = 0
        self._folders = folders
        self._node = folders.node
        self._bus = bus
        self._store = store
        self._changed = changed
        #: the pods of each service's uid; of services that have left this node, the last one to leave is last
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
        for owner, worker, record in self._store.pods.loaded:
            if record.info.role:
                pod = Pod(
                    record.info, record.info.role, now, has_ended=record.has_ended, earlier_starts=record.earlier_starts
                )
                self._services.setdefault(owner, PodCounts()).pods[worker] = pod
        for owner, role, counts in self._store.pods.loaded_sums:
            self._services.setdefault(owner, PodCounts()).retired[role] = counts

    def tasks(self) -> dict[str, Coroutine[None, None, None]]:
        """Return the coroutine that checks for silent pods and stores reports, by name."""
        return {"pods": self._watch()}

    def carry_out(self, plan: Plan) -> None:
        """Drop the counts of services whose name has another uid now, or that left before the last MAX_DEPARTED ones.

        The counts of these last ones stay: a pod that moves to another node may return, and its service's counts must
        never fall. Also make the folders for hard samples, so that they belong to the workers' user: kubelet's would be
        root's.
        """
        for folder in (state.hard_samples for state in plan.states.values() if state.hard_samples):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:  # the next plan tries again
                log.warning("folder for hard samples not made", folder=str(folder), error=str(error))
        present = {(state.key, state.uid) for state in plan.states.values()}
        for owner in self._services.keys() - present:
            if live := self._services[owner].live:
                self._services[owner] = self._services.pop(owner)  # the service that left last is dropped last
                self._end(owner, live)
        departed = [owner for owner in self._services if owner not in present]
        replaced = {owner for owner in departed if owner[0] in plan.states}
        if expired := replaced | set(departed[: max(0, len(departed) - MAX_DEPARTED)]):
            try:
                self._store.pods.forget(expired)
            except sqlite3.Error as error:  # tried again later, like counts that cannot be stored
                log.warning("pod counts not removed", error=str(error))
                return
            for owner in expired:
                del self._services[owner]
            self._unwritten = {row: None for row in self._unwritten if row[0] not in expired}

    def receive(self, worker: Worker, info: WorkerInfo) -> Key | None:
        """Process a pod's report; return the key of its service, None: it does not count."""
        keys = (Key(plural, info.namespace, info.owner_name) for plural in SERVICES)
        resources = ((key, r) for key in keys if (r := self._store.resources.get(key)) and r.uid == info.owner_uid)
        key, resource = next(resources, (None, None))
        if not info.role or key is None or resource is None:
            return None
        owner = (key, resource.uid)
        service = self._services.setdefault(owner, PodCounts())
        if not service.update(worker, info.role, info, asyncio.get_running_loop().time()):
            return None
        self._unwritten.pop((owner, worker), None)
        self._unwritten[owner, worker] = None
        self._urgent |= info.status in FINAL_STATES
        return key

    def status(self, state: ResourceState) -> NodeStatus:
        """Return the report on a resource: the states that its pods report, and the sum of their counts here."""
        service = self._services.get((state.key, state.uid)) or PodCounts()
        reports = [pod.report() for pod in service.live.values()]
        views = [state.settled] if state.settled else []
        views += [LocalPhase(report.phase, report.reason, report.message) for report in reports]
        silent = LocalPhase("Pending", "NoWorkerHere", f"none of its pods on node {self._node} has reported yet")
        return status_of(state, views or [silent], sorted(reports, key=lambda r: r.name), service.total())

    def reports(self) -> list[WorkerReport]:
        """Return the states of all pods."""
        return [pod.report() for service in self._services.values() for pod in service.live.values()]

    def is_busy(self, service: Key) -> bool:  # noqa: ARG002  # of the port
        """Always False: GM sees in the cluster whether pods have ended."""
        return False

    def clear_away(self, service: Key) -> None:
        """Have a service's hard samples removed; a pod's other files end with the pod."""
        if service.plural == jointinference.PLURAL:
            move_folder(self._folders, self._folders.hard_samples(service.namespace, service.name))

    async def stop_all(self) -> None:
        """Store the received reports; pods continue without the LC."""
        self._write()

    # --- inside ------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Find silent pods and store reports, until cancelled."""
        loop = asyncio.get_running_loop()
        written = loop.time()
        while True:
            await asyncio.sleep(CHECK_S)
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
                pod.last_report_at = now

    def _end_silent(self, now: float) -> None:
        """Mark silent pods as ended."""
        for owner, service in self._services.items():
            for worker in service.silent_pods(now):
                log.info("pod timed out", worker=str(worker), service=str(owner[0]))
                self._end(owner, [worker])
                self._changed(owner[0])

    def _end(self, owner: Owner, workers: Iterable[Worker]) -> None:
        """Mark pods of a service as ended, to be stored."""
        for worker in workers:
            self._services[owner].end(worker)
            self._unwritten[owner, worker] = None

    def _write(self) -> None:
        """Store the received reports, and retire surplus pods. What cannot be stored waits for the next call."""
        rows, now = self._store.pods, asyncio.get_running_loop().time()
        try:
            if self._unwritten:
                # together: a report that replaces larger counts, and the sum that has these from now on
                sums = [(o, role, s.retired[role]) for o, s in self._services.items() for role in s.unwritten]
                records = [(owner, worker, self._record(owner, worker)) for owner, worker in self._unwritten]
                rows.write(records, sums)
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
        """Return what is stored of a pod."""
        pod = self._services[owner].pods[worker]
        return PodRecord(pod.info, pod.has_ended, pod.earlier_starts)


@dataclass(slots=True)
class Pod:
    """A remembered pod.

    Attributes:
        info: its last report, with its last counts.
        role: of its worker.
        last_report_at: the event loop's time of the report.
        has_ended: whether it has ended, or is silent.
        earlier_starts: start times of its earlier counts, which its folder lost when it was made anew. A late report
            with one of these times is recognised as old.

    """

    info: WorkerInfo
    role: Role
    last_report_at: float
    has_ended: bool = False
    earlier_starts: tuple[str, ...] = ()

    def is_outdated(self, counts: TaskInfo) -> bool:
        """Whether counts are older than the last ones: the broker has delivered an old report again.

        Their time alone does not tell, because the machine's clock may be behind after a power cut: newer counts have
        grown.
        """
        last = self.info.task_info
        if last is None or counts.start_time in self.earlier_starts:
            return last is not None
        older = counts.start_time == last.start_time and counts.current_time < last.current_time
        return older and all(getattr(counts, name) <= getattr(last, name) for name in GROWING)

    @property
    def patience_s(self) -> float:
        """Seconds without a report after which it is silent."""
        return max(SILENT_S, SILENT_PERIODS * (self.info.period_s or UNKNOWN_PERIOD_S))

    def is_over(self, now: float) -> bool:
        """Whether an ended pod is not expected to report again, at the event loop's time ``now``."""
        return self.info.status == "completed" or now - self.last_report_at > RETURNS_S

    def report(self) -> WorkerReport:
        """Return its state, as a report on its service has it."""
        info = self.info
        phase, otherwise = PHASES[info.status]
        has_reason = info.status in {"running", "failed"}
        reason, message = (info.reason or otherwise, info.message) if has_reason else (otherwise, "")
        report = WorkerReport(
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
            report.part, report.task_info = info.tier, info.task_info
        return report


@dataclass(slots=True)
class PodCounts:
    """All pods of one service's uid that ever ran here, with their counts.

    A pod's counts only grow, and stay when the pod is replaced. Replaced pods must take bounded memory, so only some
    ended pods keep their names; others are retired: their counts are added up by role. A retired pod that reports again
    would be counted twice, so a pod is retired only when it has completed, or was silent for long.

    Attributes:
        pods: the pods with names, in the order of their last reports.
        retired: the sums of the counts of retired pods, and of counters that were lost.
        unwritten: roles whose sums have changed and are not stored yet.

    """

    pods: dict[Worker, Pod] = field(default_factory=dict)
    retired: dict[Role, TaskInfo] = field(default_factory=dict)
    unwritten: set[Role] = field(default_factory=set)

    def update(self, worker: Worker, role: Role, info: WorkerInfo, now: float) -> bool:
        """Record a pod's report at the event loop's time ``now``; return False if there are too many pods for it.

        Counts that are less than before are of a folder that was made anew: the earlier ones are added to the sum.
        """
        pod = self.pods.get(worker)
        if (pod is None or pod.has_ended) and len(self.live) >= MAX_LIVE:
            return False
        counts, earlier_starts = info.task_info or info.owner_info, pod.earlier_starts if pod else ()
        if pod and (counts is None or pod.is_outdated(counts)):
            counts = pod.info.task_info
        elif pod and counts and (before := pod.info.task_info) and (missing := vanished_counts(before, counts)):
            self._add(pod.role, missing)
            starts = (*earlier_starts, before.start_time)
            earlier_starts = tuple(start for start in starts if start not in {"", counts.start_time})[-MAX_EARLIER:]
            log.warning("pod state lost", worker=str(worker), counts=missing.inference_number)
        self.pods.pop(worker, None)
        report = msgspec.structs.replace(info, task_info=counts, owner_info=None)
        self.pods[worker] = Pod(report, role, now, earlier_starts=earlier_starts)
        if info.status == "completed":
            self.end(worker)
        return True

    def end(self, worker: Worker) -> None:
        """Mark a pod as ended; its counts stay."""
        pod = self.pods[worker]
        pod.has_ended = True
        if pod.info.task_info:  # frames that were open in it are lost
            counts = msgspec.structs.replace(pod.info.task_info, **MOMENTARY)
            pod.info = msgspec.structs.replace(pod.info, task_info=counts)

    def silent_pods(self, now: float) -> list[Worker]:
        """Return the live pods that are silent at the event loop's time ``now``."""
        return [worker for worker, pod in self.live.items() if now - pod.last_report_at > pod.patience_s]

    def surplus(self, now: float) -> list[Worker]:
        """Return the ended pods to retire: those over for good, and at the limit also some that may return."""
        ended = [worker for worker, pod in self.pods.items() if pod.has_ended]
        expired = [worker for worker in ended if self.pods[worker].is_over(now)]
        waiting = [worker for worker in ended if not self.pods[worker].is_over(now)]
        return [*expired, *waiting][: max(0, len(expired) - MAX_REMEMBERED, len(ended) - MAX_ENDED_PODS)]

    def with_retired(self, worker: Worker) -> tuple[Role, TaskInfo | None]:
        """Return a pod's role, and the sum of retired counts of that role with the pod's own; None: there are none."""
        pod = self.pods[worker]
        infos = [info for info in (self.retired.get(pod.role), pod.info.task_info) if info]
        return pod.role, add_up(infos) if infos else None

    def _add(self, role: Role, counts: TaskInfo) -> None:
        """Add counts to the sum of a role."""
        self.retired[role] = add_up([*(info for info in [self.retired.get(role)] if info), counts])
        self.unwritten.add(role)

    def retire(self, worker: Worker, role: Role, counts: TaskInfo | None) -> None:
        """Drop a pod's name; ``counts``: the sum of its role from now on, None: it does not change."""
        del self.pods[worker]
        if counts:
            self.retired[role] = counts

    @property
    def live(self) -> Mapping[Worker, Pod]:
        """The pods that have not ended, by name."""
        return {worker: pod for worker, pod in self.pods.items() if not pod.has_ended}

    def total(self) -> TaskInfo | None:
        """Return the sum of all pods' counts; None: there are none, or no edge pod has reported any and one is here."""
        infos: dict[Role, list[TaskInfo]] = {"edge": [], "cloud": [], "serve": []}
        for role, counts in self.retired.items():
            infos[role].append(counts)
        for pod in self.pods.values():
            if pod.info.task_info:
                infos[pod.role].append(pod.info.task_info)
        if not infos["edge"] and any(pod.role == "edge" for pod in self.pods.values()):
            return None
        return add_roles(infos["edge"], infos["cloud"])


@dataclass(frozen=True, slots=True)
class PodPlanner:
    """A ``WorkerPlanner`` of pods. It starts no workers: Kubernetes decides which pods run here.

    A service's worker counts as placed here unless its pods name another node. A Model is prepared in advance if GM has
    sent it and the LC can: the node's own files are mounted into the pods that need them, and only pods receive a
    Model's credentials. A Dataset is counted if its folder is mounted into the LC's pod as well.

    Attributes:
        name: of the node.
        labels: of the node, as far as the LC knows them.
        folders: paths of the node's files.

    """

    name: str
    labels: Mapping[str, str]
    folders: NodePaths

    def skip_reason(self, resource: Resource[Any]) -> str:
        """Return why the file of a Model or Dataset is left to pods; empty: the LC brings or counts it."""
        spec = resource.spec
        try:
            local = local_path(spec.url) is not None
        except FetchError:  # the preparer reports it
            return ""
        if local:
            return "" if resource.kind.plural == dataset.PLURAL else "its pods read it from the node's files"
        return f"its pods download it: only they have the Secret {spec.credential_name}" if spec.credential_name else ""

    def service(self, stored: NodeResource, resource: Resource[Any], models: Models) -> NodeState:
        """Return the state of a service on this node, by its Models; there is nothing to start."""
        candidates = [p for p in placements(resource.spec) if p.pod.node_name in {"", self.name}]
        named = [p for p in candidates if models.present(p, stored.key) or matches(p.pod, self.name, self.labels)]
        here = named or candidates
        lacks = [lack for p in here if (lack := self._lack(p, stored.key, models))]
        outputs = tuple(output for p in here for output in models.output(p, stored.key))
        nowhere = LocalPhase("Pending", "NoPlacement", f"its workers are not placed on node {self.name}")
        settled = min(lacks, key=lambda lack: WORST_FIRST.index(lack.phase), default=None if candidates else nowhere)
        edges = (p.worker for p in candidates if p.pod.node_name and isinstance(p.worker, EdgeWorkerSpec))
        keeps_samples = any(worker.keep_hard_samples for worker in edges)
        hard_samples = self.folders.hard_samples(stored.key.namespace, stored.key.name) if keeps_samples else None
        return ResourceState(
            stored.key, stored.uid, stored.generation, models=outputs, settled=settled, hard_samples=hard_samples
        ), {}

    def served_file(self, stored: NodeResource, resource: Resource[Any]) -> RequiredFile | None:  # of the port
        """Always None: pods bring their own models."""

    def server(self, stored: NodeResource, resource: Resource[Any], preparation: Preparation | None) -> NodeState:  # noqa: ARG002
        """Return that the InferenceModel is Ready here, without a server: pods serve it."""
        settled = LocalPhase("Ready", "LeftToPods", "pods serve it")
        return ResourceState(stored.key, stored.uid, stored.generation, settled=settled), {}

    def _lack(self, placement: Placement, service: Key, models: Models) -> LocalPhase | None:
        """Return why a worker of a service lacks a Model that the LC brings; None: it lacks none."""
        skipped = {
            item.stored.key.name
            for item in models.present(placement, service)
            if item.resource and self.skip_reason(item.resource)
        }
        for name in placement.models:
            model = models.find(name, service, self.name)
            if isinstance(model, LocalPhase) and name not in skipped:
                return model
        return None
