"""The environment of a worker on this node: the variables of every worker, and local paths.

The table is in docs/worker-environment.md. Of the node's credentials a worker is told the folder of its own role alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from halimede.api import Resource
from halimede.api.model import ModelSpec
from halimede.api.placement import Placement, Service
from halimede.api.worker_environment import MountedModel, WorkerEnvironment, common
from halimede.messages import ModelFacts
from halimede.models.desired_state import DesiredModel
from services.lc.models.preparation import Preparation
from services.lc.paths import Worker
from services.lc.supervisor.rollout import WISH

#: where a worker has its health and metrics, unless its template says otherwise: a free port on loopback
WORKER_HTTP = "127.0.0.1:0"
#: what of a Model says nothing about how its file is used
ABOUT = frozenset({
    "credentialName", "deviceSocVersions", "device_soc_versions", "metrics", "rollout", "sha256", "targetVersion",
    "task", "url", "versions",
})  # fmt: skip
#: characters of a digest that stand for a version without a name
SHORT = 12


def environment(
    service: Resource[Service],
    placement: Placement,
    models: Mapping[str, MountedModel],
    *,
    worker: Worker,
    node: str,
    broker: str,
    folder: Path,
    grace_s: float,
    credentials: Path | None = None,
    http: str = WORKER_HTTP,
) -> WorkerEnvironment:
    """Return what a worker of ``service`` in the role of ``placement`` is told."""
    told = common(service, placement, models, broker=broker, state=str(folder), grace_s=grace_s)
    facts = {"WORKER_NAME": worker.name, "NODE_NAME": node}
    if "model" in models:
        facts["MODEL_FILE"] = f"{folder}/{WISH}"
    if credentials:
        facts["HALIMEDE_CREDENTIALS"] = str(credentials)
    return WorkerEnvironment(told.facts | facts, told.defaults | {"DATA_PATH_PREFIX": "", "HALIMEDE_HTTP": http})


def desired(model: Resource[ModelSpec], here: Preparation) -> DesiredModel:
    """Return the wish that a worker answers with a Model whose file is ``here``.

    What has been opened by its trial is not tried again by each worker.
    """
    facts = here.facts if isinstance(here.facts, ModelFacts) else ModelFacts()
    spec, used = model.spec, msgspec.to_builtins(model.spec)
    return DesiredModel(
        name=model.metadata.name,
        path=str(here.path),
        version=spec.target_version or facts.digest[:SHORT],
        digest=facts.digest,
        spec={name: value for name, value in used.items() if name not in ABOUT},
        canary_percent=spec.rollout.canary_percent if spec.rollout else 100,
        tried=bool(facts.outputs),
    )
