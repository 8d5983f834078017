"""Calibrates one tier of a service, offline, and makes manifests from the result: for ``halimede calibrate``.

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
from halimede.calibration.calibrate import CalibrationResult, Goal, fit, subset
from halimede.calibration.candidates import Candidate
from halimede.calibration.region_rule import FittedRegions, RegionFit
from halimede.calibration.thresholds import UploadPath, share_in_time
from halimede.errors import InvalidFieldError
from halimede.evaluation.costs import costs_text
from halimede.evaluation.data import LabelledSamples
from halimede.evaluation.quality import has_text_labels
from halimede.evaluation.region_uploads import RegionUploads, answer_uploads, check_boxes, format_of, has_regions
from halimede.evaluation.rules import decide_escalations, parameters_of
from halimede.evaluation.service import Chain, EvaluatedTier, answer_all, answer_and_time
from halimede.messages import Prediction, ResourceBody
from halimede.mining.calibration_file import RegionRule

#: called with the name of the stage, the finished samples, and all samples
StageReport = Callable[[str, int, int], None]
#: displayed metrics in their order, with their meanings
METRIC_MEANINGS = {
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
    """A goal: answers of the next tier within ``ms`` milliseconds over the link in ``path``.

    The models' times in ``path`` are ignored: they are measured here.
    """

    ms: float
    path: UploadPath


def tier_index(chain: Chain, name: str) -> int:
    """Return the index of the tier with this name, from 0 for the edge on. Raises InvalidFieldError (``--tier``)."""
    names = [tier.name for tier in chain.tiers[:-1]]
    if name not in names:
        raise InvalidFieldError("--tier", name, f"use one of {', '.join(names)}")
    return names.index(name)


def calibrate_tier(
    chain: Chain, index: int, data: LabelledSamples, *, goal: Goal | Deadline, report: StageReport, rule: str = ""
) -> CalibrationResult:
    """Calibrate the tier at ``index`` against the next one, on the samples that reach it.

    ``rule``: the algorithm; empty: the best of all that can judge the answers. ``report``: is told the progress. Raises
    InvalidFieldError, and ModelError for a model that fails.
    """
    low, high = chain.tiers[index : index + 2]
    data = _samples_reaching(chain, index, data, report)
    answers_low, answers_high = (answer_and_time(tier, data, _progress_of(report, tier)) for tier in (low, high))
    if isinstance(goal, Deadline):
        goal = _goal_of(goal, data, answers_low.ms, answers_high.ms)
    deferral = low.deferral
    assert deferral is not None  # noqa: S101  # every tier but the last has one
    mining = deferral.hard_example_mining
    audit_share = audit_share_of(deferral_of(chain.service.body, index), goal.target_upload, goal.costs)
    result = fit(
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
        is_text=has_text_labels(high.spec, answers_high.predictions),
        audit_share=audit_share,
    )
    if goal.target_upload is not None and audit_share > goal.target_upload:
        result.notes.append(f"auditShare {audit_share:g} is more than the target: lower it before you apply")
    artefact = result.artefact
    if has_regions(low):
        fitted = _fit_regions(low, high, data, (answers_low.predictions, answers_high.predictions), report=report)
        result.notes.extend(fitted.notes)
        artefact = msgspec.structs.replace(artefact, regions=fitted.rule, metrics=artefact.metrics | fitted.measures)
    artefact = msgspec.structs.replace(
        artefact,
        edge_digest=model_digest(low.path),
        cloud_digest=model_digest(high.path),
        edge_pixels=pixels_digest(low.spec.decode, low.spec.preprocess),
    )
    return replace(result, artefact=artefact)


def _fit_regions(
    low: EvaluatedTier,
    high: EvaluatedTier,
    data: LabelledSamples,
    model_answers: Sequence[Sequence[Prediction]],
    *,
    report: StageReport,
) -> FittedRegions:
    """Fit which regions of frames a tier uploads. Raises InvalidFieldError for models or samples without boxes."""
    edge, cloud = model_answers
    for tier, predictions in ((low, edge), (high, cloud)):
        check_boxes(tier, predictions)
    answer = partial(answer_all, high, progress=partial(report, f"regions: {high.model}"))
    upload_format = format_of(low)

    def upload(rule: RegionRule, indices: Indices) -> RegionUploads:
        pictures, small, big = subset(data, indices), [edge[i] for i in indices], [cloud[i] for i in indices]
        return answer_uploads(pictures, small, big, rule=rule, upload_format=upload_format, answer=answer)

    return RegionFit(data.images, edge, cloud, upload).fit()


def _samples_reaching(chain: Chain, index: int, data: LabelledSamples, report: StageReport) -> LabelledSamples:
    """Return the samples that reach a tier: those that all tiers before it escalate, as configured.

    Raises InvalidFieldError (``--tier``) if there are none.
    """
    reached = np.ones(len(data), bool)
    for tier in chain.tiers[:index]:
        reached &= decide_escalations(tier, data, answer_all(tier, data, _progress_of(report, tier)), reached)
    if not reached.any():
        name = chain.tiers[index].name
        raise InvalidFieldError("--tier", name, "no sample comes there: calibrate the tier before it")
    return subset(data, np.flatnonzero(reached)) if index else data


def _goal_of(deadline: Deadline, data: LabelledSamples, edge_ms: float, cloud_ms: float) -> Goal:
    """Return the share of samples that can be answered within a deadline, from measured times.

    Raises InvalidFieldError.
    """
    path = msgspec.structs.replace(deadline.path, edge_ms=edge_ms, cloud_ms=cloud_ms)
    share = share_in_time(np.array(data.sizes, np.float64), path, deadline.ms)
    if not share:
        sum_ms = edge_ms + path.link_ms + cloud_ms
        fix = f"nothing is back by then: models and link take {sum_ms:.1f} ms without data; allow more, or use EdgeOnly"
        raise InvalidFieldError("--deadline-ms", deadline.ms, fix)
    return Goal(target_upload=round(share, 4))


def _progress_of(report: StageReport, tier: EvaluatedTier) -> Callable[[int, int], None]:
    """Return the function that reports how many samples a tier has answered."""
    return partial(report, f"{tier.name}: {tier.model}")


def model_digest(path: Path) -> str:
    """Return the SHA-256 of a model in hexadecimal: of a file, or of the names and digests of a folder's files."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        names = (f"{file.relative_to(path)} {model_digest(file)}\n" for file in files)
        return hashlib.sha256("".join(names).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_calibration(result: CalibrationResult, low: str, high: str) -> list[str]:
    """Return lines of text about what was fitted; ``low`` and ``high`` are the models' names."""
    artefact, goal = result.artefact, result.goal
    truth = "labels" if result.labelled else f"answers of {high}"
    if goal.costs:
        aim = f"the least cost ({costs_text(goal.costs)}), bounded with probability {goal.confidence:.4g}"
    elif goal.max_risk is not None:
        aim = f"risk at most {goal.max_risk:.4g}, with probability {goal.confidence:.4g}"
    else:
        aim = f"upload ratio {goal.target_upload or 0:.4g}"
    settings = ", ".join(f"{key} {value}" for key, value in artefact.parameters.items())
    if learned := artefact.learned or artefact.reward:
        settings = f"cut {learned.cut:.4g}"
    best = f", the best of {result.tried} rules and parameters" if result.tried > 1 else ""
    budget = ", with the uploads that a worker's budget makes" if goal.target_upload is not None else ""
    mixture = artefact.mixture
    fusion = f"mixture, weight of {low} {mixture.edge:.4g}" if mixture else "cloud (a mixture would not help)"
    return [
        f"{artefact.service}: {low} asks {high}, for {aim}",
        f"fitted on {result.fitted} samples, measured on {result.held_out} others; truth: {truth}",
        f"metric: {result.metric}{budget}",
        f"95 % intervals: for the whole stream; {result.held_out} other samples of it may differ 1.4 times as much",
        f"rule: {artefact.rule} ({settings}){best}",
        f"temperatures: {artefact.temperature_edge:.3g} and {artefact.temperature_cloud:.3g}; fusion: {fusion}",
    ]


def metric_rows(result: CalibrationResult) -> list[list[str]]:
    """Return the metrics of the held-out samples, a row each: meaning, value, interval (empty: it has none)."""
    metrics = result.artefact.metrics
    return [
        [
            meaning,
            f"{metrics[name]:.4f}",
            f"{metrics[f'{name}.low']:.4f} to {metrics[f'{name}.high']:.4f}" if f"{name}.low" in metrics else "",
        ]
        for name, meaning in METRIC_MEANINGS.items()
        if name in metrics
    ]


#: the format of a Model whose file is a calibration
FORMAT = "calibration"
#: fields of a worker that a calibration sets
CHANGED_FIELDS = ("hardExampleMining", "calibration", "targetUploadRatio", "costs", "auditShare", "fusion", "upload")
#: what the values of some of these fields mean to a user
FIELD_MEANINGS = {
    "auditShare": "this share of easy samples goes up as well, to measure the edge's accuracy; 0 turns it off",
    "fusion": "mixture combines both answers; cloud takes the big model's",
}
#: share of easy samples to audit if none is set
AUDIT_SHARE = 0.01


def name_of(chain: Chain, tier: int) -> str:
    """Return the name of a tier's calibration: that of the file, and with ``-calibration`` that of the Model."""
    service = chain.service.metadata.name
    return service if tier == 0 else f"{service}-{chain.tiers[tier].name}"


def manifests(chain: Chain, tier: int, result: CalibrationResult, url: str, sha256: str) -> list[ResourceBody]:
    """Return all Models of the service and of this calibration, and the service with its deferral filled in.

    All other fields stay as written. ``tier``: the calibrated one; ``url``, ``sha256``: of the file. A target share is
    kept at run time; a limit on the risk, and costs, need a fixed cut, so the target is removed. ``upload: regions``
    becomes ``frame`` if the calibration has no rule for regions.
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
    models = [_manifest_of(resource) for resource in chain.models if resource.metadata.name != name]
    service = _manifest_of(chain.service)
    worker = deferral_of(service, tier)
    mining: dict[str, Any] = {"name": result.artefact.rule}
    if result.artefact.parameters:
        mining["parameters"] = [{"key": key, "value": value} for key, value in result.artefact.parameters.items()]
    if mode := worker["hardExampleMining"].get("mode"):
        mining["mode"] = mode
    worker["hardExampleMining"] = mining
    worker["calibration"] = {"name": name}
    worker.pop("targetUploadRatio", None)
    target = result.goal.target_upload
    if target is not None:
        worker["targetUploadRatio"] = target
    worker.pop("costs", None)
    if result.goal.costs:
        worker["costs"] = msgspec.to_builtins(result.goal.costs)
    worker["auditShare"] = audit_share_of(worker, target, result.goal.costs)
    worker["fusion"] = "mixture" if result.artefact.mixture else "cloud"
    if worker.get("upload") == "regions" and result.artefact.regions is None:
        worker["upload"] = "frame"
    return [*models, model, service]


def audit_share_of(worker: Mapping[str, Any], target: float | None, costs: Costs | None) -> float:
    """Return the share of easy samples to audit: the worker's own, else 0.01, or a tenth of the target if that is less.

    ``worker``: the worker's part of the body; ``target``: None without one. Without a share of the worker's own, no
    sample is audited if one upload costs more than any error.
    """
    if "auditShare" in worker:
        return float(worker["auditShare"])
    if costs and costs.upload > costs.miss + costs.alarm:
        return 0.0
    return AUDIT_SHARE if target is None else min(AUDIT_SHARE, round(target / 10, 6))


def deferral_of(service: ResourceBody, tier: int) -> dict[str, Any]:
    """Return the part of a service's body that says which samples a tier (0: the edge) sends on."""
    spec = service["spec"]
    worker: dict[str, Any] = spec["edgeWorker"] if tier == 0 else spec["tiers"][tier - 1]
    return worker


def changes(before: ResourceBody, after: ResourceBody, tier: int) -> list[str]:
    """Return what a calibration has changed in a service, one line a field, with what was there before.

    ``before``, ``after``: the service's bodies; ``tier``: the calibrated one.
    """
    old, new = deferral_of(before, tier), deferral_of(after, tier)
    lines = []
    for field in CHANGED_FIELDS:
        was, becomes = (_text_of(worker.get(field)) for worker in (old, new))
        if was != becomes:
            meaning = f": {FIELD_MEANINGS[field]}" if field in FIELD_MEANINGS and field in new else ""
            lines.append(f"{field} {becomes} (was {was}){meaning}")
    return lines


def _text_of(value: Any) -> str:
    """Return the value of a worker's field in words."""
    if isinstance(value, dict) and "upload" in value:
        return ", ".join(f"{key} {price}" for key, price in value.items())
    if isinstance(value, dict):
        settings = [f"{parameter['key']} {parameter['value']}" for parameter in value.get("parameters", ())]
        return f"{value['name']} ({', '.join(settings)})" if settings else str(value["name"])
    return "not set" if value is None else str(value)


def _manifest_of(resource: Resource[Any]) -> ResourceBody:
    """Return a resource as its manifest has it, without a status."""
    body = copy.deepcopy(resource.body)
    body.pop("status", None)
    return body
