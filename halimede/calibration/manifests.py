"""What `halimede calibrate` writes: the calibration as a Model, and the service that names it, as manifests. Pure."""

from __future__ import annotations

import copy
from typing import Any

from halimede.api.base import SEDNA
from halimede.calibration.calibrate import Calibrated
from halimede.evaluation.service import Chain

FORMAT = "calibration"
#: of easy samples, so many go up all the same where nothing else was said
AUDIT_SHARE = 0.01


def name_of(chain: Chain, tier: int) -> str:
    """Return what the calibration of a tier is called: as a file, with ``-calibration`` as a Model."""
    service = chain.service.metadata.name
    return service if tier == 0 else f"{service}-{chain.tiers[tier].name}"


def manifests(chain: Chain, tier: int, found: Calibrated, url: str, sha256: str) -> list[dict[str, Any]]:
    """Return the Model and the service with its deferral filled in; all else of the service stays as it was written.

    ``tier``: which one was calibrated. A target that was asked for is held at run time; a limit on the risk is a cut
    that must stay where it is, so that the target goes.
    """
    name = f"{name_of(chain, tier)}-calibration"
    metadata: dict[str, Any] = {"name": name}
    if "namespace" in chain.service.body["metadata"]:
        metadata["namespace"] = chain.service.metadata.namespace
    model = {
        "apiVersion": SEDNA,
        "kind": "Model",
        "metadata": metadata,
        "spec": {"url": url, "format": FORMAT, "sha256": sha256},
    }
    service = copy.deepcopy(chain.service.body)
    service.pop("status", None)
    worker = service["spec"]["edgeWorker"] if tier == 0 else service["spec"]["tiers"][tier - 1]
    mining: dict[str, Any] = {"name": found.artefact.rule}
    if found.artefact.parameters:
        mining["parameters"] = [{"key": key, "value": value} for key, value in found.artefact.parameters.items()]
    if mode := worker["hardExampleMining"].get("mode"):
        mining["mode"] = mode
    worker["hardExampleMining"] = mining
    worker["calibration"] = {"name": name}
    worker.pop("targetUploadRatio", None)
    target = found.goal.target_upload
    if target is not None:
        worker["targetUploadRatio"] = target
    worker.setdefault("auditShare", AUDIT_SHARE if target is None else min(AUDIT_SHARE, round(target / 10, 6)))
    worker["fusion"] = "mixture" if found.artefact.mixture else "cloud"
    return [model, service]
