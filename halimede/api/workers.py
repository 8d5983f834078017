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
from halimede.api.jointinference import EdgeWorker, JointInferenceServiceSpec
from halimede.api.model import ModelSpec
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


def common(
    service: Resource[JointInferenceServiceSpec],
    placement: Placement,
    model: Resource[ModelSpec],
    model_path: str,
    *,
    broker: str,
    state: str,
    grace_s: float,
) -> Told:
    """Return what a worker of ``service`` in the role of ``placement`` is told wherever it runs.

    ``model_path`` is where it finds the model, ``state`` is its folder.
    """
    facts = {
        "NAMESPACE": service.metadata.namespace,
        "SERVICE_NAME": service.metadata.name,
        "SERVICE_UID": service.metadata.uid,
        "MODEL_URL": model_path,
        "MODEL_SPEC": _json(msgspec.structs.replace(model.spec, url=model_path, credential_name="")),
        "HALIMEDE_BROKER": broker,
        "HALIMEDE_STATE": state,
        "GRACE_S": f"{grace_s:g}",
    }
    if isinstance(placement.worker, EdgeWorker):
        facts |= _edge(placement.worker)
    return Told(facts, {"LC_PERIOD": LC_PERIOD})


def _edge(worker: EdgeWorker) -> dict[str, str]:
    mining = worker.hard_example_mining
    told = {
        "HEM_NAME": mining.name,
        "HEM_PARAMETERS": _json([{"key": p.key, "value": p.value} for p in mining.parameters]),
        "DEADLINE_MS": str(worker.deadline_ms),
    }
    return told | ({"SOURCE": _json(worker.source)} if worker.source else {})


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
