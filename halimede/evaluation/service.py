"""A service read from its manifests, with the files of its models, for calibration and evaluation offline.

Models are opened as in workers, ONNX by ONNX Runtime, without a bus or a cluster. Manifests are read as by the command
``apply``: YAML 1.2, relative urls relative to the manifest.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from halimede import api
from halimede.api import Resource
from halimede.api.deferral import Deferral
from halimede.api.jointinference import PLURAL as SERVICES
from halimede.api.jointinference import JointInferenceServiceSpec, ModelChoice
from halimede.api.model import PLURAL as MODELS
from halimede.api.model import ModelSpec, in_force
from halimede.api.model_formats import ONNX, format_of
from halimede.api.relative_paths import resolve
from halimede.errors import InvalidFieldError, cause_of
from halimede.evaluation.data import FIELD as DATA
from halimede.evaluation.data import LabelledPicture, Progress
from halimede.inference import Model, SampleError, group, isolate, open_committee, open_model
from halimede.messages import Prediction
from halimede.models import Cache, fetch, local_path
from halimede.models.archive import kind_of, model_file, unpack
from halimede.models.external_data import fetch_model

FIELD = "--service"
SUFFIXES = frozenset({".yaml", ".yml", ".json"})
#: most bytes of one manifest (as in GM), and most manifests in a folder
MAX_MANIFEST = 1024 * 1024
MAX_FILES = 1000


def read_resources(paths: Sequence[Path]) -> Iterator[Resource[Any]]:
    """Yield the resources in files and below folders. Raises InvalidFieldError (field ``--service``)."""
    for path in paths:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
            if len(files) > MAX_FILES:
                raise InvalidFieldError(FIELD, str(path), f"it holds {len(files)} manifests: name the service's file")
        else:
            files = [path]
        for file in files:
            yield from _read(file)


def models_in(folder: Path) -> Iterator[Resource[Any]]:
    """Yield the Models of a folder; unreadable files are skipped."""
    for file in sorted(folder.iterdir())[:MAX_FILES]:
        if file.suffix in SUFFIXES and file.is_file():
            try:
                yield from [each for each in _read(file) if each.kind.plural == MODELS]
            except InvalidFieldError:
                continue  # the user did not name this file, so it may be anything


def _read(path: Path) -> Iterator[Resource[Any]]:
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415  # of the cli extra alone

    from halimede.system.bounded_yaml import bounded_yaml, decode_text  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            data = file.read(MAX_MANIFEST + 1)
        if len(data) > MAX_MANIFEST:
            raise InvalidFieldError(FIELD, str(path), f"it is larger than {MAX_MANIFEST >> 20} MiB: is it a manifest?")
        documents = list(bounded_yaml().load_all(decode_text(data)))
    except UnicodeDecodeError as error:
        raise InvalidFieldError(FIELD, str(path), f"byte {error.start} is not UTF-8: write it as UTF-8") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + 1})" if mark else ""
        problem = str(error.problem or error.context or "cannot be read").splitlines()[0]
        raise InvalidFieldError(FIELD, str(path), f"write YAML: {problem}{where}") from error
    except (YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InvalidFieldError(FIELD, str(path), f"write YAML: {cause_of(error)}") from error
    except OSError as error:
        raise InvalidFieldError(FIELD, str(path), f"it cannot be read: {error.strerror}") from error
    for body in documents:
        if isinstance(body, dict):
            listed = body.get("items") if body.get("kind") == "List" else None
            for item in listed if isinstance(listed, list) else [body]:
                yield _parse(item, path)


def _parse(body: Any, path: Path) -> Resource[Any]:
    resolve(body, path.resolve().parent)
    try:
        return api.parse(body)
    except InvalidFieldError as error:
        raise InvalidFieldError(f"{path}: {error.field}", error.value, error.fix) from error


HOME = "~/.local/state/halimede"
#: samples that are prepared at a time, samples of one model call, and most bytes of its input: a detector's layers take
#: many times as much
CHUNK, BATCH, BATCH_BYTES = 128, 32, 8 * 1024**2
#: a model's time for one sample is the median of so many calls, within so many seconds
TIMED, TIMED_S = 30, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedTier:
    """One model of a service, with its rule for escalation (``deferral``; None: the last tier).

    ``calibration``: the file of `halimede calibrate`, if the deferral names one that exists.
    """

    name: str
    model: str
    spec: ModelSpec
    path: Path
    deferral: Deferral | None = None
    calibration: Path | None = None
    #: the further models of its committee
    committee: tuple[tuple[Path, ModelSpec], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A service's tiers, the edge first and the cloud last: two or more. ``models``: the Models that they name."""

    service: Resource[JointInferenceServiceSpec]
    tiers: tuple[EvaluatedTier, ...]
    models: tuple[Resource[ModelSpec], ...]

    @property
    def edge(self) -> EvaluatedTier:
        """The first tier."""
        return self.tiers[0]

    @property
    def cloud(self) -> EvaluatedTier:
        """The last tier."""
        return self.tiers[-1]


@dataclass(frozen=True, slots=True)
class Answered:
    """A tier's answers to all samples in order, and its model's time for a single one, in milliseconds."""

    predictions: list[Prediction]
    ms: float


def read_chain(manifests: Sequence[Path]) -> Chain:
    """Read the one joint inference service in these files (or in those below a folder) and find its models.

    Models that are not in these manifests are searched in the other manifests of the same folder. Remote files (http,
    s3) are downloaded into a cache of this user. Raises InvalidFieldError, FetchError.
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
    beside = [each for path in {file.parent for file in manifests if file.is_file()} for each in models_in(path)]
    models: dict[str, Resource[ModelSpec]] = {}
    for each in (*resources, *beside):
        if each.kind.plural == MODELS and each.metadata.namespace == service.metadata.namespace:
            models.setdefault(each.metadata.name, each)
    return chain_of(service, models)


def chain_of(service: Resource[JointInferenceServiceSpec], models: Mapping[str, Resource[ModelSpec]]) -> Chain:
    """Combine a service and its models. Raises InvalidFieldError, FetchError."""
    spec = service.spec
    parts: list[tuple[str, str, str, Deferral | None]] = [
        ("edge", "spec.edgeWorker", _chosen("spec.edgeWorker", spec.edge_worker.model), spec.edge_worker),
        *((tier.name, f"spec.tiers[{i}]", tier.model.name, tier) for i, tier in enumerate(spec.tiers)),
        ("cloud", "spec.cloudWorker", _chosen("spec.cloudWorker", spec.cloud_worker.model), None),
    ]
    further = [member.name for member in spec.edge_worker.committee]
    members = [_model_of("spec.edgeWorker.committee", name, models) for name in further]
    edge, *onward = (_tier(*part, models) for part in parts)
    tiers = (replace(edge, committee=tuple((path, member) for member, path in members)), *onward)
    named = [*(name for each in tiers for name in (each.model, _calibration_of(each.deferral))), *further]
    named += [spec.edge_worker.detector.name] if spec.edge_worker.detector else []
    return Chain(
        service=service, tiers=tiers, models=tuple(models[name] for name in dict.fromkeys(named) if name in models)
    )


def check_crops(chain: Chain, data: LabelledPicture, field: str, value: str) -> None:
    """Check that the samples of a service with a detector are crops: pictures with one label. Raises InvalidFieldError.

    ``value``: what the user gave as ``field``.
    """
    detector = chain.service.spec.edge_worker.detector
    if detector and data.boxes is not None:
        fix = f"samples of a service with a detector ({detector.name}) are crops: give a class or a text for each"
        raise InvalidFieldError(field, value, fix)


def answers(tier: EvaluatedTier, data: LabelledPicture, progress: Progress | None = None) -> list[Prediction]:
    """Return the answers of a tier's model in order. Raises ModelError, InvalidFieldError (``--data``)."""
    return answered(tier, data, progress, timed=0).predictions


def answered(
    tier: EvaluatedTier, data: LabelledPicture, progress: Progress | None = None, *, timed: int = TIMED
) -> Answered:
    """The same, and measure the model's time for a single sample, with decoding and pre-processing."""
    with _open(tier) as model:
        found: list[Prediction] = []
        for start in range(0, len(data), CHUNK):
            found += _answer(tier, model, data, range(start, min(start + CHUNK, len(data))))
            if progress:
                progress(len(found), len(data))
        return Answered(found, _time(model, data, timed))


def _open(tier: EvaluatedTier) -> Model:
    """Open a tier's model, with those of its committee."""
    model = open_model(tier.path, tier.spec)
    try:
        return open_committee(model, tier.committee)
    except BaseException:
        model.close()
        raise


def _answer(tier: EvaluatedTier, model: Model, data: LabelledPicture, numbers: range) -> list[Prediction]:
    def refused(number: int, error: object) -> InvalidFieldError:
        fix = f"model {tier.model} cannot answer it: {error}"
        return InvalidFieldError(DATA, data.names[number], f"{data.class_advice} ({fix})" if data.class_advice else fix)

    samples = []
    for number in numbers:
        try:
            samples.append(model.prepare(data.image(number, model.decoding)))
        except SampleError as error:
            raise refused(number, error) from error
    predictions: dict[int, Prediction] = {}
    largest = max((sample.nbytes for sample in samples), default=1)
    limit = max(1, min(BATCH, BATCH_BYTES // max(1, largest)))
    for batch in group(range(len(samples)), limit, samples.__getitem__):
        for i, answer in zip(batch, isolate([samples[i] for i in batch], model.predict), strict=True):
            if isinstance(answer, SampleError):
                raise refused(numbers[i], str(answer))
            predictions[i] = answer
    return [predictions[i] for i in range(len(samples))]


def _time(model: Model, data: LabelledPicture, count: int) -> float:
    taken: list[float] = []
    end = time.perf_counter() + TIMED_S
    for number in range(min(count, len(data))):
        began = time.perf_counter()
        model.predict([model.prepare(data.image(number, model.decoding))])
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


def _calibration_of(deferral: Deferral | None) -> str:
    """Return the name of the Model with a tier's calibration; empty: it has none."""
    return deferral.calibration.name if deferral and deferral.calibration else ""


def _tier(
    name: str, at: str, model: str, deferral: Deferral | None, models: Mapping[str, Resource[ModelSpec]]
) -> EvaluatedTier:
    spec, path = _model_of(f"{at}.model", model, models)
    calibration = None
    if named := models.get(_calibration_of(deferral)):
        found = file_of(in_force(named.spec))
        calibration = found if found.is_file() else None
    return EvaluatedTier(name=name, model=model, spec=spec, path=path, deferral=deferral, calibration=calibration)


def _model_of(at: str, name: str, models: Mapping[str, Resource[ModelSpec]]) -> tuple[ModelSpec, Path]:
    """Return the spec and the file of a Model that a service names at this path."""
    if name not in models:
        raise InvalidFieldError(f"{at}.name", name, "there is no such Model in the manifests given: give its, too")
    spec = in_force(models[name].spec)
    path = file_of(spec)
    if not path.exists():
        raise InvalidFieldError(at, str(path), "there is no such file: train or download the model first")
    return spec, path


def file_of(spec: ModelSpec) -> Path:
    """Return the path of a model: a local file itself, a remote one or one of an archive in a cache.

    Raises FetchError.
    """
    path = local_path(spec.url)
    if path is not None and not (format_of(spec.format) and path.is_file() and kind_of(path)):
        return path
    cache = Cache(Path(os.environ.get("HALIMEDE_HOME") or HOME).expanduser() / "evaluation" / "models")
    # a separate thread: the caller's thread may run an event loop
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(_fetched(spec, cache))).result()


async def _fetched(spec: ModelSpec, cache: Cache) -> Path:
    form = format_of(spec.format)
    fetched = await (fetch_model if form is ONNX else fetch)(spec.url, spec.sha256, cache)
    return model_file(await unpack(cache, fetched), form) if form else fetched.path
