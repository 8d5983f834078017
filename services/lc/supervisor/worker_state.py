"""One worker that is looked after: what is known of it, and how it stands by that. Pure."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Literal

from halimede.messages import TaskInfo, WorkerInfo
from halimede.models.desired_state import DesiredModel
from halimede.names import Key
from services.lc.paths import Worker
from services.lc.supervisor.process import Process, Role, Start
from services.lc.supervisor.rollout import WorkerRollout

WorkerPhase = Literal["Pending", "Running", "Failed"]

#: seconds until a worker that has failed for the first time is started again
FIRST_DELAY = 0.5
#: seconds after which a process counts as stable, and a user's own script as running though it never reports
STABLE_S = 30.0
#: this many failures in a row, none after a stable run, are a crash loop
QUICK_FAILURES = 3
#: the reason in the last line of a worker of ours; one whose event loop hangs has no other way to say it
_reason = re.compile(r"halimede (?:\w+ )?worker: ((?:[A-Z][a-z]+)+): ")


@dataclass(slots=True)
class WorkerState:
    """One worker that is looked after."""

    worker: Worker
    service: Key
    uid: str
    role: Role
    spec_hash: str
    #: None: adopted, and not asked for yet
    start: Start | None
    task: asyncio.Task[None] | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    process: Process | None = None
    since: float = 0.0
    adopted: bool = False
    info: WorkerInfo | None = None
    task_info: TaskInfo | None = None
    restarts: int = 0
    #: in a row, none of them after a stable run
    failures: int = 0
    #: the last failure was no crash but something that only a person can mend
    mistaken: bool = False
    #: why it could not be started; empty once it could
    reason: str = ""
    #: how the last process ended, and the last line of its log
    ending: str = ""
    line: str = ""
    #: what it said when it failed; this may arrive after the process has ended
    last_words: WorkerInfo | None = None
    delay: float = FIRST_DELAY
    #: the model that plans ask of it, the one that it was told last, and when it first answered with that
    asked: DesiredModel | None = None
    told: DesiredModel | None = None
    answering: float | None = None
    #: why it could not be told; empty once it was
    untold: str = ""
    rollout: WorkerRollout = field(default_factory=WorkerRollout)


def stand(entry: WorkerState, now: float) -> tuple[WorkerPhase, str, str]:
    """Return phase, reason and message. One that keeps failing is not called Running before it has proved itself."""
    info = entry.info
    looping = entry.mistaken or entry.failures >= QUICK_FAILURES
    ran_s = now - entry.since
    if entry.stop.is_set():
        return "Pending", "Stopping", ""
    if entry.process and info and info.status == "failed":
        return "Failed", info.reason or "WorkerFailed", info.message
    if entry.process and info and info.status == "starting" and info.reason:  # it has nothing to answer with
        return "Failed", info.reason, info.message
    if entry.process and (not looping or ran_s >= STABLE_S or (info and info.status == "running")):
        reports = entry.start is not None and entry.start.spec.reports
        silent = info is None and not entry.adopted and (reports or ran_s < STABLE_S)
        if silent or (info and info.status == "starting"):
            return "Pending", "Starting", ""
        return ("Running", info.reason, info.message) if info and info.status == "running" else ("Running", "", "")
    if not entry.ending:  # its task has not run yet
        return "Pending", "Starting", ""
    words = entry.last_words
    said = (words.message if words else "") or entry.line
    message = f"{entry.ending}: {said}" if said else entry.ending
    if entry.mistaken:
        line = _reason.match(entry.line)
        why = (words.reason if words else "") or (line[1] if line else "")
        return "Failed", entry.reason or why or "InvalidConfiguration", message
    return ("Failed", "CrashLoopBackOff", message) if looping else ("Pending", "Restarting", message)
