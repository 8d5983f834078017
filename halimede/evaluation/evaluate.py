"""Evaluates a service on labelled data, offline: each tier alone, and all together at any upload ratio.

Every model answers every sample. From these answers ``evaluate`` computes the curve of each mining rule, its bounds,
and the point of the service as configured, with uploaded bytes and latency over a link. With ``upload: regions`` the
last tier's model answers the changed uploads as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct

from halimede.api.class_names import describe_difference
from halimede.errors import InvalidFieldError
from halimede.evaluation.box_convention import find_convention
from halimede.evaluation.costs import check_positive, error_costs
from halimede.evaluation.curves import Point, accuracy_at
from halimede.evaluation.data import LabelledSamples
from halimede.evaluation.disagreement import Disagreement, list_disagreements
from halimede.evaluation.quality import Quality, has_text_labels, quality, with_truth
from halimede.evaluation.region_uploads import (
    RegionUploads,
    answer_uploads,
    check_boxes,
    format_of,
    has_regions,
    objects_in,
)
from halimede.evaluation.rules import (
    calibration_of,
    decide_escalations,
    final_answers,
    hardness_by_rule,
    miner_of,
    needs_answers,
    parameters_of,
)
from halimede.evaluation.service import Chain, EvaluatedTier, TierAnswers, answer_all, answer_and_time
from halimede.frames.payloads import ID_BYTES, pack
from halimede.inference import Array
from halimede.messages import Frame, Prediction
from halimede.mining.calibration_file import RegionRule, read_artefact
from halimede.mining.mixture import mix

#: most characters of a label in a note
MAX_LABEL = 40
#: the rule that chooses by chance: half of its runs are below the mean of random uploads
RANDOM_RULE = "Random"
#: the field of the costs of a service's edge
COSTS_FIELD = "spec.edgeWorker.costs"
#: called with the name of the stage, the finished samples, and all samples
StageReport = Callable[[str, int, int], None]


class TierLink(Struct, kw_only=True):
    """The link between two tiers."""

    #: milliseconds of a round trip without data
    ms: float = 20.0
    #: kilobits per second
    kbps: float = 10_000.0
    #: the user gave neither
    assumed: bool = True


class TierReport(Struct, kw_only=True):
    """A tier alone, on all samples."""

    #: name of the tier, and of its model
    name: str
    model: str
    #: median milliseconds of the model for one sample, with decoding and pre-processing
    model_ms: float
    #: ``accuracy`` and further measures of the kind of data, 0 to 1; ``character_error_rate`` may be over 1
    measures: dict[str, float]
    #: in the configured service: the share of all samples that reach this tier
    reached: float = 0.0


class Operating(Struct, kw_only=True):
    """The service as configured. Ratios are shares of all samples, 0 to 1; bytes and latency are means per sample."""

    #: name, mode and parameters of the edge's mining
    rule: str
    mode: str
    parameters: dict[str, str]
    #: the upload budget; None: the rule alone decides
    target_upload_ratio: float | None
    #: share of easy samples that are audits: they are part of the target, and not of ``upload_ratio``
    audit_share: float
    #: samples that leave the edge, and that the last tier answers
    upload_ratio: float
    cloud_ratio: float
    #: of the joint answers; ``measures`` as in TierReport
    accuracy: float
    measures: dict[str, float]
    #: uploaded by the edge, and to the last tier
    bytes_up: float
    bytes_to_cloud: float
    latency_ms: float
    #: mean cost of a sample: as configured, with its upload or audit; by the edge alone, without an upload; and if each
    #: sample is uploaded; None: the service has no ``costs``
    cost: float | None = None
    cost_edge_only: float | None = None
    cost_cloud_only: float | None = None


class Cost(Struct, kw_only=True):
    """What a sample takes in the mean at an upload ratio: uploaded bytes, and milliseconds to its answer."""

    upload_ratio: float
    bytes_up: float
    latency_ms: float


class EvaluationReport(Struct, kw_only=True):
    """The content of the JSON report.

    ``accuracy`` is the share of right classes; of detections mAP@0.5, with ``map_50_95`` and ``recall``; of texts the
    share that is exactly right, with ``character_error_rate``.
    """

    #: accuracy of the first and of the last tier's model alone
    edge_only: float
    cloud_only: float
    #: of each mining rule at the edge, by name; further tiers answer uploads as they are configured
    curves: dict[str, Sequence[Point]]
    #: the curve of the samples by their rewards: the best possible one, except for detectors
    oracle: Sequence[Point]
    #: the mean curve of random uploads
    random: Sequence[Point]
    #: the service's name
    service: str
    #: ``classification``, ``detection`` or ``text``
    task: str
    #: what ``accuracy`` is
    metric: str
    #: number of samples
    samples: int
    #: what counts as true: ``labels``, or ``cloud`` (the last tier's answers) for data without labels
    reference: str
    #: ``cloud``, or ``mixture`` if both models' answers are combined
    fusion: str
    #: the edge first
    tiers: list[TierReport]
    operating_point: Operating
    #: at the points of each curve
    costs: dict[str, list[Cost]]
    #: why a rule has no curve, by its name
    left_out: dict[str, str]
    #: what a reader of the metrics should know, such as boxes that differ by convention
    notes: list[str]
    #: the samples on which the first and the last tier's model differ most
    disagreements: list[Disagreement]
    link: TierLink
    #: means of a sample if all are uploaded to the last tier
    bytes_cloud_only: float
    latency_cloud_only_ms: float


@dataclass(frozen=True, slots=True)
class _Onward:
    """The outcome of each sample if it reaches a tier. Arrays have one entry for each sample."""

    answers: list[Prediction]
    #: milliseconds from the arrival at the tier to the answer
    ms: Array
    #: whether the cloud gives the answer
    cloud: Array
    #: bytes that are uploaded to the cloud
    bytes_to_cloud: Array


def evaluate(
    chain: Chain,
    data: LabelledSamples,
    *,
    rules: Sequence[str] = (),
    link: TierLink | None = None,
    report: StageReport | None = None,
) -> EvaluationReport:
    """Answer all samples with all tiers, and return the report.

    ``rules``: names of the mining rules to compare; empty: all. ``link`` None: the defaults. ``report`` is called with
    the progress; None: it is not reported. Raises InvalidFieldError for data or rules that do not fit the service, and
    ModelError for a model that cannot be opened.
    """
    link = link or TierLink()
    _check_calibrations(chain)
    # every tier's answers, what counts as true, and which samples each tier escalates
    outputs = [answer_and_time(tier, data, _progress_of(report, tier)) for tier in chain.tiers]
    cloud_answers = outputs[-1].predictions
    labelled = with_truth(data, cloud_answers, is_text=has_text_labels(chain.cloud.spec, cloud_answers))
    hard, reached = _decisions(chain, data, outputs)
    # what an upload takes and brings: the whole frame, or regions of it with answers of their own
    sizes = [_sizes(chain, tier, data, output.predictions) for tier, output in zip(chain.tiers, outputs, strict=True)]
    upload_outputs, notes = outputs, list[str]()
    bytes_cloud_only, ms_cloud_only = float(sizes[0].mean()), link.ms + sizes[0] * 8 / link.kbps
    if has_regions(chain.edge):
        regions = _regions(chain, data, outputs, report)
        sizes[0] = sizes[0] - np.array(data.sizes) + regions.sizes
        upload_outputs = [*outputs[:-1], replace(outputs[-1], predictions=regions.joint)]
        notes.append(_describe_regions(data, cloud_answers, regions))
    # the service's answers to each sample: ``alone`` if it is kept, ``up`` if it is uploaded
    onward = _onward(chain, upload_outputs, hard, sizes, link)
    low, edge_ms = outputs[0].predictions, outputs[0].ms
    up = _fuse(chain.edge, low, onward.answers)
    alone = final_answers(miner_of(chain.edge), low)
    measure = quality(labelled, alone, up)
    # the curve of each rule, and the mean one of random uploads, which a rule without an order has as well
    rule_hardness, left_out = hardness_by_rule(chain.edge, data, low, rules)
    chance = measure.chance()
    curves = {name: measure.curve(hardness) if hardness.any() else chance for name, hardness in rule_hardness.items()}
    # time of each uploaded sample until its answer
    up_ms = link.ms + sizes[0] * 8 / link.kbps + onward.ms
    tiers = [
        TierReport(
            name=tier.name,
            model=tier.model,
            model_ms=round(output.ms, 4),
            measures=_measures(quality(labelled, output.predictions, output.predictions), np.zeros(len(data), bool)),
            reached=round(float(is_reached.mean()), 6),
        )
        for tier, output, is_reached in zip(chain.tiers, outputs, reached, strict=True)
    ]
    point = _operating_point(chain.edge, measure, hard[0], onward, sizes[0], edge_ms=edge_ms, up_ms=up_ms)
    _add_costs(point, chain.edge, labelled, hard[0], low=low, alone=alone, up=up)
    return EvaluationReport(
        edge_only=tiers[0].measures["accuracy"],
        cloud_only=tiers[-1].measures["accuracy"],
        curves=curves,
        oracle=measure.curve(measure.rewards()),
        random=chance,
        service=chain.service.metadata.name,
        task="detection" if labelled.boxes is not None else "text" if labelled.is_text else "classification",
        metric=measure.metric,
        samples=len(data),
        reference="labels" if labelled is data else "cloud",
        fusion="mixture" if calibration_of(chain.edge) else "cloud",
        tiers=tiers,
        operating_point=point,
        costs={
            name: _costs(curves[name], hardness, sizes[0], edge_ms, up_ms) for name, hardness in rule_hardness.items()
        },
        left_out=left_out,
        notes=[*_notes(chain, outputs), *notes, *filter(None, [_below_chance(point, chance)])],
        disagreements=list_disagreements(data.names, low, outputs[-1].predictions),
        link=link,
        bytes_cloud_only=round(bytes_cloud_only, 1),
        latency_cloud_only_ms=round(float(ms_cloud_only.mean() + outputs[-1].ms), 3),
    )


def _regions(
    chain: Chain, data: LabelledSamples, outputs: Sequence[TierAnswers], report: StageReport | None
) -> RegionUploads:
    """Return the uploads of regions of all samples, by the calibration or the defaults, with the joint answers."""
    edge, cloud = chain.tiers
    low, high = (output.predictions for output in outputs)
    check_boxes(edge, low)
    check_boxes(cloud, high)
    rule = (read_artefact(edge.calibration).regions if edge.calibration else None) or RegionRule()
    answer = partial(answer_all, cloud, progress=_progress_of(report, cloud))
    return answer_uploads(data, low, high, rule=rule, upload_format=format_of(edge), answer=answer)


def _describe_regions(data: LabelledSamples, cloud: Sequence[Prediction], regions: RegionUploads) -> str:
    """Return the note about regions: their bytes, and the objects in the joint answers, if each frame is uploaded.

    ``cloud``: the big model's answers to whole frames.
    """
    objects, matched = objects_in(cloud, regions.joint)
    size, recall = regions.sizes.sum() / max(1, sum(data.sizes)), matched.sum() / max(1, objects.sum())
    return f"upload regions: {size:.1%} of the bytes of frames, {recall:.1%} of the big model's objects in them"


def _notes(chain: Chain, outputs: Sequence[TierAnswers]) -> list[str]:
    """Return notes why metrics may be low although both models are right: other boxes, or other names of classes."""
    edge, cloud = outputs[0].predictions, outputs[-1].predictions
    convention = find_convention(edge, cloud)
    notes = [convention.describe(chain.edge.model, chain.cloud.model)] if convention else []
    own, reference = _labels(edge), _labels(cloud)
    if own and reference and not own & reference:
        notes.append(describe_difference(chain.edge.model, own, chain.cloud.model, reference))
    return notes


def _below_chance(point: Operating, chance: Sequence[Point]) -> str:
    """Return the note that the configured rule is worse than as many random uploads, to two digits; else empty."""
    expected = accuracy_at(chance, point.upload_ratio)
    if point.rule == RANDOM_RULE or round(point.accuracy, 2) >= round(expected, 2):
        return ""
    accuracies = f"{point.accuracy:.2f}, {expected:.2f}"
    return f"at {point.upload_ratio:.0%} {point.rule} is below random ({accuracies}): halimede calibrate chooses a rule"


def _labels(answers: Sequence[Prediction]) -> set[str]:
    """Return the labels of all boxes, shortened."""
    return {str(box.label)[:MAX_LABEL] for answer in answers for box in answer.boxes or ()}


def _check_calibrations(chain: Chain) -> None:
    """Raise InvalidFieldError for a missing calibration: the metrics would differ from those of the service."""
    for tier in chain.tiers:
        if tier.deferral and (reference := tier.deferral.calibration) and tier.calibration is None:
            fix = "there is no such Model in the manifests given, or not its file: give what `halimede calibrate` wrote"
            raise InvalidFieldError("--service", f"calibration {reference.name} of {tier.name}", fix)


def _progress_of(report: StageReport | None, tier: EvaluatedTier) -> Callable[[int, int], None] | None:
    """Return a function that reports the progress of a tier; None without a report."""
    return (lambda done, total: report(f"{tier.name}: {tier.model}", done, total)) if report else None


def _decisions(chain: Chain, data: LabelledSamples, outputs: Sequence[TierAnswers]) -> tuple[list[Array], list[Array]]:
    """Return which samples each tier but the last would escalate, as configured, and which samples reach each tier."""
    hard: list[Array] = []
    reached = [np.ones(len(data), bool)]
    for tier, output in zip(chain.tiers[:-1], outputs, strict=False):
        hard.append(decide_escalations(tier, data, output.predictions, reached[-1]))
        reached.append(reached[-1] & hard[-1])
    return hard, reached


def _sizes(chain: Chain, tier: EvaluatedTier, data: LabelledSamples, predictions: Sequence[Prediction]) -> Array:
    """Return the bytes of each sample if this tier escalates it: its data as received, and its model's answer."""
    with_answers = needs_answers(tier)
    worker = f"{chain.service.metadata.name}-{tier.name}"
    return np.array(
        [
            size + _envelope_size(chain.service.metadata.name, worker, prediction if with_answers else None)
            for size, prediction in zip(data.sizes, predictions, strict=True)
        ]
    )


def _envelope_size(service: str, worker: str, edge: Prediction | None) -> int:
    """Return the bytes of a request without the sample's data."""
    empty = memoryview(b"")
    frame = Frame(id=bytes(ID_BYTES), service=service, worker=worker, encoding="png", edge=edge, data=empty)
    return len(pack(frame))


def _onward(
    chain: Chain, outputs: Sequence[TierAnswers], hard: Sequence[Array], sizes: Sequence[Array], link: TierLink
) -> _Onward:
    """Return the outcome of each sample if it is uploaded to the second tier; computed from the last tier back.

    ``outputs``, ``hard``, ``sizes``: by tier, the edge first: its answers, the samples that it escalates, and the bytes
    of each sample that it uploads.
    """
    number = len(outputs[0].predictions)
    state = _Onward(outputs[-1].predictions, np.full(number, outputs[-1].ms), np.ones(number, bool), np.zeros(number))
    for i in reversed(range(1, len(chain.tiers) - 1)):
        tier, output, escalated = chain.tiers[i], outputs[i], hard[i]
        is_last = i == len(chain.tiers) - 2
        joint = _fuse(tier, output.predictions, state.answers)
        state = _Onward(
            [up if is_up else low for low, up, is_up in zip(output.predictions, joint, escalated, strict=True)],
            output.ms + escalated * (link.ms + sizes[i] * 8 / link.kbps + state.ms),
            escalated & state.cloud,
            escalated * (sizes[i] if is_last else state.bytes_to_cloud),
        )
    if len(chain.tiers) == 2:  # the edge uploads directly to the cloud
        state = _Onward(state.answers, state.ms, state.cloud, sizes[0].astype(float))
    return state


def _fuse(tier: EvaluatedTier, low: Sequence[Prediction], up: list[Prediction]) -> list[Prediction]:
    """Return the joint answers to samples that both models answered: ``up``, or a mixture if the tier has one.

    ``low`` are the tier's own answers, ``up`` those of the next tier.
    """
    path = calibration_of(tier)
    if path is None:
        return up
    artefact = read_artefact(path)
    return [mix(artefact, edge, cloud) for edge, cloud in zip(low, up, strict=True)]


def _operating_point(
    edge: EvaluatedTier, measure: Quality, hard: Array, onward: _Onward, sizes: Array, *, edge_ms: float, up_ms: Array
) -> Operating:
    """Return the service as configured, without costs; ``hard``: the samples that the edge uploads.

    ``sizes``: bytes of each sample's upload by the edge. ``edge_ms``: of the edge's model for one sample; ``up_ms``: of
    each sample from its upload to the answer.
    """
    deferral = edge.deferral
    assert deferral is not None  # noqa: S101  # the edge's worker has one
    mining = deferral.hard_example_mining
    # a rule that needs no answers decides before the edge's model: it does not run for an uploaded sample
    spared = 0.0 if needs_answers(edge) else edge_ms
    return Operating(
        rule=mining.name,
        mode=mining.mode,
        parameters=dict(parameters_of(deferral)),
        target_upload_ratio=deferral.target_upload_ratio,
        audit_share=deferral.audit_share,
        upload_ratio=round(float(hard.mean()), 6),
        cloud_ratio=round(float((hard & onward.cloud).mean()), 6),
        accuracy=measure.point(hard)["accuracy"],
        measures=_measures(measure, hard),
        bytes_up=round(float((hard * sizes).mean()), 1),
        bytes_to_cloud=round(float((hard * onward.bytes_to_cloud).mean()), 1),
        latency_ms=round(edge_ms + float((hard * (up_ms - spared)).mean()), 3),
    )


def _add_costs(
    point: Operating,
    edge: EvaluatedTier,
    data: LabelledSamples,
    hard: Array,
    *,
    low: Sequence[Prediction],
    alone: Sequence[Prediction],
    up: Sequence[Prediction],
) -> None:
    """Add the mean costs to ``point`` if the service has ``costs``.

    ``hard``: the samples that the edge uploads. ``low`` are the small model's answers, ``alone`` the edge's final
    answers to kept samples, ``up`` those to uploaded ones. Raises InvalidFieldError for costs that do not fit the data.
    """
    deferral = edge.deferral
    if deferral is None or deferral.costs is None:
        return
    costs = deferral.costs
    check_positive(COSTS_FIELD, costs, data, edge.spec.labels)
    uploaded = error_costs(data, up, costs) + costs.upload
    alone_costs = error_costs(data, alone, costs) + deferral.audit_share * costs.upload
    point.cost = round(float(np.where(hard, uploaded, alone_costs).mean()), 6)
    point.cost_edge_only = round(float(error_costs(data, low, costs).mean()), 6)
    point.cost_cloud_only = round(float(uploaded.mean()), 6)


def _costs(points: Sequence[Point], hardness: Array, sizes: Array, edge_ms: float, up_ms: Array) -> list[Cost]:
    """Return what a sample takes in the mean at each point of a rule's curve.

    ``hardness``: of each sample by the rule; the other parameters as of ``_operating_point``.
    """
    order = np.argsort(-hardness, kind="stable")
    size, time = (np.concatenate([[0.0], np.cumsum(values[order])]) / len(order) for values in (sizes, up_ms))
    counts = [round(point["upload_ratio"] * len(order)) for point in points]
    return [
        Cost(
            upload_ratio=point["upload_ratio"],
            bytes_up=round(float(size[count]), 1),
            latency_ms=round(edge_ms + float(time[count]), 3),
        )
        for point, count in zip(points, counts, strict=True)
    ]


def _measures(measure: Quality, uploaded: Array) -> dict[str, float]:
    """Return all measures, by name, if these samples are uploaded."""
    point: Any = measure.point(uploaded)
    return {name: value for name, value in point.items() if name != "upload_ratio"}
