"""One worker that is looked after: what is known of it, how it stands by that, and the rollout of its model.

Pure, but for the files in the worker's folder by which its rollout outlives the controller, and which go with that
folder.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import structlog
from msgspec import Struct

from halimede.errors import InvalidFieldError
from halimede.messages import ModelInUse, TaskInfo, WorkerInfo
from halimede.models import desired_state as wishes
from halimede.models.desired_state import Desired, DesiredModel
from halimede.names import Key
from halimede.system.files import write_atomic
from services.lc.paths import Worker
from services.lc.supervisor.process import Process, Role, Start

WorkerPhase = Literal["Pending", "Running", "Failed"]
#: seconds until a worker that has failed for the first time is started again
FIRST_DELAY = 0.5
#: seconds after which a process counts as stable
STABLE_S = 30.0
#: seconds after which a user's own script counts as running though it never reports
SILENT_S = 5.0
#: this many failures in a row, none after a stable run, are a crash loop
QUICK_FAILURES = 3
#: the reason in the last line of a worker of ours; one whose event loop hangs has no other way to say it
_reason = re.compile(r"halimede (?:\w+ )?worker: ((?:[A-Z][a-z]+)+): ")
log = structlog.get_logger()
#: beside a worker's ledger: what it shall answer with, and how far that has come
WISH, ROLLOUT = "model.json", "rollout.json"
#: seconds that a worker has to answer with a new model before that counts as one to start with
PROVEN_S = 30.0
#: a worker that ends so often on the way to a new model is not told it again
STRIKES = 2
#: reason of a worker, and of its service, that goes on with another model than it was asked to take
FAILED = "RolloutFailed"
#: reason of a worker that runs and no longer reports
SILENT = "WorkerSilent"


class Refusal(Struct, kw_only=True, frozen=True):
    """A model that a worker refused: the mark of the desired state, and the reason."""

    mark: str
    digest: str = ""
    reason: str = ""
    message: str = ""


class WorkerRollout(Struct, kw_only=True, frozen=True):
    """The rollout of a model in a running worker: its desired model, its proven model, and its refused one.

    The model that has proved itself stays known until another has: a worker that ends on the way to a new one starts
    with it again. What was refused is not tried a second time before the Model changes. ``spec_hash``: of the process
    that ``good`` has proved itself in.
    """

    spec_hash: str = ""
    good: DesiredModel | None = None
    refused: Refusal | None = None
    #: how often the worker ended with this wish before it had proved itself
    struck: str = ""
    strikes: int = 0

    def refusal(self, wish: DesiredModel | None) -> Refusal | None:
        """Return why the worker does not have what is wished, None if nothing is known against it."""
        return self.refused if self.refused and wish and self.refused.mark == wish.mark else None

    def asked(self, wish: DesiredModel) -> WorkerRollout:
        """Take what is asked for now. What was known against another wish is forgotten: asked again, it is tried."""
        refused = self.refused if self.refused and self.refused.mark == wish.mark else None
        struck, strikes = (self.struck, self.strikes) if self.struck == wish.mark else ("", 0)
        return msgspec.structs.replace(self, refused=refused, struck=struck, strikes=strikes)

    def first(self, wish: DesiredModel, spec_hash: str) -> DesiredModel:
        """Return the model that a worker starts with: one that has proved itself in such a process, if there is one."""
        good = self.good
        if good is None or self.spec_hash != spec_hash or good.same(wish) or not Path(good.path).is_file():
            return wish
        return good

    def received(self, told: DesiredModel, said: ModelInUse, spec_hash: str, *, proven: bool) -> WorkerRollout:
        """Take what a worker says of the model that it was told. ``proven``: it has answered with it long enough."""
        if not answers(said, told):
            return self
        if said.refused:
            refusal = Refusal(mark=told.mark, digest=said.refused, reason=said.reason, message=said.message)
            return self if self.refused == refusal else msgspec.structs.replace(self, refused=refusal)
        taken = msgspec.structs.replace(self, refused=None) if self.refusal(told) else self
        known = self.good is not None and self.spec_hash == spec_hash
        if said.canary_version or (known and not proven):
            return taken
        return msgspec.structs.replace(taken, good=told, spec_hash=spec_hash, struck="", strikes=0)

    def ended(self, told: DesiredModel, how: str, spec_hash: str) -> WorkerRollout:
        """Take that a worker has ended by itself with the model that it was told last."""
        if self.good is None or self.spec_hash != spec_hash or self.good.same(told):
            return self
        strikes = self.strikes + 1 if self.struck == told.mark else 1
        refused = self.refused
        if strikes >= STRIKES:
            text = f"the worker ended {strikes} times when it was to answer with it ({how})"
            refused = Refusal(mark=told.mark, digest=told.digest, reason="ModelCrashed", message=text)
        return msgspec.structs.replace(self, struck=told.mark, strikes=strikes, refused=refused)


def answers(said: ModelInUse, told: DesiredModel) -> bool:
    """Whether a worker's word is about this wish, and not about the one before."""
    return said.mark == told.mark if said.mark else told.digest in {said.digest, said.refused}


def read_assigned(folder: Path) -> DesiredModel | None:
    """Return what the worker of a folder was told last, None where that is not known."""
    try:
        desired = wishes.read(folder / WISH, WISH)
    except InvalidFieldError as error:
        log.warning("desired model not readable", error=str(error))
        return None
    return desired.only if desired else None


def write_assigned(folder: Path, wish: DesiredModel) -> None:
    """Tell the worker of a folder what to answer with. Raises OSError."""
    if read_assigned(folder) != wish:
        wishes.write(folder / WISH, Desired(models=[wish]))


def load(folder: Path) -> WorkerRollout:
    """Return how the worker of a folder stood when that was last written."""
    try:
        return msgspec.json.decode((folder / ROLLOUT).read_bytes(), type=WorkerRollout)
    except FileNotFoundError:
        return WorkerRollout()
    except (OSError, msgspec.DecodeError) as error:
        log.warning("rollout unreadable", folder=str(folder), error=str(error))
        return WorkerRollout()


def save(folder: Path, rollout: WorkerRollout) -> None:
    """Keep it. What cannot be written is known until the controller ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / ROLLOUT, msgspec.json.encode(rollout))
    except OSError as error:
        log.warning("rollout not written", folder=str(folder), error=error.strerror)


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
    #: seconds for which a script is waited for to report: longer if it imports halimede, and so may well report
    patience_s: float = SILENT_S
    task: asyncio.Task[None] | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    process: Process | None = None
    since: float = 0.0
    #: when it last reported, in loop time; and what is wrong if that is too long ago
    heard_at: float = 0.0
    silent: str = ""
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
    assigned: DesiredModel | None = None
    answering: float | None = None
    #: why it could not be told; empty once it was
    unassigned: str = ""
    rollout: WorkerRollout = field(default_factory=WorkerRollout)


def phase_of(entry: WorkerState, now: float) -> tuple[WorkerPhase, str, str]:
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
        if entry.silent:
            return "Running", SILENT, entry.silent
        reports = entry.start is not None and entry.start.spec.reports
        unheard = info is None and not entry.adopted and (reports or ran_s < entry.patience_s)
        if unheard or (info and info.status == "starting"):
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
