"""One supervised worker: its state, and the phase that follows from the state. Pure."""

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

WorkerPhase = Literal["Pending", "Running", "Failed"]
#: seconds until the first restart of a failed worker
FIRST_DELAY = 0.5
#: seconds after which a process counts as stable
STABLE_S = 30.0
#: seconds after which a user's script counts as running although it never reports
SILENT_S = 5.0
#: so many consecutive failures, none after a stable run, are a crash loop
QUICK_FAILURES = 3
#: the reason in the last log line of a worker of this package: a hanging event loop cannot report it otherwise
_reason = re.compile(r"halimede (?:\w+ )?worker: ((?:[A-Z][a-z]+)+): ")
#: reason of a running worker that no longer reports; of one that has not reported because it has no connection
SILENT, NOT_CONNECTED = "WorkerSilent", "NotConnected"


@dataclass(slots=True)
class WorkerState:
    """One supervised worker."""

    worker: Worker
    service: Key
    uid: str
    role: Role
    #: digest of its desired spec, and of its process, which may have its previous one
    spec_hash: str
    process_hash: str
    #: None: adopted, and not in a plan yet
    start: Start | None
    #: seconds to wait for a script's first report: longer if it imports halimede, and so probably reports
    patience_s: float = SILENT_S
    task: asyncio.Task[None] | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    process: Process | None = None
    since: float = 0.0
    #: the address of its health, and the seconds between its reports, as reported to this LC or to an earlier one
    http: str = ""
    period_s: float = 0.0
    #: loop time of its last report, at first of its start or adoption; the message while that is too long ago
    last_report_at: float = 0.0
    silence: str = ""
    #: why a worker that has not reported yet has no connection to the broker, by its log
    unconnected: str = ""
    #: the time of its last report while the next one is overdue; empty: it reports in time
    overdue_since: str = ""
    adopted: bool = False
    info: WorkerInfo | None = None
    task_info: TaskInfo | None = None
    restarts: int = 0
    #: consecutive failures, none after a stable run
    failures: int = 0
    #: the last failure was not a crash, but needs a person
    needs_person: bool = False
    #: why it could not be started; empty after a start
    reason: str = ""
    #: how the last process ended, and the last line of its log
    ending: str = ""
    last_log_line: str = ""
    #: its report of a failure; it may arrive after the process has ended
    failure_report: WorkerInfo | None = None
    delay: float = FIRST_DELAY
    #: its model in the plans, its last assigned model, and when it first answered with the assigned one
    planned_model: DesiredModel | None = None
    assigned: DesiredModel | None = None
    answering: float | None = None
    #: why the model could not be assigned; empty after an assignment
    assign_error: str = ""
    #: a model is about to be assigned: its file is being checked
    assigning: bool = False
    rollout: WorkerRollout = field(default_factory=WorkerRollout)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files with which its next process may start."""
        start, good = self.start, self.rollout.good
        models = [Path(model.path) for model in (good, start.desired_model if start else None) if model]
        return (*models, *filter(None, (start.model, *start.files))) if start else ()


def phase_of(entry: WorkerState, now: float) -> tuple[WorkerPhase, str, str]:
    """Return phase, reason and message. A worker that keeps failing is not Running before it is stable."""
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
        if entry.silence:
            return "Running", SILENT, entry.silence
        unheard = is_unheard(entry, now)
        if unheard and entry.unconnected:
            return "Pending", NOT_CONNECTED, entry.unconnected
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
    """Return whether a worker should report, and has not yet."""
    reports = entry.start is not None and entry.start.spec.reports
    return entry.info is None and not entry.adopted and (reports or now - entry.since < entry.patience_s)


def failure(entry: WorkerState) -> str:
    """Return how the last process of a worker ended, with its own report or the last line of its log."""
    message = (entry.failure_report.message if entry.failure_report else "") or entry.last_log_line
    return f"{entry.ending}: {message}" if message else entry.ending
