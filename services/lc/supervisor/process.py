"""A worker process as the rest of the LC sees it: what to run, and the small protocol behind which it runs.

The protocol is what lets a simulation of many nodes leave real processes out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from halimede.errors import HalimedeError
from halimede.messages.control import WorkerRole
from halimede.models.desired_state import Desired, DesiredModel
from halimede.names import Key
from services.lc.paths import Worker
from services.lc.store import ProcessRecord

Role = WorkerRole

#: variables that name the model, for scripts that do not read the file beside them
MODEL = frozenset({"MODEL_URL", "MODEL_SPEC"})
#: what a worker and a model server of this package are started as (``python -m``)
WORKER, SERVER = "services.worker", "halimede.serving"


@dataclass(frozen=True, slots=True)
class NeededPath:
    """A path of the node that must be there before the process starts (``create``: a folder that may be made)."""

    path: str
    kind: Literal["any", "folder", "file"] = "any"
    create: bool = False


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to run, in full: two equal ones need no restart. ``grace_s`` is how long it may take to drain.

    Which model it begins with is told in the environment, too, and is no part of what it is: see ``Start.desired``.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    memory_bytes: int | None = None
    grace_s: float = 10.0
    paths: tuple[NeededPath, ...] = ()

    @property
    def reports(self) -> bool:
        """Whether it reports when it runs: it is a worker of this package, not a script of the user's."""
        return self.argv[1:3] in {("-m", WORKER), ("-m", SERVER)}

    @property
    def digest(self) -> str:
        """A digest of everything above, but for the model."""
        env = {name: value for name, value in self.env.items() if name not in MODEL}
        what = ProcessSpec(self.argv, env, self.cwd, self.memory_bytes, self.grace_s, self.paths)
        return hashlib.sha256(msgspec.json.encode(what, order="deterministic")).hexdigest()


@dataclass(frozen=True, slots=True)
class Start:
    """A worker that should run: for which service, in which role, and how. ``model`` must be there when it starts.

    ``desired`` is what it is to answer with, for one that takes another model while it runs: the file beside it.
    """

    worker: Worker
    service: Key
    uid: str
    role: Role
    spec: ProcessSpec
    model: Path | None = None
    desired: Desired | None = None

    @property
    def desired_model(self) -> DesiredModel | None:
        """The one model that it is to answer with."""
        return self.desired.only if self.desired else None


class StartError(HalimedeError):
    """A process could not be started. ``reason`` is for a condition; trying again may help once someone acts on it."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class Process(Protocol):
    """One running process with its group."""

    @property
    def record(self) -> ProcessRecord:
        """What to remember of it."""

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped it (SIGSTOP, SIGTSTP): it runs no code until it is continued."""

    async def wait(self) -> int | None:
        """Wait for its end and end what is left of its group; return the exit code (None: it was not our child)."""

    def terminate(self) -> None:
        """Ask the group to stop (SIGTERM)."""

    def kill(self) -> None:
        """End the group at once (SIGKILL)."""


class Launcher(Protocol):
    """What starts processes, and finds those that an LC before this one has started."""

    def start(self, start: Start) -> Process:
        """Start a worker; raise StartError."""

    def find(self, known: list[ProcessRecord]) -> list[Process]:
        """Return the workers of this node that run already, at most one a worker, from records and from a search."""

    def last_line(self, worker: Worker) -> str:
        """Return the last line that a worker wrote to its log."""
