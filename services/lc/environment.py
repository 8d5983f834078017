"""What a worker is told by its environment on this node: what every worker is told, and where things are here.

The table is in docs/architecture.md. Of the node's credentials a worker is told the folder of its own role alone.
"""

from __future__ import annotations

from pathlib import Path

from halimede.api import Resource
from halimede.api.jointinference import JointInferenceServiceSpec
from halimede.api.model import ModelSpec
from halimede.api.placement import Placement
from halimede.api.workers import Told, common
from services.lc.folders import Worker

#: where a worker has its health and metrics, unless its template says otherwise: a free port on loopback
WORKER_HTTP = "127.0.0.1:0"


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
    told = common(service, placement, model, str(model_path), broker=broker, state=str(folder), grace_s=grace_s)
    facts = {"WORKER_NAME": worker.name, "NODE_NAME": node}
    if credentials:
        facts["HALIMEDE_CREDENTIALS"] = str(credentials)
    return Told(told.facts | facts, told.defaults | {"DATA_PATH_PREFIX": "", "HALIMEDE_HTTP": http})
