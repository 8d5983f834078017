"""A service as its manifests describe it, with the files of its models: what is calibrated and evaluated, offline.

Models are opened as workers open them, ONNX by ONNX Runtime; no bus and no cluster is needed. Manifests are read as
the command line's ``apply`` reads them: YAML 1.2, relative urls relative to the manifest.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from halimede.api import Resource
from halimede.api.deferral import Deferral
from halimede.api.jointinference import PLURAL as SERVICES
from halimede.api.jointinference import JointInferenceServiceSpec, ModelChoice
from halimede.api.model import PLURAL as MODELS
from halimede.api.model import ModelSpec, in_force
from halimede.errors import InvalidFieldError
from halimede.evaluation.data import FIELD as DATA
from halimede.evaluation.data import LabelledPicture, Progress
from halimede.evaluation.manifests import FIELD, models_beside, read_resources
from halimede.inference import Model, SampleError, group, isolate, open_model
from halimede.messages import Prediction
from halimede.models import Cache, fetch, local_path
from halimede.models.archive import model_file, unpack

HOME = "~/.local/state/halimede"
#: samples that are prepared at a time, and that a model gets in one call
CHUNK, BATCH = 128, 32
#: a model's time for one sample is the median of so many, within so many seconds
TIMED, TIMED_S = 30, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedTier:
    """One model of a service, and when it asks the next one (``deferral``; None: it is the last).

    ``calibration`` is the file of what `halimede calibrate` found out, where the deferral names one that is there.
    """

    name: str
    model: str
    spec: ModelSpec
    path: Path
    deferral: Deferral | None = None
    calibration: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A service's tiers, the edge first and the cloud last: two or more."""

    service: Resource[JointInferenceServiceSpec]
    tiers: tuple[EvaluatedTier, ...]

    @property
    def edge(self) -> EvaluatedTier:
        """The first."""
        return self.tiers[0]

    @property
    def cloud(self) -> EvaluatedTier:
        """The last."""
        return self.tiers[-1]


@dataclass(frozen=True, slots=True)
class Answered:
    """A tier's answers to all samples in order, and its model's time for one of them alone, in milliseconds."""

    predictions: list[Prediction]
    ms: float


def read_chain(manifests: Sequence[Path]) -> Chain:
    """Read the one joint inference service in these files (or in those below a folder) and find its models.

    Models that no manifest here describes are looked for beside: in the other manifests of the same folder. What lies
    elsewhere (http, s3) is fetched into a cache of this user. Raises InvalidFieldError, FetchError.
    """
    resources = list(read_resources(manifests))
    services = [each for each in resources if each.kind.plural == SERVICES]
    services = [each for each in services if isinstance(each.spec, JointInferenceServiceSpec)]
    shown = ", ".join(map(str, manifests))
    if len(services) != 1:
        names = ", ".join(each.metadata.name for each in services) or "none"
        fix = f"give manifests with one JointInferenceService of sedna.io and its Models: there is {names}"
        raise InvalidFieldError(FIELD, shown, fix)
    (service,) = services
    beside = [each for path in {file.parent for file in manifests if file.is_file()} for each in models_beside(path)]
    models: dict[str, ModelSpec] = {}
    for each in (*resources, *beside):
        if each.kind.plural == MODELS and each.metadata.namespace == service.metadata.namespace:
            models.setdefault(each.metadata.name, each.spec)
    return chain_of(service, models)


def chain_of(service: Resource[JointInferenceServiceSpec], models: Mapping[str, ModelSpec]) -> Chain:
    """Put a service and its models together. Raises InvalidFieldError, FetchError."""
    spec = service.spec
    parts: list[tuple[str, str, str, Deferral | None]] = [
        ("edge", "spec.edgeWorker", _chosen("spec.edgeWorker", spec.edge_worker.model), spec.edge_worker),
        *((tier.name, f"spec.tiers[{i}]", tier.model.name, tier) for i, tier in enumerate(spec.tiers)),
        ("cloud", "spec.cloudWorker", _chosen("spec.cloudWorker", spec.cloud_worker.model), None),
    ]
    return Chain(service=service, tiers=tuple(_tier(*part, models) for part in parts))


def answers(tier: EvaluatedTier, data: LabelledPicture, progress: Progress | None = None) -> list[Prediction]:
    """Return what a tier's model says of all samples, in order. Raises ModelError, InvalidFieldError (``--data``)."""
    return answered(tier, data, progress, timed=0).predictions


def answered(
    tier: EvaluatedTier, data: LabelledPicture, progress: Progress | None = None, *, timed: int = TIMED
) -> Answered:
    """Likewise, and measure the time that it takes the model, pre-processing included, to answer a sample alone."""
    with open_model(tier.path, tier.spec) as model:
        found: list[Prediction] = []
        for start in range(0, len(data), CHUNK):
            found += _answer(tier, model, data, range(start, min(start + CHUNK, len(data))))
            if progress:
                progress(len(found), len(data))
        return Answered(found, _time(model, data, timed))


def _answer(tier: EvaluatedTier, model: Model, data: LabelledPicture, numbers: range) -> list[Prediction]:
    def refused(number: int, error: object) -> InvalidFieldError:
        fix = f"model {tier.model} cannot answer it: {error}"
        return InvalidFieldError(DATA, data.names[number], fix)

    samples = []
    for number in numbers:
        try:
            samples.append(model.prepare(data.images[number]))
        except SampleError as error:
            raise refused(number, error) from error
    predictions: dict[int, Prediction] = {}
    for batch in group(range(len(samples)), BATCH, samples.__getitem__):
        for i, answer in zip(batch, isolate([samples[i] for i in batch], model.predict), strict=True):
            if isinstance(answer, SampleError):
                raise refused(numbers[i], str(answer))
            predictions[i] = answer
    return [predictions[i] for i in range(len(samples))]


def _time(model: Model, data: LabelledPicture, count: int) -> float:
    taken: list[float] = []
    end = time.perf_counter() + TIMED_S
    for image in data.images[:count]:
        began = time.perf_counter()
        model.predict([model.prepare(image)])
        taken.append((time.perf_counter() - began) * 1000)
        if time.perf_counter() > end:
            break
    return statistics.median(taken) if taken else 0.0


def _chosen(at: str, choice: ModelChoice) -> str:
    if not choice.name:
        raise InvalidFieldError(
            f"{at}.model.selector", choice.selector, "give a name: only GM knows what a selector finds"
        )
    return choice.name


def _tier(name: str, at: str, model: str, deferral: Deferral | None, models: Mapping[str, ModelSpec]) -> EvaluatedTier:
    if model not in models:
        raise InvalidFieldError(
            f"{at}.model.name", model, "there is no such Model in the manifests given: give its, too"
        )
    spec = in_force(models[model])
    calibration = None
    if deferral and deferral.calibration and (named := models.get(deferral.calibration.name)):
        found = _file(in_force(named))
        calibration = found if found.is_file() else None
    path = _file(spec)
    if not path.is_file():
        raise InvalidFieldError(f"{at}.model", str(path), "there is no such file: train or download the model first")
    return EvaluatedTier(name=name, model=model, spec=spec, path=path, deferral=deferral, calibration=calibration)


def _file(spec: ModelSpec) -> Path:
    """Return where a model is: on this machine as it stands, from elsewhere through a cache."""
    path = local_path(spec.url)
    if path is not None:
        return path
    cache = Cache(Path(os.environ.get("HALIMEDE_HOME") or HOME).expanduser() / "evaluation" / "models")
    # a thread of its own: whoever calls may have an event loop in this one
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(_fetched(spec, cache))).result()


async def _fetched(spec: ModelSpec, cache: Cache) -> Path:
    fetched = await fetch(spec.url, spec.sha256, cache)
    return model_file(await unpack(cache, fetched)) if spec.is_onnx else fetched.path
