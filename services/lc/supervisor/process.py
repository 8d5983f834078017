"""A worker process for the rest of the LC: its specification, and the protocol that runs it.

With this protocol a simulation of many nodes runs without real processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from halimede.api.trainingmodel import CPU_SHARE
from halimede.errors import HalimedeError
from halimede.messages.control import WorkerRole
from halimede.models.desired_state import Desired, DesiredModel
from halimede.names import Key
from services.lc.paths import Worker
from services.lc.store import ProcessRecord

Role = WorkerRole
T = TypeVar("T")

#: variables that name the model, for scripts that do not read the desired-state file
MODEL = frozenset({"MODEL_URL", "MODEL_SPEC"})
#: variable with the digests of the Python files that a worker's spec names: of an edited file they are another process
CODE_DIGESTS = "CODE_DIGESTS"
#: variables on which the sessions of a worker with the broker depend (``halimede.worker.sources.camera_topics``)
SESSIONS = ("NAMESPACE", "WORKER_NAME", "SERVICE_UID", "SOURCE", "HALIMEDE_BROKER", "HALIMEDE_CREDENTIALS")
#: arguments of Python that run a worker and a model server of this package
WORKER, SERVER = ("-m", "halimede", "worker"), ("-m", "halimede", "serve")


@dataclass(frozen=True, slots=True)
class NeededPath:
    """A path that must exist before the process starts (``create``: a folder that may be made)."""

    path: str
    kind: Literal["any", "folder", "file"] = "any"
    create: bool = False


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to run: equal specs need no restart. ``grace_s`` is the time to drain.

    The environment also has the first model, which is not part of the spec's identity: see ``Start.desired``.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    memory_bytes: int | None = None
    grace_s: float = 10.0
    paths: tuple[NeededPath, ...] = ()

    @property
    def reports(self) -> bool:
        """Whether it reports while it runs: it is a worker of this package, not a user's script."""
        return self.argv[1:4] in {WORKER, SERVER}

    @property
    def trains(self) -> bool:
        """Whether it is a process of a training, for which no frame waits."""
        return "TRAINING" in self.env

    @property
    def has_share(self) -> bool:
        """Whether it is a process of a training that is promised a share of a core."""
        job = self._variable("TRAINING", dict[str, Any])
        return job is not None and bool(job.get("cpuShare", CPU_SHARE))

    @property
    def code(self) -> dict[str, str]:
        """The digests of the Python files that its spec names, by path."""
        return self._variable(CODE_DIGESTS, dict[str, str]) or {}

    def _variable(self, name: str, type_: type[T]) -> T | None:
        """Return the value of a variable in JSON; None if there is none, or if it is one of a user's own script."""
        try:
            return msgspec.json.decode(self.env.get(name, ""), type=type_)
        except msgspec.DecodeError:
            return None

    def has_same_sessions(self, other: ProcessSpec) -> bool:
        """Whether a worker with either spec has the same sessions with the broker, for frames of the same cameras.

        With another session key it has others, but answers the frames of the former ones as well.
        """
        return all(self.env.get(name) == other.env.get(name) for name in SESSIONS)

    @property
    def digest(self) -> str:
        """A digest of all fields except the model."""
        env = {name: value for name, value in self.env.items() if name not in MODEL}
        identity = ProcessSpec(self.argv, env, self.cwd, self.memory_bytes, self.grace_s, self.paths)
        return hashlib.sha256(msgspec.json.encode(identity, order="deterministic")).hexdigest()


@dataclass(frozen=True, slots=True)
class Start:
    """A worker that should run: its service, its role, and its spec. ``model`` must exist when it starts.

    ``files``: other files of its Models, which must exist as well, such as the archive with a trainer's class.

    ``desired`` is the desired model of a worker that can change its model while it runs: the file next to it.
    """

    worker: Worker
    service: Key
    uid: str
    role: Role
    spec: ProcessSpec
    model: Path | None = None
    desired: Desired | None = None
    files: tuple[Path, ...] = ()

    @property
    def desired_model(self) -> DesiredModel | None:
        """The one model that it should answer with."""
        return self.desired.only if self.desired else None


#: reasons of a ``StartError``: it names something that is not on this node, or the system refused to start a process
MISSING_ON_NODE = frozenset({"HostPathMissing", "WorkingDirMissing", "CommandNotFound"})
CANNOT_START = "CannotStart"


class StartError(HalimedeError):
    """A process could not be started. ``reason`` is for a condition; a retry may succeed after a person acts."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class Process(Protocol):
    """One running process with its group."""

    @property
    def record(self) -> ProcessRecord:
        """The record by which the process can be found again."""

    @property
    def stopped(self) -> bool:
        """Whether a signal has stopped it (SIGSTOP, SIGTSTP): it runs no code until it is continued."""

    async def wait(self) -> int | None:
        """Wait for its end and kill the rest of its group; return the exit code (None: not a child of this LC)."""

    def terminate(self) -> None:
        """Ask the group to stop (SIGTERM)."""

    def kill(self) -> None:
        """End the group at once (SIGKILL)."""


class Launcher(Protocol):
    """Starts processes, and finds those that an earlier LC has started."""

    def start(self, start: Start) -> Process:
        """Start a worker; raise StartError."""

    def find(self, records: list[ProcessRecord]) -> list[Process]:
        """Return the running workers of this node, at most one process each, from records and from a search."""

    def last_line(self, worker: Worker) -> str:
        """Return the last line that a worker wrote to its log."""

    def connection_error(self, worker: Worker, age_s: float) -> str:
        """Return why a worker has no connection to the broker, by its log of the last seconds; empty if it has one."""
