"""Reads a service from its manifests as a ``Chain`` of tiers, and answers samples with their models, offline.

Models are opened as in workers, without a bus or a cluster. Manifests are read as the command ``apply`` reads them:
YAML 1.2, with relative urls relative to the manifest.
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
from halimede.api.file_references import resolve
from halimede.api.jointinference import PLURAL as SERVICES
from halimede.api.jointinference import JointInferenceServiceSpec, ModelChoice
from halimede.api.model import PLURAL as MODELS
from halimede.api.model import ModelSpec, in_force
from halimede.api.model_formats import ONNX, format_of
from halimede.errors import InvalidFieldError, cause_of
from halimede.evaluation.data import FIELD as DATA
from halimede.evaluation.data import LabelledSamples, Progress
from halimede.home_folder import DEFAULT_HOME
from halimede.inference import Model, SampleError, group, isolate, open_committee, open_model
from halimede.messages import Prediction
from halimede.models import Cache, fetch, local_path
from halimede.models.archive import kind_of, model_file, unpack
from halimede.models.external_data import fetch_model

#: the option, for errors
FIELD = "--service"
#: suffixes of manifests
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
    """Yield the Models in manifests among a folder's first ``MAX_FILES`` files; unreadable files are skipped."""
    for file in sorted(folder.iterdir())[:MAX_FILES]:
        if file.suffix in SUFFIXES and file.is_file():
            try:
                yield from [resource for resource in _read(file) if resource.kind.plural == MODELS]
            except InvalidFieldError:
                continue  # the user did not name this file, so it may be anything


def _read(path: Path) -> Iterator[Resource[Any]]:
    """Yield the resources in a manifest; documents that are no mapping are skipped. Raises InvalidFieldError."""
    from ruamel.yaml.error import MarkedYAMLError, YAMLError  # noqa: PLC0415  # of the cli extra alone

    from halimede.system.bounded_yaml import bounded_yaml, decode_text, yaml_problem  # noqa: PLC0415

    try:
        with path.open("rb") as file:
            data = file.read(MAX_MANIFEST + 1)
        if len(data) > MAX_MANIFEST:
            raise InvalidFieldError(FIELD, str(path), f"it is larger than {MAX_MANIFEST >> 20} MiB: is it a manifest?")
        documents = list(bounded_yaml().load_all(decode_text(data)))
    except UnicodeDecodeError as error:
        raise InvalidFieldError(FIELD, str(path), f"byte {error.start} is not UTF-8: write it as UTF-8") from error
    except MarkedYAMLError as error:
        line, problem = yaml_problem(error)
        line_text = f" (line {line})" if line else ""
        raise InvalidFieldError(FIELD, str(path), f"write YAML: {problem}{line_text}") from error
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
    """Return the resource of a document of the manifest ``path``. Raises InvalidFieldError.

    Relative urls and paths in ``body`` are replaced by absolute ones, relative to the manifest's folder.
    """
    resolve(body, path.resolve().parent)
    try:
        return api.parse(body)
    except InvalidFieldError as error:
        raise InvalidFieldError(f"{path}: {error.field}", error.value, error.fix) from error


#: most samples that are prepared at a time, most samples of one model call, and most bytes of its input: a detector's
#: layers take many times as much
CHUNK, BATCH, BATCH_BYTES = 128, 32, 8 * 1024**2
#: a model's time for one sample is the median of at most so many calls, within so many seconds
TIMED_CALLS, TIMED_S = 30, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedTier:
    """One tier of a service, with its model."""

    #: ``edge``, ``cloud``, or the name of a tier between
    name: str
    #: the name of its Model
    model: str
    spec: ModelSpec
    #: the model's file or folder
    path: Path
    #: when it requests the next tier; None: it is the last
    deferral: Deferral | None = None
    #: the file of `halimede calibrate`; None: the deferral names none, or it does not exist
    calibration: Path | None = None
    #: files and specs of the further models of its committee, which answer with it
    committee: tuple[tuple[Path, ModelSpec], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A service with its tiers, two or more, the edge first and the cloud last. ``models``: the Models they name."""

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
class TierAnswers:
    """A tier's answers to all samples, in order, and its model's milliseconds (``ms``) for one; 0: not measured."""

    predictions: list[Prediction]
    ms: float


def read_chain(manifests: Sequence[Path]) -> Chain:
    """Read the one joint inference service in these files (or in those below a folder) and find its models.

    Models that are not in these manifests are searched in the other manifests of the same folder. Remote files (http,
    s3) are downloaded into a cache of this user. Raises InvalidFieldError, FetchError.
    """
    resources = list(read_resources(manifests))
    services = [resource for resource in resources if resource.kind.plural == SERVICES]
    services = [resource for resource in services if isinstance(resource.spec, JointInferenceServiceSpec)]
    listed = ", ".join(map(str, manifests))
    if len(services) != 1:
        names = ", ".join(resource.metadata.name for resource in services) or "none"
        fix = f"give manifests with one JointInferenceService of sedna.io and its Models: there is {names}"
        raise InvalidFieldError(FIELD, listed, fix)
    (service,) = services
    folders = {file.parent for file in manifests if file.is_file()}
    nearby = [resource for folder in folders for resource in models_in(folder)]
    models: dict[str, Resource[ModelSpec]] = {}
    for resource in (*resources, *nearby):
        if resource.kind.plural == MODELS and resource.metadata.namespace == service.metadata.namespace:
            models.setdefault(resource.metadata.name, resource)
    return chain_of(service, models)


def chain_of(service: Resource[JointInferenceServiceSpec], models: Mapping[str, Resource[ModelSpec]]) -> Chain:
    """Return the chain of a service; ``models`` are its Models by name.

    Raises InvalidFieldError for a missing Model or file and for a selector in place of a name, and FetchError for a
    file that cannot be downloaded.
    """
    spec = service.spec
    descriptions: list[tuple[str, str, str, Deferral | None]] = [
        ("edge", "spec.edgeWorker", _model_name("spec.edgeWorker", spec.edge_worker.model), spec.edge_worker),
        *((worker.name, f"spec.tiers[{i}]", worker.model.name, worker) for i, worker in enumerate(spec.tiers)),
        ("cloud", "spec.cloudWorker", _model_name("spec.cloudWorker", spec.cloud_worker.model), None),
    ]
    member_names = [member.name for member in spec.edge_worker.committee]
    members = [_model_of("spec.edgeWorker.committee", name, models) for name in member_names]
    edge, *onward = (_tier(*description, models) for description in descriptions)
    tiers = (replace(edge, committee=tuple((path, member) for member, path in members)), *onward)
    names = [*(name for tier in tiers for name in (tier.model, _calibration_of(tier.deferral))), *member_names]
    names += [spec.edge_worker.detector.name] if spec.edge_worker.detector else []
    return Chain(
        service=service, tiers=tiers, models=tuple(models[name] for name in dict.fromkeys(names) if name in models)
    )


def check_crops(chain: Chain, data: LabelledSamples, field: str, value: str) -> None:
    """Raise InvalidFieldError if a service has a detector and its samples have boxes: they must be crops with a label.

    A crop is the part of a frame in a box of the detector. ``value``: what the user gave as ``field``.
    """
    detector = chain.service.spec.edge_worker.detector
    if detector and data.boxes is not None:
        fix = f"samples of a service with a detector ({detector.name}) are crops: give a class or a text for each"
        raise InvalidFieldError(field, value, fix)


def answer_all(tier: EvaluatedTier, data: LabelledSamples, progress: Progress | None = None) -> list[Prediction]:
    """Return the answers of a tier's model to all samples, in order.

    Raises ModelError for a model that cannot be opened, and InvalidFieldError (``--data``) for a sample that it cannot
    answer.
    """
    return answer_and_time(tier, data, progress, timed=0).predictions


def answer_and_time(
    tier: EvaluatedTier, data: LabelledSamples, progress: Progress | None = None, *, timed: int = TIMED_CALLS
) -> TierAnswers:
    """Return the answers to all samples, and the model's time for one, with decoding and pre-processing.

    ``timed``: most samples by which the time is measured; 0: it is 0. Raises what ``answer_all`` raises.
    """
    with _open(tier) as model:
        predictions: list[Prediction] = []
        for start in range(0, len(data), CHUNK):
            predictions += _answer(tier, model, data, range(start, min(start + CHUNK, len(data))))
            if progress:
                progress(len(predictions), len(data))
        return TierAnswers(predictions, _time(model, data, timed))


def _open(tier: EvaluatedTier) -> Model:
    """Return a tier's open model, with the further models of its committee."""
    model = open_model(tier.path, tier.spec)
    try:
        return open_committee(model, tier.committee)
    except BaseException:
        model.close()
        raise


def _answer(tier: EvaluatedTier, model: Model, data: LabelledSamples, numbers: range) -> list[Prediction]:
    """Return the answers to the samples with these numbers. Raises InvalidFieldError."""

    def refusal(number: int, error: object) -> InvalidFieldError:
        fix = f"model {tier.model} cannot answer it: {error}"
        return InvalidFieldError(DATA, data.names[number], f"{data.class_advice} ({fix})" if data.class_advice else fix)

    samples = []
    for number in numbers:
        try:
            samples.append(model.prepare(data.image(number, model.decoding)))
        except SampleError as error:
            raise refusal(number, error) from error
    predictions: dict[int, Prediction] = {}
    largest = max((sample.nbytes for sample in samples), default=1)
    limit = max(1, min(BATCH, BATCH_BYTES // max(1, largest)))
    for batch in group(range(len(samples)), limit, samples.__getitem__):
        for i, answer in zip(batch, isolate([samples[i] for i in batch], model.predict), strict=True):
            if isinstance(answer, SampleError):
                raise refusal(numbers[i], str(answer))
            predictions[i] = answer
    return [predictions[i] for i in range(len(samples))]


def _time(model: Model, data: LabelledSamples, count: int) -> float:
    """Return the median milliseconds of a model for one sample; ``count``: most samples that are timed (0: 0 ms)."""
    times_ms: list[float] = []
    deadline = time.perf_counter() + TIMED_S
    for number in range(min(count, len(data))):
        start = time.perf_counter()
        model.predict([model.prepare(data.image(number, model.decoding))])
        times_ms.append((time.perf_counter() - start) * 1000)
        if time.perf_counter() > deadline:
            break
    return statistics.median(times_ms) if times_ms else 0.0


def _model_name(field: str, choice: ModelChoice) -> str:
    """Return the name of a worker's Model. Raises InvalidFieldError for a selector."""
    if not choice.name:
        raise InvalidFieldError(
            f"{field}.model.selector", choice.selector, "give a name: only GM knows what a selector finds"
        )
    return choice.name


def _calibration_of(deferral: Deferral | None) -> str:
    """Return the name of the Model with a tier's calibration; empty: it has none."""
    return deferral.calibration.name if deferral and deferral.calibration else ""


def _tier(
    name: str, field: str, model: str, deferral: Deferral | None, models: Mapping[str, Resource[ModelSpec]]
) -> EvaluatedTier:
    """Return the tier whose worker is the field ``field`` of the service. Raises InvalidFieldError and FetchError."""
    spec, path = _model_of(f"{field}.model", model, models)
    calibration = None
    if resource := models.get(_calibration_of(deferral)):
        file = file_of(in_force(resource.spec))
        calibration = file if file.is_file() else None
    return EvaluatedTier(name=name, model=model, spec=spec, path=path, deferral=deferral, calibration=calibration)


def _model_of(field: str, name: str, models: Mapping[str, Resource[ModelSpec]]) -> tuple[ModelSpec, Path]:
    """Return the spec and the file of a Model that ``field`` of a service names.

    Raises InvalidFieldError and FetchError.
    """
    if name not in models:
        raise InvalidFieldError(f"{field}.name", name, "there is no such Model in the manifests given: give its, too")
    spec = in_force(models[name].spec)
    path = file_of(spec)
    if not path.exists():
        raise InvalidFieldError(field, str(path), "there is no such file: train or download the model first")
    return spec, path


def file_of(spec: ModelSpec) -> Path:
    """Return the path of a model: of a local file itself; of a remote file or an archive, in this user's cache.

    Blocks until it is downloaded. Raises FetchError.
    """
    path = local_path(spec.url)
    if path is not None and not (format_of(spec.format) and path.is_file() and kind_of(path)):
        return path
    cache = Cache(Path(os.environ.get("HALIMEDE_HOME") or DEFAULT_HOME).expanduser() / "evaluation" / "models")
    # a separate thread: the caller's thread may run an event loop
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(_fetch_file(spec, cache))).result()


async def _fetch_file(spec: ModelSpec, cache: Cache) -> Path:
    """Return a Model's file or folder in the cache, downloaded and unpacked. Raises FetchError."""
    form = format_of(spec.format)
    fetched = await (fetch_model if form is ONNX else fetch)(spec.url, spec.sha256, cache)
    return model_file(await unpack(cache, fetched), form) if form else fetched.path
