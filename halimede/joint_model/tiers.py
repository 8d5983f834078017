"""The tiers of a JointModel: models, their order, and the rules by which each requests the next one.

Users give ``Tier`` and ``Rule``, or manifests; ``TierPlan`` is what runs. Here edge and cloud are tiers, too. A stage
is a checked tier (``RunnableTier``). Pure, with two exceptions: checks read files and load the user's mining class, and
``from_manifests`` reads files and may download.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from halimede.api.base import convert
from halimede.api.deferral import Costs, Deferral, check_deferral
from halimede.api.model import ModelSpec
from halimede.api.model import check as check_model
from halimede.api.model_formats import SAVED_MODEL
from halimede.api.processing import DecodeMode
from halimede.errors import InvalidFieldError
from halimede.inference import Array, Model
from halimede.mining import create
from halimede.models.archive import format_at
from halimede.names import check_label
from halimede.worker.settings import Fusion, MiningMode

if TYPE_CHECKING:
    from halimede.evaluation.service import Chain

#: the default algorithm of mining
DEFAULT_MINING = "Margin"
#: what to do about an invalid model
MODEL_FIX = (
    "give the path of an ONNX file, a .tflite file or a SavedModel's folder, an object or class with predict, or a "
    "fitted scikit-learn model"
)
#: the url in the spec of a model that has no file: a folder that does not exist
NO_FOLDER = "/none"
#: names of a service's field and of a command's option: an error here names an argument instead of them
SPEC_FIELD, SERVICE_OPTION = "spec.edgeWorker", "--service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The rule by which a tier requests the next one, with the fields and bounds of a service's ``edgeWorker``.

    Attributes:
        mining: name of the algorithm that finds hard samples, or a user's class ``module:Class`` or ``file.py:Class``.
        parameters: of the algorithm, by name.
        mode: whether mining judges predictions, or samples before inference.
        calibration: path of a file that `halimede calibrate` wrote; None: none.
        target_upload_ratio: the upload budget, 0 to 1; None: no budget.
        audit_share: share of easy samples that are uploaded as well, to measure accuracy, 0 to 1.
        fusion: whether the next tier's answer counts, or a mixture of both.
        costs: of wrong answers and of uploads; None: none.

    """

    mining: str = DEFAULT_MINING
    parameters: Mapping[str, object] = field(default_factory=dict)
    mode: MiningMode = "inference-then-mining"
    calibration: Path | None = None
    target_upload_ratio: float | None = None
    audit_share: float = 0.0
    fusion: Fusion = "cloud"
    costs: Costs | None = None

    def check(self, at: str) -> None:
        """Raise InvalidFieldError, with a field below ``at``, for values that a service would refuse as well."""
        mining = {"name": self.mining, "parameters": self._parameters(), "mode": self.mode}
        fields = {
            "hardExampleMining": mining,
            "auditShare": self.audit_share,
            "fusion": self.fusion,
            **({"targetUploadRatio": self.target_upload_ratio} if self.target_upload_ratio is not None else {}),
            **({"calibration": {"name": "calibration"}} if self.calibration else {}),
            **({"costs": msgspec.to_builtins(self.costs)} if self.costs else {}),
        }
        check_deferral(at, convert(fields, Deferral, at))
        if self.calibration and not self.calibration.is_file():
            raise InvalidFieldError(f"{at}.calibration", str(self.calibration), "there is no such file")
        try:
            create(self.mining, self.texts(), self.calibration, self.mode)
        except InvalidFieldError as error:
            raise error.replace_prefix(SPEC_FIELD, at) from None

    def texts(self) -> dict[str, str]:
        """Return the parameters in the form of a service: all as text."""
        return {parameter["key"]: parameter["value"] for parameter in self._parameters()}

    def _parameters(self) -> list[dict[str, str]]:
        return [{"key": key, "value": str(value)} for key, value in self.parameters.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One model, and when it requests the next one.

    Attributes:
        model: an ONNX file's path, an estimator (an object or class with ``predict``), a fitted scikit-learn
            classifier, or a ``halimede.inference.Model``.
        name: the name of a tier between edge and cloud; empty: ``tier1``, ``tier2``, ...
        rule: when it requests the next tier; the last tier's is not used.
        labels, decode, preprocess, postprocess: as in the spec of a Model resource.

    """

    model: object
    name: str = ""
    rule: Rule = field(default_factory=Rule)
    labels: Sequence[str] = ()
    decode: DecodeMode = "exact"
    preprocess: Sequence[Mapping[str, Any]] = ()
    postprocess: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnableTier:
    """A checked tier, ready to run. One of ``path``, ``estimator`` and ``opened`` is the model.

    Attributes:
        name: ``edge``, ``cloud``, or the name of a tier between; from ``stage`` that of the ``Tier``.
        spec: the spec of a Model resource for it.
        path: the model's file; empty: none.
        estimator: a user's object or class with ``predict``; None: none.
        opened: an open model; None: none.
        rule: when it requests the next tier; None: it is the last.
        version: the model's version; empty: unknown.
        committee: files and specs of further models that answer with it.

    """

    name: str
    spec: ModelSpec
    path: str = ""
    estimator: object | None = None
    opened: Model | None = None
    rule: Rule | None = None
    version: str = ""
    committee: tuple[tuple[Path, ModelSpec], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPlan:
    """What a JointModel runs.

    Attributes:
        stages: the tiers that run here, the edge first.
        service, namespace: of the service, which topics contain. If there is no service, any names will do.
        deadline_s: seconds that a hard sample may wait for the next tier.
        has_middle_tiers: whether the service has tiers between edge and cloud.
        next_tier: the name of the service's tier that the last local one requests; empty: all tiers run here, or the
            service has no middle tiers.

    """

    stages: tuple[RunnableTier, ...]
    service: str
    namespace: str
    deadline_s: float
    has_middle_tiers: bool = False
    next_tier: str = ""


def stage(tier: Tier, at: str, *, last: bool) -> RunnableTier:
    """Return a checked tier; ``at`` is the name of its argument, ``last``: it has no next tier.

    Its ``name`` is that in ``tier``, which may be empty; ``chain`` sets it. Raises InvalidFieldError.
    """
    model = tier.model
    path, opened, labels = "", None, list(tier.labels)
    estimator: object | None = None
    if isinstance(model, Model):
        opened = model
    elif isinstance(model, str | os.PathLike):
        path = str(Path(model).expanduser().resolve())
        if not Path(path).is_file() and format_at(Path(path)) is not SAVED_MODEL:
            raise InvalidFieldError(at, str(model), f"there is no such file: {MODEL_FIX}")
    elif is_fitted_classifier(model, at):
        classifier = Classifier(model)
        estimator, labels = classifier, labels or classifier.labels
    elif callable(getattr(model, "predict", None)):
        estimator = model
    else:
        raise InvalidFieldError(at, model, MODEL_FIX)
    fields: dict[str, Any] = {
        "url": path or NO_FOLDER,
        "format": format_at(Path(path)).name if path else "python",
        "labels": [str(label) for label in labels],
        "decode": tier.decode,
        "preprocess": [dict(step) if isinstance(step, Mapping) else step for step in tier.preprocess],
        **({"postprocess": dict(tier.postprocess)} if tier.postprocess is not None else {}),
    }
    spec = convert(fields, ModelSpec, at)
    check_model(spec)
    if not last:
        tier.rule.check(at)
    rule = None if last else tier.rule
    return RunnableTier(name=tier.name, spec=spec, path=path, estimator=estimator, opened=opened, rule=rule)


def chain(tiers: Sequence[Tier], *, deadline_s: float) -> TierPlan:
    """Return the plan of tiers that all run here, the edge first and the cloud last. Raises InvalidFieldError."""
    middle = len(tiers) - 2
    names = ["edge", *(tier.name or f"tier{i}" for i, tier in enumerate(tiers[1:-1], 1)), "cloud"][: len(tiers)]
    for i, name in enumerate(names[1:-1]):
        check_label(f"tiers[{i}].name", name)
        if names.count(name) > 1:
            raise InvalidFieldError(f"tiers[{i}].name", name, "give each tier a name of its own, not edge or cloud")
    fields = ["edge", *(f"tiers[{i}]" for i in range(middle)), "cloud"]
    stages = [replace(stage(tier, fields[i], last=i == len(tiers) - 1), name=names[i]) for i, tier in enumerate(tiers)]
    return TierPlan(
        stages=tuple(stages),
        service="joint",
        namespace="default",
        deadline_s=deadline_s,
        has_middle_tiers=len(tiers) > 2,
    )


def from_manifests(manifests: Sequence[Path]) -> TierPlan:
    """Return the plan to run a whole service here, from its manifests. Raises InvalidFieldError and FetchError."""
    from halimede.evaluation.service import read_chain  # noqa: PLC0415  # only the cli extra has YAML

    try:
        service_chain = read_chain(manifests)
    except InvalidFieldError as error:
        raise error.replace_prefix(SERVICE_OPTION, "manifest") from None
    if detector := service_chain.service.spec.edge_worker.detector:
        fix = "remove it and give predict crops: a JointModel answers whole pictures"
        raise InvalidFieldError("spec.edgeWorker.detector", detector.name, fix)
    stages = _stages(service_chain)
    meta = service_chain.service.metadata
    return TierPlan(
        stages=tuple(stages),
        service=meta.name,
        namespace=meta.namespace or "default",
        deadline_s=service_chain.service.spec.edge_worker.deadline_ms / 1000,
        has_middle_tiers=len(stages) > 2,
    )


def edge_of(plan: TierPlan) -> TierPlan:
    """Return the plan to run only the edge of a plan here, while a service has its other tiers."""
    next_tier = plan.stages[1].name if plan.has_middle_tiers else ""
    return replace(plan, stages=plan.stages[:1], next_tier=next_tier)


def _stages(service_chain: Chain) -> list[RunnableTier]:
    """Return the tiers of a service. Raises InvalidFieldError if the file of a calibration is missing."""
    stages = []
    for i, tier in enumerate(service_chain.tiers):
        rule = None
        if tier.deferral:
            rule = _rule(tier.deferral, tier.calibration)
            if tier.deferral.calibration and tier.calibration is None:
                fix = "give the manifest of that Model, too, with its file at hand"
                raise InvalidFieldError(f"tiers[{i}].calibration", tier.deferral.calibration.name, fix)
        stages.append(
            RunnableTier(
                name=tier.name,
                spec=tier.spec,
                path=str(tier.path),
                rule=rule,
                version=tier.spec.target_version or "",
                committee=tier.committee,
            )
        )
    return stages


def _rule(deferral: Deferral, calibration: Path | None) -> Rule:
    """Return the rule of a service's worker, with the path of its calibration."""
    mining = deferral.hard_example_mining
    return Rule(
        mining=mining.name,
        parameters={parameter.key: parameter.value for parameter in mining.parameters},
        mode=mining.mode,
        calibration=calibration,
        target_upload_ratio=deferral.target_upload_ratio,
        audit_share=deferral.audit_share,
        fusion=deferral.fusion,
        costs=deferral.costs,
    )


def is_fitted_classifier(model: object, at: str) -> bool:
    """Whether ``model`` is a fitted scikit-learn classifier.

    Raises InvalidFieldError on ``at`` for a scikit-learn model that is not fitted, or no classifier.
    """
    if isinstance(model, type) or not callable(getattr(model, "get_params", None)):
        return False
    if getattr(model, "classes_", None) is None:
        raise InvalidFieldError(at, model, "it has no classes_: fit it first; it has to be a classifier")
    return True


class Classifier:
    """An estimator that answers with a fitted scikit-learn classifier; each sample is flattened to a row."""

    def __init__(self, model: Any) -> None:
        self.labels = [str(label) for label in model.classes_]
        self._model = model

    def predict(self, sample: Array) -> Any:
        """Return the answer to one sample, as ``predict_batch`` does."""
        return self.predict_batch([sample])[0]

    def predict_batch(self, samples: Sequence[Array]) -> list[Any]:
        """Return the answers to samples of equal size: class probabilities, or labels without ``predict_proba``."""
        rows = np.stack([np.ravel(sample) for sample in samples])
        if hasattr(self._model, "predict_proba"):
            return list(self._model.predict_proba(rows))
        return [str(label) for label in self._model.predict(rows)]
