"""The models, their order, and when each requests the next: read from arguments or from manifests.

Pure, except for checks of files. The rule of a tier is a service's ``Deferral``, with the same names and bounds.
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

#: the default rule
DEFAULT = "Margin"
MODELS = (
    "give the path of an ONNX file, a .tflite file or a SavedModel's folder, an object or class with predict, or a "
    "fitted scikit-learn model"
)
#: a folder that does not exist
NOWHERE = "/none"
#: names in errors that are replaced by those of arguments: a field of a service, and a command's option
SPEC, OPTION = "spec.edgeWorker", "--service"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The rule by which a tier requests the next one, with the fields of a service's ``edgeWorker``."""

    mining: str = DEFAULT
    parameters: Mapping[str, object] = field(default_factory=dict)
    mode: MiningMode = "inference-then-mining"
    calibration: Path | None = None
    target_upload_ratio: float | None = None
    audit_share: float = 0.0
    fusion: Fusion = "cloud"
    costs: Costs | None = None

    def check(self, at: str) -> None:
        """Raise InvalidFieldError for values that a service would refuse as well."""
        mining = {"name": self.mining, "parameters": self._parameters(), "mode": self.mode}
        told = {
            "hardExampleMining": mining,
            "auditShare": self.audit_share,
            "fusion": self.fusion,
            **({"targetUploadRatio": self.target_upload_ratio} if self.target_upload_ratio is not None else {}),
            **({"calibration": {"name": "calibration"}} if self.calibration else {}),
            **({"costs": msgspec.to_builtins(self.costs)} if self.costs else {}),
        }
        check_deferral(at, convert(told, Deferral, at))
        if self.calibration and not self.calibration.is_file():
            raise InvalidFieldError(f"{at}.calibration", str(self.calibration), "there is no such file")
        try:
            create(self.mining, self.texts(), self.calibration, self.mode)
        except InvalidFieldError as error:
            raise error.moved(SPEC, at) from None

    def texts(self) -> dict[str, str]:
        """Return the parameters in the form of a service: all as text."""
        return {each["key"]: each["value"] for each in self._parameters()}

    def _parameters(self) -> list[dict[str, str]]:
        return [{"key": key, "value": str(value)} for key, value in self.parameters.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One model, and when it requests the next one.

    ``model`` is an ONNX file's path, an estimator (an object or class with ``predict``), a fitted scikit-learn model,
    or a ``halimede.inference.Model``. ``labels`` to ``postprocess`` are as in a Model resource.
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
    """A runnable tier: its name, how to open its model, and its rule; None for the last one."""

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
    """The tiers that run here, the edge first; ``next_tier``: a service's tier that the last of them requests.

    ``tiers``: the service has more than an edge and a cloud.
    """

    stages: tuple[RunnableTier, ...]
    service: str
    namespace: str
    deadline_s: float
    tiers: bool = False
    next_tier: str = ""


def stage(tier: Tier, at: str, *, last: bool) -> RunnableTier:
    """Read one tier; ``at`` is the name of its argument. Raises InvalidFieldError."""
    model = tier.model
    path, opened, labels = "", None, list(tier.labels)
    estimator: object | None = None
    if isinstance(model, Model):
        opened = model
    elif isinstance(model, str | os.PathLike):
        path = str(Path(model).expanduser().resolve())
        if not Path(path).is_file() and format_at(Path(path)) is not SAVED_MODEL:
            raise InvalidFieldError(at, str(model), f"there is no such file: {MODELS}")
    elif fitted(model, at):
        made = Classifier(model)
        estimator, labels = made, labels or made.labels
    elif callable(getattr(model, "predict", None)):
        estimator = model
    else:
        raise InvalidFieldError(at, model, MODELS)
    told: dict[str, Any] = {
        "url": path or NOWHERE,
        "format": format_at(Path(path)).name if path else "python",
        "labels": [str(label) for label in labels],
        "decode": tier.decode,
        "preprocess": [dict(step) if isinstance(step, Mapping) else step for step in tier.preprocess],
        **({"postprocess": dict(tier.postprocess)} if tier.postprocess is not None else {}),
    }
    spec = convert(told, ModelSpec, at)
    check_model(spec)
    if not last:
        tier.rule.check(at)
    return RunnableTier(
        name=tier.name,
        spec=spec,
        path=path,
        estimator=estimator,
        opened=opened,
        rule=None if last else tier.rule,
    )


def chain(tiers: Sequence[Tier], *, deadline_s: float) -> TierPlan:
    """Return the plan of tiers that all run here, the edge first and the cloud last. Raises InvalidFieldError."""
    middle = len(tiers) - 2
    names = ["edge", *(tier.name or f"tier{i}" for i, tier in enumerate(tiers[1:-1], 1)), "cloud"][: len(tiers)]
    for i, name in enumerate(names[1:-1]):
        check_label(f"tiers[{i}].name", name)
        if names.count(name) > 1:
            raise InvalidFieldError(f"tiers[{i}].name", name, "give each tier a name of its own, not edge or cloud")
    places = ["edge", *(f"tiers[{i}]" for i in range(middle)), "cloud"]
    stages = [replace(stage(tier, places[i], last=i == len(tiers) - 1), name=names[i]) for i, tier in enumerate(tiers)]
    return TierPlan(
        stages=tuple(stages), service="joint", namespace="default", deadline_s=deadline_s, tiers=len(tiers) > 2
    )


def from_manifests(manifests: Sequence[Path]) -> TierPlan:
    """Return the plan of a service's manifests, all of it run here. Raises InvalidFieldError, FetchError."""
    from halimede.evaluation.service import read_chain  # noqa: PLC0415  # only the cli extra has YAML

    try:
        found = read_chain(manifests)
    except InvalidFieldError as error:
        raise error.moved(OPTION, "manifest") from None
    if detector := found.service.spec.edge_worker.detector:
        fix = "remove it and give predict crops: a JointModel answers whole pictures"
        raise InvalidFieldError("spec.edgeWorker.detector", detector.name, fix)
    stages = _stages(found)
    meta = found.service.metadata
    return TierPlan(
        stages=tuple(stages),
        service=meta.name,
        namespace=meta.namespace or "default",
        deadline_s=found.service.spec.edge_worker.deadline_ms / 1000,
        tiers=len(stages) > 2,
    )


def edge_of(plan: TierPlan) -> TierPlan:
    """Return the local part of a service's plan if its other tiers run elsewhere."""
    asked = plan.stages[1].name if plan.tiers else ""
    return replace(plan, stages=plan.stages[:1], next_tier=asked)


def _stages(found: Chain) -> list[RunnableTier]:
    stages = []
    for i, tier in enumerate(found.tiers):
        rule = None
        if tier.deferral:
            rule = _rule(tier.deferral, tier.calibration)
            if tier.deferral.calibration and tier.calibration is None:
                fix = "give the manifest of that Model, too, with its file at hand"
                raise InvalidFieldError(f"tiers[{i}].calibration", tier.deferral.calibration.name, fix)
        version = tier.spec.target_version or ""
        stages.append(
            RunnableTier(
                name=tier.name,
                spec=tier.spec,
                path=str(tier.path),
                rule=rule,
                version=version,
                committee=tier.committee,
            )
        )
    return stages


def _rule(said: Deferral, calibration: Path | None) -> Rule:
    mining = said.hard_example_mining
    return Rule(
        mining=mining.name,
        parameters={each.key: each.value for each in mining.parameters},
        mode=mining.mode,
        calibration=calibration,
        target_upload_ratio=said.target_upload_ratio,
        audit_share=said.audit_share,
        fusion=said.fusion,
        costs=said.costs,
    )


def fitted(model: object, at: str) -> bool:
    """Whether ``model`` is a fitted scikit-learn classifier. Raises InvalidFieldError if it is not fitted."""
    if isinstance(model, type) or not callable(getattr(model, "get_params", None)):
        return False
    if getattr(model, "classes_", None) is None:
        raise InvalidFieldError(at, model, "it has no classes_: fit it first; it has to be a classifier")
    return True


class Classifier:
    """Answers samples, each flattened to a row. Without ``predict_proba`` there is a label and no score."""

    def __init__(self, model: Any) -> None:
        self.labels = [str(each) for each in model.classes_]
        self._model = model

    def predict(self, sample: Array) -> Any:
        """Answer one sample."""
        return self.predict_batch([sample])[0]

    def predict_batch(self, samples: Sequence[Array]) -> list[Any]:
        """Answer samples of equal size: probabilities in the order of the classes, else the label."""
        rows = np.stack([np.ravel(sample) for sample in samples])
        if hasattr(self._model, "predict_proba"):
            return list(self._model.predict_proba(rows))
        return [str(label) for label in self._model.predict(rows)]
