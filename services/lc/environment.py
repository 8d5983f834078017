"""What a worker is told by environment: Sedna's names where Sedna has one. The table is in docs/architecture.md.

A Model's URL never goes down: it may hold a secret, and a worker has no business with it. Of the node's credentials a
worker is told the folder of its own role alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from halimede.api import Resource
from halimede.api.jointinference import EdgeWorker, JointInferenceServiceSpec
from halimede.api.model import ModelSpec
from halimede.api.placement import Placement
from services.lc.folders import Worker

#: seconds between a worker's reports to its LC, unless its template says otherwise
LC_PERIOD = "1"
#: where a worker has its health and metrics, unless its template says otherwise: a free port on loopback
WORKER_HTTP = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class Told:
    """The environment of a worker: ``facts`` stand whatever the template says, ``defaults`` yield to it."""

    facts: dict[str, str]
    defaults: dict[str, str]


def environment(
    service: Resource[JointInferenceServiceSpec],
    placement: Placement,
    model: Resource[ModelSpec],
    model_path: Path,
    *,
    worker: Worker,
    node: str,
    broker: str,
    folder: Path,
    grace_s: float,
    credentials: Path | None = None,
    http: str = WORKER_HTTP,
) -> Told:
    """Return what a worker of ``service`` in the role of ``placement`` is told."""
    facts = {
        "NAMESPACE": worker.namespace,
        "SERVICE_NAME": service.metadata.name,
        "SERVICE_UID": service.metadata.uid,
        "WORKER_NAME": worker.name,
        "NODE_NAME": node,
        "MODEL_URL": str(model_path),
        "MODEL_SPEC": _json(_described(model.spec, model_path)),
        "HALIMEDE_BROKER": broker,
        "HALIMEDE_STATE": str(folder),
        "GRACE_S": f"{grace_s:g}",
    }
    if credentials:
        facts["HALIMEDE_CREDENTIALS"] = str(credentials)
    if isinstance(placement.worker, EdgeWorker):
        facts |= _edge(placement.worker)
    return Told(facts, {"DATA_PATH_PREFIX": "", "LC_PERIOD": LC_PERIOD, "HALIMEDE_HTTP": http})


def _edge(worker: EdgeWorker) -> dict[str, str]:
    mining = worker.hard_example_mining
    told = {
        "HEM_NAME": mining.name,
        "HEM_PARAMETERS": _json([{"key": p.key, "value": p.value} for p in mining.parameters]),
        "DEADLINE_MS": str(worker.deadline_ms),
    }
    return told | ({"SOURCE": _json(worker.source)} if worker.source else {})


def _described(spec: ModelSpec, path: Path) -> ModelSpec:
    return msgspec.structs.replace(spec, url=str(path), credential_name="")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
