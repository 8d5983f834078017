"""What `halimede calibrate` writes and prints: manifests of the calibration and the service, and its figures. Pure."""

from __future__ import annotations

import copy
from typing import Any

from halimede.api.base import SEDNA
from halimede.calibration.calibrate import LEARNED, Calibrated
from halimede.evaluation.service import Chain

#: figures that are shown, with what they mean
FIGURES = {
    "edge_only": "small model alone",
    "cloud_only": "big model alone",
    "joint": "joint",
    "ratio": "joint / big model alone",
    "upload_ratio": "share that goes up",
    "risk": "stays, small wrong, big right",
    "agreement": "stays, both say the same",
    "calibration_error.before": "calibration error before",
    "calibration_error": "calibration error after",
}


def about(found: Calibrated, low: str, high: str) -> list[str]:
    """Say what was fitted on what; ``low`` and ``high`` are the models' names."""
    artefact, goal = found.artefact, found.goal
    truth = "labels" if found.labelled else f"answers of {high}"
    wanted = (
        f"risk at most {goal.max_risk:.4g}, with probability {goal.confidence:.4g}"
        if goal.max_risk is not None
        else f"upload ratio {goal.target_upload or 0:.4g}"
    )
    settings = ", ".join(f"{key} {value}" for key, value in artefact.parameters.items())
    if artefact.rule == LEARNED and artefact.learned:
        settings = f"cut {artefact.learned.cut:.4g}"
    mixture = artefact.mixture
    fusion = f"mixture, weight of {low} {mixture.edge:.4g}" if mixture else "cloud (a mixture would not help)"
    return [
        f"{artefact.service}: {low} asks {high}, for {wanted}",
        f"fitted on {found.fitted} samples, measured on {found.held_out} others; truth: {truth}",
        f"rule: {artefact.rule} ({settings})",
        f"temperatures: {artefact.temperature_edge:.3g} and {artefact.temperature_cloud:.3g}; fusion: {fusion}",
    ]


def rows(found: Calibrated) -> list[list[str]]:
    """Return the held-out figures: meaning, value, interval."""
    figures = found.artefact.figures
    return [
        [
            meaning,
            f"{figures[name]:.4f}",
            f"{figures[f'{name}.low']:.4f} to {figures[f'{name}.high']:.4f}" if f"{name}.low" in figures else "",
        ]
        for name, meaning in FIGURES.items()
        if name in figures
    ]


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
