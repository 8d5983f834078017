"""A worker process as the rest of the LC sees it: its specification (``ProcessSpec``, ``Start``), and two protocols.

``Launcher`` starts processes, ``Process`` is a running one. A simulation of many nodes implements them without real
processes.
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

#: edge, cloud or serve (a server of an InferenceModel)
Role = WorkerRole
T = TypeVar("T")

#: variables that name the model, for scripts that do not read the desired-state file
MODEL = frozenset({"MODEL_URL", "MODEL_SPEC"})
#: variable with the digests of the Python files that a worker's spec names, so that an edit means another process
CODE_DIGESTS = "CODE_DIGESTS"
#: variables on which a worker's MQTT sessions (messages that the broker keeps for it) depend
SESSIONS = ("NAMESPACE", "WORKER_NAME", "SERVICE_UID", "SOURCE", "HALIMEDE_BROKER", "HALIMEDE_CREDENTIALS")
#: arguments of Python that run a worker and a model server of this package
WORKER, SERVER = ("-m", "halimede", "worker"), ("-m", "halimede", "serve")


@dataclass(frozen=True, slots=True)
class NeededPath:
    """A path that must exist before a process starts.

    Attributes:
        path: an absolute path.
        kind: what it must be.
        create: whether it is made as a folder if it does not exist.

    """

    path: str
    kind: Literal["any", "folder", "file"] = "any"
    create: bool = False


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to run. A process with an equal ``digest`` need not be restarted.

    Attributes:
        argv: program and arguments.
        env: environment variables. They also name the first model, which is not part of the digest.
        cwd: working directory.
        memory_bytes: limit of its private writable memory; None: there is none.
        grace_s: seconds from SIGTERM until it is killed.
        paths: paths that must exist.

    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    memory_bytes: int | None = None
    grace_s: float = 10.0
    paths: tuple[NeededPath, ...] = ()

    @property
    def reports(self) -> bool:
        """Whether it reports while it runs: it is a worker or model server of this package, not a user's script."""
        return self.argv[1:4] in {WORKER, SERVER}

    @property
    def trains(self) -> bool:
        """Whether it is a process of a training, for which no frame waits."""
        return "TRAINING" in self.env

    @property
    def has_share(self) -> bool:
        """Whether it is a process of a training whose job promises it a share of a core."""
        job = self._variable("TRAINING", dict[str, Any])
        return job is not None and bool(job.get("cpuShare", CPU_SHARE))

    @property
    def code(self) -> dict[str, str]:
        """The digests of the Python files that its spec names, by path."""
        return self._variable(CODE_DIGESTS, dict[str, str]) or {}

    def _variable(self, name: str, type_: type[T]) -> T | None:
        """Return the value of a variable that is JSON of a type; None: there is none, or it is another text."""
        try:
            return msgspec.json.decode(self.env.get(name, ""), type=type_)
        except msgspec.DecodeError:
            return None

    def has_same_sessions(self, other: ProcessSpec) -> bool:
        """Whether workers with this spec and another one have the same MQTT sessions, for frames of the same cameras.

        The session key does not count: with another one a worker has other sessions, but takes over the former ones.
        """
        return all(self.env.get(name) == other.env.get(name) for name in SESSIONS)

    @property
    def digest(self) -> str:
        """A digest of all fields, without the variables that name the model."""
        env = {name: value for name, value in self.env.items() if name not in MODEL}
        identity = ProcessSpec(self.argv, env, self.cwd, self.memory_bytes, self.grace_s, self.paths)
        return hashlib.sha256(msgspec.json.encode(identity, order="deterministic")).hexdigest()


@dataclass(frozen=True, slots=True)
class Start:
    """A worker that should run.

    Attributes:
        worker: its name.
        service: key of its service.
        uid: of the service.
        role: of the worker.
        spec: its process.
        model: the file of its model, which must exist when it starts; None: it has none.
        desired: the models that it should have. They are in a file next to the worker as well, so that it can change
            its model while it runs. None: it has no model.
        files: other files of its Models, which must exist as well, such as the archive with a trainer's class.

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
        """The one model that it should answer with; None: it has none."""
        return self.desired.only if self.desired else None


#: reasons of a ``StartError``: something is not on this node, or the system refused to start a process
MISSING_ON_NODE = frozenset({"HostPathMissing", "WorkingDirMissing", "CommandNotFound"})
CANNOT_START = "CannotStart"


class StartError(HalimedeError):
    """A process could not be started; a retry may succeed after a person acts. ``reason``: one word for a condition."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class Process(Protocol):
    """A running process of a worker, with its process group."""

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
        """Return the running workers of this node, at most one process each, from stored records and a search."""

    def last_line(self, worker: Worker) -> str:
        """Return the last line that a worker has written to its log; empty: it has written none."""

    def connection_error(self, worker: Worker, age_s: float) -> str:
        """Return why a worker has no connection to the broker, by its log of the last ``age_s`` seconds; empty: it has.

        Also empty if the log does not say.
        """
