"""The state of a resource on this node: its report without its workers', its missing parts, the files it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import structlog

from halimede.messages import DatasetFacts, ModelFacts, ModelOutput
from halimede.names import Key
from services.lc.paths import Worker
from services.lc.supervisor.process import Role

log = structlog.get_logger()
#: the reason of a worker that waits for a Model which its service names and which the node does not hold
ABSENT = "ModelNotFound"
Phase = Literal["Pending", "Running", "Failed", "Ready"]


@dataclass(frozen=True, slots=True)
class Lack:
    """Why a worker that should run does not."""

    phase: Phase
    reason: str
    message: str


def missing_text(path: Path) -> str:
    """Return the message about a file that was ready and no longer is as it was verified."""
    return f"{path} was {'changed' if path.exists() else 'removed'}: LC downloads it again"


@dataclass(frozen=True, slots=True)
class ResourceState:
    """The report of a resource, apart from its workers' reports."""

    key: Key
    uid: str
    generation: int
    workers: Mapping[Worker, Role] = field(default_factory=dict)
    lacks: Mapping[Worker, Lack] = field(default_factory=dict)
    models: tuple[ModelOutput, ...] = ()
    #: set where workers do not decide: for resources without any, and for a service that cannot have one here
    settled: Lack | None = None
    facts: ModelFacts | DatasetFacts | None = None
    #: the names of those workers that share a role
    parts: Mapping[Worker, str] = field(default_factory=dict)
    #: the digests of the Python files that its workers here use, by path
    code: Mapping[str, str] = field(default_factory=dict)
    #: those of them that are missing now, by worker
    missing_code: Mapping[Worker, str] = field(default_factory=dict)
    #: the folder for the hard samples of its pod here
    hard_samples: Path | None = None


def internal_lack(key: Key, error: Exception) -> Lack:
    """Report a bug; the error's text is only logged, because it may contain a secret."""
    log.error("resource not planned", key=str(key), exc_info=error)
    return Lack("Failed", "Internal", "this node could not plan it, by an error in LC: see its log")


@dataclass(frozen=True, slots=True)
class RequiredFile:
    """A file of a Model or Dataset that should be on this node. The generation is that of its resource.

    ``spec``: a Model's spec as JSON without its URL, for the trial of the file. ``source``: the node whose file this
    one copies; empty: it uses the URL. ``listed``: other nodes copy the files of this Dataset. ``own_code``: a user's
    estimator may read the file in its own way.
    """

    key: Key
    uid: str
    generation: int
    url: str
    sha256: str = ""
    format: str = ""
    spec: str = ""
    source: str = ""
    listed: bool = False
    own_code: bool = True


@dataclass(frozen=True, slots=True)
class Preparation:
    """The progress of a required file; ``path`` once it is present, and the facts about it.

    If a Model is ready and has a reason, only a user's estimator can use it here: its format needs a missing package. A
    Dataset that is ready and has a reason is probably not as its user means it.
    """

    required: RequiredFile
    phase: Phase = "Pending"
    reason: str = "Preparing"
    message: str = ""
    path: Path | None = None
    facts: ModelFacts | DatasetFacts | None = None
