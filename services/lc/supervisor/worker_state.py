"""One supervised worker: its state (``WorkerState``), and the phase that follows from it (``phase_of``). Pure.

The state has three parts, and each has one writer: ``Supervisor`` the process and its ends, ``SilenceWatch`` the times
of reports (``ReportTimes``), and ``RolloutKeeper`` the model and the settings (``Assignment``). Everybody reads them.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from halimede.messages import TaskInfo, WorkerInfo
from halimede.models.desired_state import DesiredModel
from halimede.names import Key
from services.lc.paths import Worker
from services.lc.supervisor.process import Process, Role, Start
from services.lc.supervisor.worker_rollout import WorkerRollout

#: the phase of a worker
WorkerPhase = Literal["Pending", "Running", "Failed"]
#: seconds until the first restart of a failed worker
FIRST_DELAY = 0.5
#: seconds after which a process counts as stable
STABLE_S = 30.0
#: seconds after which a user's script counts as running although it has never reported
SILENT_S = 5.0
#: consecutive failures, none after a stable run, from which on a worker is in a crash loop
QUICK_FAILURES = 3
#: the reason in the last log line of a worker of halimede: a hanging event loop cannot report it otherwise
_reason = re.compile(r"halimede (?:\w+ )?worker: ((?:[A-Z][a-z]+)+): ")
#: reason of a running worker that no longer reports; of one that has not reported because it has no connection
SILENT, NOT_CONNECTED = "WorkerSilent", "NotConnected"


@dataclass(slots=True)
class ReportTimes:
    """When a worker reported, and what follows if it does not. ``SilenceWatch`` writes it.

    Attributes:
        last_at: the event loop's time of its last report; at first of its start or adoption.
        silence: the message while its last report is too long ago; empty: it is not.
        unconnected: why a worker that has not reported yet has no connection to the broker, by its log; or empty.
        overdue_since: the time of its last report (RFC 3339) while the next one is overdue; empty: it reports in time.

    """

    last_at: float = 0.0
    silence: str = ""
    unconnected: str = ""
    overdue_since: str = ""


@dataclass(slots=True)
class Assignment:
    """The model that a worker has, and the one that it is to have. ``RolloutKeeper`` writes it.

    Attributes:
        planned_model: its model in the last plan; None: it has none.
        model: the model that was assigned last (written for the worker to read); None: none was.
        answering: the event loop's time since when it answers with the assigned model; None: it does not.
        error: why the model could not be assigned; empty: it was.
        checking: whether the file of a model is being checked before its assignment.
        rollout: which models and settings are proven, and which were refused.

    """

    planned_model: DesiredModel | None = None
    model: DesiredModel | None = None
    answering: float | None = None
    error: str = ""
    checking: bool = False
    rollout: WorkerRollout = field(default_factory=WorkerRollout)


@dataclass(slots=True)
class WorkerState:
    """One supervised worker. ``Supervisor`` writes it, apart from ``reports`` and ``assignment``.

    Attributes:
        worker: its name.
        service: key of its service.
        uid: of the service.
        role: of the worker.
        spec_hash: digest of its desired process.
        process_hash: digest of its process, which may have previous settings.
        start: how it starts, by the last plan; None: it was adopted, and is in no plan yet.
        patience_s: seconds to wait for the first report of a user's script: more if it names halimede, and so probably
            reports.
        task: supervises it.
        stop: set when it shall stop for good.
        process: its running process; None: none runs.
        since: the event loop's time of the start or adoption of its process.
        http: URL of its health, as reported to this LC or to an earlier one; empty: unknown.
        period_s: seconds between its reports, as reported to this LC or to an earlier one; 0: unknown.
        reports: when it reported.
        adopted: whether an earlier LC has started its process.
        info: the last report of its process; None: there is none yet.
        task_info: its last reported counts, also of earlier processes; None: there are none.
        restarts: number of restarts.
        failures: consecutive failures, none after a stable run.
        needs_person: whether the last failure was not a crash, but needs a person.
        reason: why it could not be started, in one word; empty: it was.
        ending: how the last process ended, or why there is none; empty: none has ended.
        last_log_line: the last line of the last process's log.
        failure_report: its last report that it has failed, which may arrive after the process's end; None: none.
        delay: seconds until the next start.
        assignment: its model and settings.

    """

    worker: Worker
    service: Key
    uid: str
    role: Role
    spec_hash: str
    process_hash: str
    start: Start | None
    patience_s: float = SILENT_S
    task: asyncio.Task[None] | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    process: Process | None = None
    since: float = 0.0
    http: str = ""
    period_s: float = 0.0
    reports: ReportTimes = field(default_factory=ReportTimes)
    adopted: bool = False
    info: WorkerInfo | None = None
    task_info: TaskInfo | None = None
    restarts: int = 0
    failures: int = 0
    needs_person: bool = False
    reason: str = ""
    ending: str = ""
    last_log_line: str = ""
    failure_report: WorkerInfo | None = None
    delay: float = FIRST_DELAY
    assignment: Assignment = field(default_factory=Assignment)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files with which its next process may start: of the proven and the desired model, and others."""
        start, good = self.start, self.assignment.rollout.good
        models = [Path(model.path) for model in (good, start.desired_model if start else None) if model]
        return (*models, *filter(None, (start.model, *start.files))) if start else ()


def phase_of(entry: WorkerState, now: float) -> tuple[WorkerPhase, str, str]:
    """Return phase, reason and message of a worker at the event loop's time ``now``.

    A worker that keeps failing is not Running before it is stable, or reports that it runs.
    """
    info = entry.info
    is_looping = entry.needs_person or entry.failures >= QUICK_FAILURES
    ran_s = now - entry.since
    if entry.stop.is_set():
        return "Pending", "Stopping", ""
    if entry.process and info and info.status == "failed":
        return "Failed", info.reason or "WorkerFailed", info.message
    if entry.process and info and info.status == "starting" and info.reason:  # it has no model to answer with
        return "Failed", info.reason, info.message
    if entry.process and (not is_looping or ran_s >= STABLE_S or (info and info.status == "running")):
        if entry.reports.silence:
            return "Running", SILENT, entry.reports.silence
        unheard = is_unheard(entry, now)
        if unheard and entry.reports.unconnected:
            return "Pending", NOT_CONNECTED, entry.reports.unconnected
        if unheard or (info and info.status == "starting"):
            return "Pending", "Starting", ""
        return ("Running", info.reason, info.message) if info and info.status == "running" else ("Running", "", "")
    if not entry.ending:  # its task has not run yet
        return "Pending", "Starting", ""
    if entry.needs_person:
        report, match = entry.failure_report, _reason.match(entry.last_log_line)
        reason = (report.reason if report else "") or (match[1] if match else "")
        return "Failed", entry.reason or reason or "InvalidConfiguration", failure(entry)
    return ("Failed", "CrashLoopBackOff", failure(entry)) if is_looping else ("Pending", "Restarting", failure(entry))


def is_unheard(entry: WorkerState, now: float) -> bool:
    """Return whether a worker should report, and has not yet, at the event loop's time ``now``."""
    reports = entry.start is not None and entry.start.spec.reports
    return entry.info is None and not entry.adopted and (reports or now - entry.since < entry.patience_s)


def failure(entry: WorkerState) -> str:
    """Return how the last process of a worker ended, with its own report or the last line of its log."""
    message = (entry.failure_report.message if entry.failure_report else "") or entry.last_log_line
    return f"{entry.ending}: {message}" if message else entry.ending
