"""Evaluates a service on labelled data, offline: each tier alone, and all together at any upload ratio.

Every model answers every sample once. The rest is computed from these answers: a rule's curve, its bounds, and the
service's configured point, with uploaded bytes and latency over a link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from msgspec import Struct

from halimede.api.class_names import describe_difference
from halimede.errors import InvalidFieldError
from halimede.evaluation.box_convention import find_convention
from halimede.evaluation.costs import check_positive, error_costs
from halimede.evaluation.curves import Point, at
from halimede.evaluation.data import LabelledPicture
from halimede.evaluation.disagreement import Disagreement, most_different
from halimede.evaluation.quality import Quality, quality, reads_text, referenced
from halimede.evaluation.region_uploads import (
    RegionUploads,
    answer_function,
    answer_uploads,
    check_boxes,
    format_of,
    has_regions,
    objects_in,
)
from halimede.evaluation.rules import (
    calibration_of,
    decide,
    final_answers,
    miner_of,
    needs_answers,
    orders,
    parameters_of,
)
from halimede.evaluation.service import Answered, Chain, EvaluatedTier, answered
from halimede.frames.payloads import ID_BYTES, pack
from halimede.inference import Array
from halimede.messages import Frame, Prediction
from halimede.mining.calibration_file import RegionRule, read_artefact
from halimede.mining.mixture import mix

#: most characters of a label in a note
MAX_LABEL = 40
#: the rule that chooses by chance: its samples are below the mean of random uploads as often as above
RANDOM = "Random"
#: the field of the costs of a service's edge
COSTS = "spec.edgeWorker.costs"
#: called with the name of the stage, the finished samples, and all samples
StageReport = Callable[[str, int, int], None]


class TierLink(Struct, kw_only=True):
    """The link between two tiers: its round trip without data, and its speed. ``assumed``: not configured."""

    ms: float = 20.0
    kbps: float = 10_000.0
    assumed: bool = True


class TierReport(Struct, kw_only=True):
    """A tier alone: the accuracy of its model on all samples, and the model's time for one (milliseconds)."""

    name: str
    model: str
    model_ms: float
    measures: dict[str, float]
    #: in the configured service: the share of all samples that reach this tier
    reached: float = 0.0


class Operating(Struct, kw_only=True):
    """The service as configured. Ratios are shares of all samples; bytes are the mean per sample."""

    rule: str
    mode: str
    parameters: dict[str, str]
    target_upload_ratio: float | None
    #: share of easy samples that are audits: they are part of the target, and not of ``upload_ratio``
    audit_share: float
    upload_ratio: float
    cloud_ratio: float
    accuracy: float
    measures: dict[str, float]
    bytes_up: float
    bytes_to_cloud: float
    latency_ms: float
    #: mean cost of a sample, with its upload or audit, if the service has ``costs``
    cost: float | None = None
    cost_edge_only: float | None = None
    cost_cloud_only: float | None = None


class Cost(Struct, kw_only=True):
    """Mean cost of a sample at an upload ratio: uploaded bytes, and milliseconds to its answer."""

    upload_ratio: float
    bytes_up: float
    latency_ms: float


class EvaluationReport(Struct, kw_only=True):
    """The content of the JSON report. ``accuracy`` of detections is mAP@0.5, with ``map_50_95`` and ``recall``.

    Of texts it is the share that is exactly right, with ``character_error_rate``.

    ``oracle``: the curve of the samples by their rewards, the best possible one except for detectors.
    ``reference``: the truth, ``labels``, or ``cloud`` for data without labels. ``curves`` are those of the edge's rule;
    the further tiers answer uploads as they are configured.
    """

    edge_only: float
    cloud_only: float
    curves: dict[str, Sequence[Point]]
    oracle: Sequence[Point]
    random: Sequence[Point]
    service: str
    task: str
    metric: str
    samples: int
    reference: str
    fusion: str
    tiers: list[TierReport]
    operating_point: Operating
    costs: dict[str, list[Cost]]
    left_out: dict[str, str]
    #: what a reader of the figures should know, such as boxes that differ by convention
    notes: list[str]
    #: the samples on which the first and the last tier's model differ most
    disagreements: list[Disagreement]
    link: TierLink
    bytes_cloud_only: float
    latency_cloud_only_ms: float


@dataclass(frozen=True, slots=True)
class _Onward:
    """The outcome of each sample from a tier on: the answer, the time to it, the bytes that reach the cloud."""

    answers: list[Prediction]
    ms: Array
    cloud: Array
    bytes_to_cloud: Array


def evaluate(
    chain: Chain,
    data: LabelledPicture,
    *,
    rules: Sequence[str] = (),
    link: TierLink | None = None,
    report: StageReport | None = None,
) -> EvaluationReport:
    """Answer all samples with all tiers and compute the report. Raises InvalidFieldError, ModelError."""
    link = link or TierLink()
    _check_calibrations(chain)
    said = [answered(tier, data, _part(report, tier)) for tier in chain.tiers]
    answers = said[-1].predictions
    known = referenced(data, answers, is_text=reads_text(chain.cloud.spec, answers))
    hard, reached = _decisions(chain, data, said)
    sent = [_sent(chain, tier, data, each.predictions) for tier, each in zip(chain.tiers, said, strict=True)]
    uploaded, notes = said, list[str]()
    bytes_cloud_only, ms_cloud_only = float(sent[0].mean()), link.ms + sent[0] * 8 / link.kbps
    if has_regions(chain.edge):
        regions = _regions(chain, data, said, report)
        sent[0] = sent[0] - np.array(data.sizes) + regions.sizes
        uploaded = [*said[:-1], replace(said[-1], predictions=regions.joint)]
        notes.append(_describe_regions(data, answers, regions))
    onward = _onward(chain, uploaded, hard, sent, link)
    low, up = said[0].predictions, _fused(chain.edge, said[0].predictions, onward.answers)
    stays = final_answers(miner_of(chain.edge), low)
    measure = quality(known, stays, up)
    found, left_out = orders(chain.edge, data, low, rules)
    chance = measure.chance()
    curves = {name: measure.curve(order) if order.any() else chance for name, order in found.items()}
    # time of each uploaded sample until its answer
    asked = link.ms + sent[0] * 8 / link.kbps + onward.ms
    tiers = [
        TierReport(
            name=tier.name,
            model=tier.model,
            model_ms=round(each.ms, 4),
            measures=_measures(quality(known, each.predictions, each.predictions), np.zeros(len(data), bool)),
            reached=round(float(came.mean()), 6),
        )
        for tier, each, came in zip(chain.tiers, said, reached, strict=True)
    ]
    operating = _operating(chain.edge, measure, hard[0], onward, sent[0], edge_ms=said[0].ms, asked=asked)
    _add_costs(operating, chain.edge, known, hard[0], low=low, stays=stays, up=up)
    return EvaluationReport(
        edge_only=tiers[0].measures["accuracy"],
        cloud_only=tiers[-1].measures["accuracy"],
        curves=curves,
        oracle=measure.curve(measure.rewards()),
        random=chance,
        service=chain.service.metadata.name,
        task="detection" if known.boxes is not None else "text" if known.is_text else "classification",
        metric=measure.metric,
        samples=len(data),
        reference="labels" if known is data else "cloud",
        fusion="mixture" if calibration_of(chain.edge) else "cloud",
        tiers=tiers,
        operating_point=operating,
        costs={name: _costs(curves[name], order, sent[0], said[0].ms, asked) for name, order in found.items()},
        left_out=left_out,
        notes=[*_notes(chain, said), *notes, *filter(None, [_below_chance(operating, chance)])],
        disagreements=most_different(data.names, low, said[-1].predictions),
        link=link,
        bytes_cloud_only=round(bytes_cloud_only, 1),
        latency_cloud_only_ms=round(float(ms_cloud_only.mean() + said[-1].ms), 3),
    )


def _regions(
    chain: Chain, data: LabelledPicture, said: Sequence[Answered], report: StageReport | None
) -> RegionUploads:
    """Return uploads of regions of all samples, by the calibration or the defaults, and the joint answers."""
    edge, cloud = chain.tiers
    for tier, answers in zip(chain.tiers, said, strict=True):
        check_boxes(tier, answers.predictions)
    rule = (read_artefact(edge.calibration).regions if edge.calibration else None) or RegionRule()
    answer, low, high = answer_function(cloud, _part(report, cloud)), said[0].predictions, said[-1].predictions
    return answer_uploads(data, low, high, rule=rule, upload_format=format_of(edge), answer=answer)


def _describe_regions(data: LabelledPicture, cloud: Sequence[Prediction], regions: RegionUploads) -> str:
    """Return the note about regions: their bytes, and the objects in the joint answers, if each frame is uploaded."""
    objects, matched = objects_in(cloud, regions.joint)
    size, recall = regions.sizes.sum() / max(1, sum(data.sizes)), matched.sum() / max(1, objects.sum())
    return f"upload regions: {size:.1%} of the bytes of frames, {recall:.1%} of the big model's objects in them"


def _notes(chain: Chain, said: Sequence[Answered]) -> list[str]:
    """Return why figures may be low although both models are right."""
    edge, cloud = said[0].predictions, said[-1].predictions
    convention = find_convention(edge, cloud)
    notes = [convention.describe(chain.edge.model, chain.cloud.model)] if convention else []
    own, reference = _labels(edge), _labels(cloud)
    if own and reference and not own & reference:
        notes.append(describe_difference(chain.edge.model, own, chain.cloud.model, reference))
    return notes


def _below_chance(point: Operating, chance: Sequence[Point]) -> str:
    """Return the note that the configured rule chooses worse than as many random uploads; empty if two digits agree."""
    expected = at(chance, point.upload_ratio)
    if point.rule == RANDOM or round(point.accuracy, 2) >= round(expected, 2):
        return ""
    figures = f"{point.accuracy:.2f}, {expected:.2f}"
    return f"at {point.upload_ratio:.0%} {point.rule} is below random ({figures}): halimede calibrate chooses a rule"


def _labels(answers: Sequence[Prediction]) -> set[str]:
    """Return the names of all boxes."""
    return {str(box.label)[:MAX_LABEL] for answer in answers for box in answer.boxes or ()}


def _check_calibrations(chain: Chain) -> None:
    """Refuse a missing calibration: without it, the figures would differ from the service's."""
    for tier in chain.tiers:
        if tier.deferral and (named := tier.deferral.calibration) and tier.calibration is None:
            fix = "there is no such Model in the manifests given, or not its file: give what `halimede calibrate` wrote"
            raise InvalidFieldError("--service", f"calibration {named.name} of {tier.name}", fix)


def _part(report: StageReport | None, tier: EvaluatedTier) -> Callable[[int, int], None] | None:
    return (lambda done, total: report(f"{tier.name}: {tier.model}", done, total)) if report else None


def _decisions(chain: Chain, data: LabelledPicture, said: Sequence[Answered]) -> tuple[list[Array], list[Array]]:
    """Return which samples each tier escalates, as configured, and which reach it."""
    hard: list[Array] = []
    reached = [np.ones(len(data), bool)]
    for tier, each in zip(chain.tiers[:-1], said, strict=False):
        hard.append(decide(tier, data, each.predictions, reached[-1]))
        reached.append(reached[-1] & hard[-1])
    return hard, reached


def _sent(chain: Chain, tier: EvaluatedTier, data: LabelledPicture, predictions: Sequence[Prediction]) -> Array:
    """Return the bytes of each sample that this tier escalates: its data as received, and its model's answer."""
    with_answers = needs_answers(tier)
    worker = f"{chain.service.metadata.name}-{tier.name}"
    return np.array(
        [
            size + _around(chain.service.metadata.name, worker, prediction if with_answers else None)
            for size, prediction in zip(data.sizes, predictions, strict=True)
        ]
    )


def _around(service: str, worker: str, edge: Prediction | None) -> int:
    empty = memoryview(b"")
    frame = Frame(id=bytes(ID_BYTES), service=service, worker=worker, encoding="png", edge=edge, data=empty)
    return len(pack(frame))


def _onward(
    chain: Chain, said: Sequence[Answered], hard: Sequence[Array], sent: Sequence[Array], link: TierLink
) -> _Onward:
    """Compute the outcomes from the second tier on, starting at the last."""
    number = len(said[0].predictions)
    state = _Onward(said[-1].predictions, np.full(number, said[-1].ms), np.ones(number, bool), np.zeros(number))
    for i in reversed(range(1, len(chain.tiers) - 1)):
        tier, each, goes = chain.tiers[i], said[i], hard[i]
        last = i == len(chain.tiers) - 2
        mixed = _fused(tier, each.predictions, state.answers)
        state = _Onward(
            [up if gone else stays for stays, up, gone in zip(each.predictions, mixed, goes, strict=True)],
            each.ms + goes * (link.ms + sent[i] * 8 / link.kbps + state.ms),
            goes & state.cloud,
            goes * (sent[i] if last else state.bytes_to_cloud),
        )
    if len(chain.tiers) == 2:  # the edge uploads directly to the cloud
        state = _Onward(state.answers, state.ms, state.cloud, sent[0].astype(float))
    return state


def _fused(tier: EvaluatedTier, low: Sequence[Prediction], up: list[Prediction]) -> list[Prediction]:
    """Return the answers to samples that both models answered."""
    path = calibration_of(tier)
    if path is None:
        return up
    artefact = read_artefact(path)
    return [mix(artefact, edge, cloud) for edge, cloud in zip(low, up, strict=True)]


def _operating(
    edge: EvaluatedTier, measure: Quality, hard: Array, onward: _Onward, sent: Array, *, edge_ms: float, asked: Array
) -> Operating:
    deferral = edge.deferral
    assert deferral is not None  # noqa: S101  # the edge's worker has one
    mining = deferral.hard_example_mining
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
        bytes_up=round(float((hard * sent).mean()), 1),
        bytes_to_cloud=round(float((hard * onward.bytes_to_cloud).mean()), 1),
        latency_ms=round(edge_ms + float((hard * (asked - spared)).mean()), 3),
    )


def _add_costs(
    point: Operating,
    edge: EvaluatedTier,
    data: LabelledPicture,
    hard: Array,
    *,
    low: Sequence[Prediction],
    stays: Sequence[Prediction],
    up: Sequence[Prediction],
) -> None:
    """Add the mean costs if the service has any: ``low`` are the small model's answers, ``stays`` the edge's."""
    deferral = edge.deferral
    if deferral is None or deferral.costs is None:
        return
    costs = deferral.costs
    check_positive(COSTS, costs, data, edge.spec.labels)
    uploaded = error_costs(data, up, costs) + costs.upload
    alone = error_costs(data, stays, costs) + deferral.audit_share * costs.upload
    point.cost = round(float(np.where(hard, uploaded, alone).mean()), 6)
    point.cost_edge_only = round(float(error_costs(data, low, costs).mean()), 6)
    point.cost_cloud_only = round(float(uploaded.mean()), 6)


def _costs(points: Sequence[Point], hardness: Array, sent: Array, edge_ms: float, asked: Array) -> list[Cost]:
    """Return the mean costs of samples at the points of a rule's curve."""
    order = np.argsort(-hardness, kind="stable")
    size, time = (np.concatenate([[0.0], np.cumsum(values[order])]) / len(order) for values in (sent, asked))
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
    point: Any = measure.point(uploaded)
    return {name: value for name, value in point.items() if name != "upload_ratio"}
