"""The pods of one service on this node, and what they have counted together.

A pod's counts only grow as long as it goes by its name, and stay when it is replaced. The last that each pod told is
kept; of those that are over only some by name, so that any number of replaced pods takes a bounded place: what the
others had counted is in one sum for each role. A pod whose name is lost in that sum must not speak again, or it would
be counted twice: a name is given up when its pod has completed, or been silent for long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from halimede.api import multiedge
from halimede.messages import TaskInfo, WorkerInfo, WorkerReport
from halimede.stats.totals import add_up
from services.lc.paths import Worker
from services.lc.status_builder import add_roles
from services.lc.supervisor.process import Role
from services.lc.supervisor.worker_state import WorkerPhase

#: pods that are over for good and still known by name, as a container of theirs may be started again
KEPT = 32
#: seconds of silence after which a pod that has not completed is over for good
RETURNS_S = 3600.0
#: pods that a report has room for; more than run on any node
MAX_LIVE = 256
#: pods that are over, for good or not, and still known by name: all may fall silent at once
MAX_GONE = MAX_LIVE + KEPT
#: seconds without a word, in a worker's own report periods and at least, until it counts as gone
SILENT_PERIODS, SILENT_S = 3, 30.0
#: seconds between two reports of a worker that does not say (Sedna's default)
UNKNOWN_PERIOD_S = 30.0
#: what a worker's own word is in a report, and the reason where it gives none
STANDS: Mapping[str, tuple[WorkerPhase, str]] = {
    "starting": ("Pending", "Starting"),
    "running": ("Running", ""),
    "failed": ("Failed", "WorkerFailed"),
    "completed": ("Pending", "Completed"),
}


@dataclass(slots=True)
class Pod:
    """One pod: its last report, its last counters, and the time of the report."""

    info: WorkerInfo
    role: Role
    heard_at: float
    gone: bool = False

    @property
    def patience_s(self) -> float:
        """Seconds that it may be silent."""
        return max(SILENT_S, SILENT_PERIODS * (self.info.period_s or UNKNOWN_PERIOD_S))

    def over(self, now: float) -> bool:
        """Say whether a pod that is gone is not expected to speak again."""
        return self.info.status == "completed" or now - self.heard_at > RETURNS_S

    def report(self) -> WorkerReport:
        """Return how it says that it stands."""
        info = self.info
        phase, otherwise = STANDS[info.status]
        failed = info.status == "failed"
        reason, message = (info.reason or otherwise, info.message) if failed else (otherwise, "")
        told = WorkerReport(name=info.name, role=self.role, phase=phase, reason=reason, message=message, http=info.http)
        if info.owner_kind == multiedge.KIND or info.tier:  # of several workers with one role each has its counts shown
            told.part, told.task_info = info.tier, info.task_info
        return told


@dataclass(slots=True)
class PodCounts:
    """All pods of one service's uid that ever ran here: those known by name in the order in which they last spoke."""

    pods: dict[Worker, Pod] = field(default_factory=dict)
    retired: dict[Role, TaskInfo] = field(default_factory=dict)

    def hear(self, worker: Worker, role: Role, info: WorkerInfo, now: float) -> bool:
        """Take a pod's word; return False where there are too many to take a new one."""
        known = self.pods.get(worker)
        if (known is None or known.gone) and len(self.live) >= MAX_LIVE:
            return False
        counts = info.task_info or info.owner_info or (known.info.task_info if known else None)
        self.pods.pop(worker, None)
        self.pods[worker] = Pod(msgspec.structs.replace(info, task_info=counts, owner_info=None), role, now)
        if info.status == "completed":
            self.end(worker)
        return True

    def end(self, worker: Worker) -> None:
        """It is over with a pod: it leaves the list, and its counts stay."""
        pod = self.pods[worker]
        pod.gone = True
        if pod.info.task_info:  # what was inside it is not any more
            counts = msgspec.structs.replace(pod.info.task_info, queued=0, drifting=0)
            pod.info = msgspec.structs.replace(pod.info, task_info=counts)

    def silent(self, now: float) -> list[Worker]:
        """Return the pods that have not spoken for too long."""
        return [worker for worker, pod in self.live.items() if now - pod.heard_at > pod.patience_s]

    def surplus(self, now: float) -> list[Worker]:
        """Return the pods that need not be known by name any more; those that may return only if there is no room."""
        gone = [worker for worker, pod in self.pods.items() if pod.gone]
        over = [worker for worker in gone if self.pods[worker].over(now)]
        waiting = [worker for worker in gone if not self.pods[worker].over(now)]
        return [*over, *waiting][: max(0, len(over) - KEPT, len(gone) - MAX_GONE)]

    def with_retired(self, worker: Worker) -> tuple[Role, TaskInfo | None]:
        """Return a pod's role, and the sum of that role with its counts in it."""
        pod = self.pods[worker]
        infos = [info for info in (self.retired.get(pod.role), pod.info.task_info) if info]
        return pod.role, add_up(infos) if infos else None

    def retire(self, worker: Worker, role: Role, counts: TaskInfo | None) -> None:
        """Forget a pod's name; ``counts`` is the sum of its role from now on."""
        del self.pods[worker]
        if counts:
            self.retired[role] = counts

    @property
    def live(self) -> Mapping[Worker, Pod]:
        """The pods that still speak."""
        return {worker: pod for worker, pod in self.pods.items() if not pod.gone}

    def total(self) -> TaskInfo | None:
        """Return what all pods have counted; None while no edge pod that there is has told any."""
        told: dict[Role, list[TaskInfo]] = {"edge": [], "cloud": [], "serve": []}
        for role, counts in self.retired.items():
            told[role].append(counts)
        for pod in self.pods.values():
            if pod.info.task_info:
                told[pod.role].append(pod.info.task_info)
        if not told["edge"] and any(pod.role == "edge" for pod in self.pods.values()):
            return None
        return add_roles(told["edge"], told["cloud"])
