"""What every worker is told by its environment, be it a process of a node or a pod: Sedna's names where it has one.

The table is in docs/architecture.md. A Model's URL never goes down: it may hold a secret, and a worker has no business
with it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from halimede.api.base import Resource
from halimede.api.jointinference import EdgeWorker
from halimede.api.model import ModelSpec
from halimede.api.multiedge import MemberWorker, MultiEdgeInferenceServiceSpec, cameras, source_of
from halimede.api.placement import Placement

#: seconds between a worker's reports to its LC, unless its template says otherwise
LC_PERIOD = "1"
#: an image of our own worker, which needs no command; wherever it is kept, and whatever its variant
OWN_IMAGE = re.compile(r"(?:.+/)?halimede(?:/worker[\w.:@-]*|-worker(?:[:@].*)?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Told:
    """The environment of a worker: ``facts`` stand whatever the template says, ``defaults`` yield to it."""

    facts: dict[str, str]
    defaults: dict[str, str]


@dataclass(frozen=True, slots=True)
class Brought:
    """A Model, and where the worker finds its file or folder."""

    model: Resource[ModelSpec]
    path: str

    def told(self, name: str) -> dict[str, str]:
        """Return what says so, as variables that begin with ``name``."""
        spec = msgspec.structs.replace(self.model.spec, url=self.path, credential_name="")
        return {f"{name}_URL": self.path, f"{name}_SPEC": _json(spec)}


def common(
    service: Resource[Any],
    placement: Placement,
    model: Brought | None,
    *,
    detector: Brought | None = None,
    broker: str,
    state: str,
    grace_s: float,
) -> Told:
    """Return what a worker of ``service`` in the role of ``placement`` is told wherever it runs.

    ``model`` is None for a worker that needs none, ``state`` is its folder.
    """
    facts = {
        "NAMESPACE": service.metadata.namespace,
        "SERVICE_NAME": service.metadata.name,
        "SERVICE_UID": service.metadata.uid,
        "HALIMEDE_BROKER": broker,
        "HALIMEDE_STATE": state,
        "GRACE_S": f"{grace_s:g}",
    }
    facts |= model.told("MODEL") if model else {}
    facts |= detector.told("DETECTOR") if detector else {}
    if isinstance(placement.worker, EdgeWorker):
        facts |= _edge(placement.worker)
    if isinstance(service.spec, MultiEdgeInferenceServiceSpec):
        facts |= _part(service.spec, placement)
    return Told(facts, {"LC_PERIOD": LC_PERIOD})


def _edge(worker: EdgeWorker) -> dict[str, str]:
    mining = worker.hard_example_mining
    told = {
        "HEM_NAME": mining.name,
        "HEM_PARAMETERS": _json([{"key": p.key, "value": p.value} for p in mining.parameters]),
        "DEADLINE_MS": str(worker.deadline_ms),
    }
    return told | ({"SOURCE": _json(worker.source)} if worker.source else {})


def _part(spec: MultiEdgeInferenceServiceSpec, placement: Placement) -> dict[str, str]:
    """Return what a worker of a multi-edge service is told of itself and of the others."""
    told = {
        "APPLICATION": _json(spec.application),
        "PART": placement.name,
        "MEMBERS": _json([worker.name for worker in spec.edge_workers]),
        "CAMERAS": _json(cameras(spec)),
        "JOINT": "cloud" if spec.cloud_worker else "members",
    }
    if isinstance(placement.worker, MemberWorker):
        told |= {"SOURCE": _json(source_of(placement.worker)), "DEADLINE_MS": str(placement.worker.deadline_ms)}
    return told


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
