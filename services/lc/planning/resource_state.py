"""The state of a resource on this node (``ResourceState``), its phases, and the files that it needs.

``RequiredFile`` is a file that should be here, ``Preparation`` its progress. Plain values, which plans compute.
"""

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
#: the reason of a worker whose service names a Model that the node does not hold
ABSENT = "ModelNotFound"
#: the phase of a resource or of a file on this node
Phase = Literal["Pending", "Running", "Failed", "Ready"]


@dataclass(frozen=True, slots=True)
class LocalPhase:
    """A phase on this node, with its reason in one word and a message for users.

    It is the phase of a worker that should run and cannot, or of a resource where workers do not decide. In a report it
    is that of any worker.
    """

    phase: Phase
    reason: str
    message: str


def missing_text(path: Path) -> str:
    """Return the message about a file that was ready, and is missing now or not as it was verified. Blocks."""
    return f"{path} was {'changed' if path.exists() else 'removed'}: LC downloads it again"


@dataclass(frozen=True, slots=True)
class ResourceState:
    """What a plan knows for the report on a resource; the rest are its workers' own reports.

    Attributes:
        key: of the resource.
        uid: of its life.
        generation: of its spec.
        workers: its workers that should run here, with their roles.
        lacks: why some of them cannot run.
        models: the Models that it names, or that it is.
        settled: its phase where workers do not decide: a resource without workers, or a service without one here.
        facts: about the content of a Model or Dataset; None: unknown, or another kind.
        parts: the workers' own names in the service, if several of its workers share a role.
        code: the digests of the Python files that its workers here use, by path.
        missing_code: the path of a Python file that is missing now, by the worker that uses it.
        hard_samples: the folder for the hard samples of its pod here; None: none is needed.

    """

    key: Key
    uid: str
    generation: int
    workers: Mapping[Worker, Role] = field(default_factory=dict)
    lacks: Mapping[Worker, LocalPhase] = field(default_factory=dict)
    models: tuple[ModelOutput, ...] = ()
    settled: LocalPhase | None = None
    facts: ModelFacts | DatasetFacts | None = None
    parts: Mapping[Worker, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    missing_code: Mapping[Worker, str] = field(default_factory=dict)
    hard_samples: Path | None = None


def internal_failure(key: Key, error: Exception) -> LocalPhase:
    """Log a bug in the planning of a resource, and return what users read; the error's text may contain a secret."""
    log.error("resource not planned", key=str(key), exc_info=error)
    return LocalPhase("Failed", "Internal", "this node could not plan it, by an error in LC: see its log")


@dataclass(frozen=True, slots=True)
class RequiredFile:
    """A file or folder of a Model or Dataset that should be on this node.

    Attributes:
        key: of the resource.
        uid: of its life.
        generation: of its spec.
        url: where the file comes from.
        sha256: its digest, 64 hexadecimal digits; empty: any content.
        format: as in the resource's spec.
        spec: a Model's spec as JSON without its URL, for the trial of the file; empty: of a Dataset.
        source: the node from which this node copies; empty: the URL is used.
        listed: whether other nodes copy the files of this Dataset, so that a list of them is needed.
        own_code: whether a user's own code may use the file: then one that halimede cannot use counts as present.

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
    """The progress of a required file.

    Attributes:
        required: the file.
        phase: Ready once it can be used.
        reason: of the phase, in one word. A Model that is Ready with a reason may be usable only by a user's own code;
            a Dataset that is Ready with a reason is probably not as its user means it.
        message: of the phase, for users.
        path: of the file or folder; None: it is not here.
        facts: about its content; None: unknown.

    """

    required: RequiredFile
    phase: Phase = "Pending"
    reason: str = "Preparing"
    message: str = ""
    path: Path | None = None
    facts: ModelFacts | DatasetFacts | None = None
