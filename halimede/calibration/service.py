"""Calibrates one tier of a service, offline, and makes manifests from the result.

It reads the samples that reach the tier, lets both models answer, and fits.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from halimede.api.base import SEDNA, Resource
from halimede.api.deferral import Costs
from halimede.api.processing import pixels_digest
from halimede.calibration.blocks import Indices
from halimede.calibration.calibrate import Calibrated, Goal, fit, part
from halimede.calibration.candidates import Candidate
from halimede.calibration.region_rule import FittedRegions, RegionFit
from halimede.calibration.thresholds import UploadPath, share_in_time
from halimede.errors import InvalidFieldError
from halimede.evaluation.costs import costs_text
from halimede.evaluation.data import LabelledPicture
from halimede.evaluation.quality import reads_text
from halimede.evaluation.region_uploads import (
    RegionUploads,
    answer_function,
    answer_uploads,
    check_boxes,
    format_of,
    has_regions,
)
from halimede.evaluation.rules import decide, parameters_of
from halimede.evaluation.service import Chain, EvaluatedTier, answered, answers
from halimede.messages import Prediction, ResourceBody
from halimede.mining.calibration_file import RegionRule

#: called with the name of the stage, the finished samples, and all samples
StageReport = Callable[[str, int, int], None]
#: displayed figures with their meanings
FIGURES = {
    "edge_only": "small model alone",
    "cloud_only": "big model alone",
    "joint": "joint",
    "chance": "as many uploads by chance",
    "over_chance": "joint above chance",
    "ratio": "joint / big model alone",
    "upload_ratio": "share that goes up",
    "risk": "stays, small wrong, big right",
    "agreement": "stays, both say the same",
    "cost_edge_only": "cost of the small model alone",
    "cost_cloud_only": "cost of the big model alone",
    "cost_single_threshold": "cost of the best single threshold",
    "cost": "cost of joint",
    "cost_below_chance": "saved against as many by chance",
    "cost_bound": "bound on the cost of joint",
    "region_objects": "objects of the big model, by regions",
    "region_bytes": "bytes of regions / frames",
    "scaled_bytes": "bytes of scaled frames / frames",
    "calibration_error.before": "calibration error before",
    "calibration_error": "calibration error after",
}


class Deadline(msgspec.Struct, kw_only=True):
    """A deadline in milliseconds, and the link to the next tier; the models' times are measured here."""

    ms: float
    way: UploadPath


def tier_index(chain: Chain, tier: str) -> int:
    """Return the index of a tier. Raises InvalidFieldError (``--tier``)."""
    names = [each.name for each in chain.tiers[:-1]]
    if tier not in names:
        raise InvalidFieldError("--tier", tier, f"use one of {', '.join(names)}")
    return names.index(tier)


def calibrated(
    chain: Chain, at: int, data: LabelledPicture, *, goal: Goal | Deadline, report: StageReport, rule: str = ""
) -> Calibrated:
    """Calibrate the tier at index ``at`` against the next one, on the samples that reach it.

    ``rule``: the algorithm; empty: the best of all that can judge the answers. Raises InvalidFieldError, ModelError.
    """
    low, high = chain.tiers[at : at + 2]
    data = _reaching(chain, at, data, report)
    answers_low, answers_high = (answered(tier, data, _part(report, tier)) for tier in (low, high))
    if isinstance(goal, Deadline):
        goal = _goal_of(goal, data, answers_low.ms, answers_high.ms)
    deferral = low.deferral
    assert deferral is not None  # noqa: S101  # every tier but the last has one
    mining = deferral.hard_example_mining
    audit_share = audit_share_of(deferral_of(chain.service.body, at), goal.target_upload, goal.costs)
    found = fit(
        answers_low.predictions,
        answers_high.predictions,
        data,
        goal=goal,
        service=chain.service.metadata.name,
        rule=rule,
        mode=mining.mode,
        parameters=parameters_of(deferral) if rule.lower() == mining.name.lower() else {},
        configured=Candidate(mining.name, parameters_of(deferral)),
        labels=low.spec.labels,
        cloud_labels=high.spec.labels,
        is_text=reads_text(high.spec, answers_high.predictions),
        audit_share=audit_share,
    )
    if goal.target_upload is not None and audit_share > goal.target_upload:
        found.notes.append(f"auditShare {audit_share:g} is more than the target: lower it before you apply")
    if has_regions(low):
        fitted = _fit_regions(low, high, data, (answers_low.predictions, answers_high.predictions), report=report)
        found.notes.extend(fitted.notes)
        figures = found.artefact.figures | fitted.measures
        found = replace(found, artefact=msgspec.structs.replace(found.artefact, regions=fitted.rule, figures=figures))
    artefact = msgspec.structs.replace(
        found.artefact,
        edge_digest=_digest(low.path),
        cloud_digest=_digest(high.path),
        edge_pixels=pixels_digest(low.spec.decode, low.spec.preprocess),
    )
    return replace(found, artefact=artefact)


def _fit_regions(
    low: EvaluatedTier,
    high: EvaluatedTier,
    data: LabelledPicture,
    answers: Sequence[Sequence[Prediction]],
    *,
    report: StageReport,
) -> FittedRegions:
    """Fit which regions of frames a tier uploads. Raises InvalidFieldError for models or samples without boxes."""
    edge, cloud = answers
    for tier, predictions in ((low, edge), (high, cloud)):
        check_boxes(tier, predictions)
    answer, upload_format = answer_function(high, partial(report, f"regions: {high.model}")), format_of(low)

    def upload(rule: RegionRule, indices: Indices) -> RegionUploads:
        pictures, low_part, high_part = part(data, indices), [edge[i] for i in indices], [cloud[i] for i in indices]
        return answer_uploads(pictures, low_part, high_part, rule=rule, upload_format=upload_format, answer=answer)

    return RegionFit(data.images, edge, cloud, upload).fit()


def _reaching(chain: Chain, at: int, data: LabelledPicture, report: StageReport) -> LabelledPicture:
    """Return the samples that reach a tier: those that all tiers before it escalate, as configured."""
    reached = np.ones(len(data), bool)
    for before in chain.tiers[:at]:
        reached &= decide(before, data, answers(before, data, _part(report, before)), reached)
    if not reached.any():
        raise InvalidFieldError("--tier", chain.tiers[at].name, "no sample comes there: calibrate the tier before it")
    return part(data, np.flatnonzero(reached)) if at else data


def _goal_of(wanted: Deadline, data: LabelledPicture, edge_ms: float, cloud_ms: float) -> Goal:
    """Convert a deadline to the share of samples that can be answered in time, from measured times."""
    way = msgspec.structs.replace(wanted.way, edge_ms=edge_ms, cloud_ms=cloud_ms)
    share = share_in_time(np.array(data.sizes, np.float64), way, wanted.ms)
    if not share:
        taken = edge_ms + way.link_ms + cloud_ms
        fix = f"nothing is back by then: models and link take {taken:.1f} ms without data; allow more, or use EdgeOnly"
        raise InvalidFieldError("--deadline-ms", wanted.ms, fix)
    return Goal(target_upload=round(share, 4))


def _part(report: StageReport, tier: EvaluatedTier) -> Callable[[int, int], None]:
    return partial(report, f"{tier.name}: {tier.model}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def about(found: Calibrated, low: str, high: str) -> list[str]:
    """Return lines about what was fitted; ``low`` and ``high`` are the models' names."""
    artefact, goal = found.artefact, found.goal
    truth = "labels" if found.labelled else f"answers of {high}"
    if goal.costs:
        wanted = f"the least cost ({costs_text(goal.costs)}), bounded with probability {goal.confidence:.4g}"
    elif goal.max_risk is not None:
        wanted = f"risk at most {goal.max_risk:.4g}, with probability {goal.confidence:.4g}"
    else:
        wanted = f"upload ratio {goal.target_upload or 0:.4g}"
    settings = ", ".join(f"{key} {value}" for key, value in artefact.parameters.items())
    if learned := artefact.learned or artefact.reward:
        settings = f"cut {learned.cut:.4g}"
    best = f", the best of {found.tried} rules and parameters" if found.tried > 1 else ""
    budget = ", with the uploads that a worker's budget makes" if goal.target_upload is not None else ""
    mixture = artefact.mixture
    fusion = f"mixture, weight of {low} {mixture.edge:.4g}" if mixture else "cloud (a mixture would not help)"
    return [
        f"{artefact.service}: {low} asks {high}, for {wanted}",
        f"fitted on {found.fitted} samples, measured on {found.held_out} others; truth: {truth}",
        f"metric: {found.metric}{budget}",
        f"95 % intervals: for the whole stream; {found.held_out} other samples of it may differ 1.4 times as much",
        f"rule: {artefact.rule} ({settings}){best}",
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
#: fields of a worker that a calibration sets, and why a user wants to know
CHANGED = ("hardExampleMining", "calibration", "targetUploadRatio", "costs", "auditShare", "fusion", "upload")
MEANINGS = {
    "auditShare": "this share of easy samples goes up as well, to measure the edge's accuracy; 0 turns it off",
    "fusion": "mixture combines both answers; cloud takes the big model's",
}
#: share of easy samples to audit if none is set
AUDIT_SHARE = 0.01


def name_of(chain: Chain, tier: int) -> str:
    """Return the name of a tier's calibration: of the file, and with ``-calibration`` of the Model."""
    service = chain.service.metadata.name
    return service if tier == 0 else f"{service}-{chain.tiers[tier].name}"


def manifests(chain: Chain, tier: int, found: Calibrated, url: str, sha256: str) -> list[ResourceBody]:
    """Return all Models of the service and of this calibration, and the service with its deferral filled in.

    All other fields stay as written. ``tier``: the calibrated one. A target share is kept at run time; a limit on the
    risk, and costs, need a fixed cut, so the target is removed.
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
    models = [_written(each) for each in chain.models if each.metadata.name != name]
    service = _written(chain.service)
    worker = deferral_of(service, tier)
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
    worker.pop("costs", None)
    if found.goal.costs:
        worker["costs"] = msgspec.to_builtins(found.goal.costs)
    worker["auditShare"] = audit_share_of(worker, target, found.goal.costs)
    worker["fusion"] = "mixture" if found.artefact.mixture else "cloud"
    if worker.get("upload") == "regions" and found.artefact.regions is None:
        worker["upload"] = "frame"
    return [*models, model, service]


def audit_share_of(worker: Mapping[str, Any], target: float | None, costs: Costs | None) -> float:
    """Return the share of easy samples to audit: the worker's own, else 0.01, and at most a tenth of the target.

    No sample is audited if one upload costs more than any error.
    """
    if "auditShare" in worker:
        return float(worker["auditShare"])
    if costs and costs.upload > costs.miss + costs.alarm:
        return 0.0
    return AUDIT_SHARE if target is None else min(AUDIT_SHARE, round(target / 10, 6))


def deferral_of(service: ResourceBody, tier: int) -> dict[str, Any]:
    """Return the part of a service's body that says which samples a tier sends on."""
    spec = service["spec"]
    worker: dict[str, Any] = spec["edgeWorker"] if tier == 0 else spec["tiers"][tier - 1]
    return worker


def changes(before: ResourceBody, after: ResourceBody, tier: int) -> list[str]:
    """Return what a calibration has changed in a service, one line a field, with what was there before."""
    old, new = deferral_of(before, tier), deferral_of(after, tier)
    found = []
    for field in CHANGED:
        was, becomes = (_shown(part.get(field)) for part in (old, new))
        if was != becomes:
            meaning = f": {MEANINGS[field]}" if field in MEANINGS and field in new else ""
            found.append(f"{field} {becomes} (was {was}){meaning}")
    return found


def _shown(value: Any) -> str:
    if isinstance(value, dict) and "upload" in value:
        return ", ".join(f"{key} {price}" for key, price in value.items())
    if isinstance(value, dict):
        settings = [f"{each['key']} {each['value']}" for each in value.get("parameters", ())]
        return f"{value['name']} ({', '.join(settings)})" if settings else str(value["name"])
    return "not set" if value is None else str(value)


def _written(resource: Resource[Any]) -> ResourceBody:
    """Return a resource as its manifest has it."""
    body = copy.deepcopy(resource.body)
    body.pop("status", None)
    return body
