"""TrainingModel: nodes train a model on their own samples, and a Model gets a new version of it.

An aggregator opens rounds, and trainers on the nodes that have samples train in them (``halimede.training``). Two
groups have the kind, ``sedna.io`` and ``ai.kubeedge.io``; GM translates the second one.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from functools import partial
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from halimede.api.aggregation import FIELD as AGGREGATION
from halimede.api.aggregation import check_aggregation
from halimede.api.base import SEDNA, KindOptions, Spec, convert, register
from halimede.api.deferral import ModelRef, Parameter
from halimede.api.inferencemodel import KUBEEDGE
from halimede.api.jointinference import DatasetRef, Template, check_pods
from halimede.api.learning_loop import LoopSettings
from halimede.api.podtemplate import OWN_IMAGE, PodTemplate
from halimede.api.schema import AGE, MESSAGE, PHASE, REASON, ObjectName, PrinterColumn, ValidationRule
from halimede.errors import InvalidFieldError, check_all
from halimede.messages import Compression, Label
from halimede.messages.base import Finite
from halimede.messages.training import MOST_TRAINERS
from halimede.names import FIX, check_label, check_name

#: the kind's name in commands and topics
PLURAL = "trainingmodels"
#: plural and short names of the kind
NAMES = (PLURAL, "tm", "trainingmodel")
#: the kind in workers' reports (``ownerKind``)
KIND = "trainingmodel"
#: most characters of its name: on Kubernetes objects are named after it and its workers, with suffixes
NAME_LIMIT = 40
#: the name of the worker that opens rounds
AGGREGATOR = "aggregator"
#: texts of errors: what to write
NAME_FIX = f"give it another name than {AGGREGATOR}"
UNIQUE_FIX = "give each trainer a different name"
SAMPLES_FIX = "give a dataset, or hardSamples, or both"
LOOP_FIX = "in a loop each trainer trains on the samples that its service keeps: name that service"
RUN_FIX = "leave it out: GM sets it in what nodes receive"
NODE_FIX = "name its node: the state of a job is there"
CLIENTS_FIX = "write at most the number of trainers"
ARCHIVE_FIX = "name the class in the archive: train.py:Digits, or module:Digits"
#: pattern of a trainer: an installed name, or a module or file and a class
CODE = r"^[A-Za-z_][A-Za-z0-9_.]*$|^[A-Za-z0-9_][A-Za-z0-9_./-]*:[A-Za-z_][A-Za-z0-9_.]*$"
#: columns of ``kubectl get``
MODEL = PrinterColumn("Model", ".spec.model.name", "The Model that gets a new version.")
ROUND = PrinterColumn("Round", ".status.training.round", "The present round.", "integer")
ROUNDS = PrinterColumn("Rounds", ".spec.rounds", "Rounds of training.", "integer")
VERSION = PrinterColumn("Version", ".status.training.version", "The version that the Model got.")
COLUMNS = (PHASE, REASON, MODEL, ROUND, ROUNDS, VERSION, AGE, MESSAGE)


class TrainingSpec(Spec, kw_only=True):
    """Base of the kinds that train. ``group``: a word in the names of their workers on nodes."""

    group: ClassVar[str]

    def as_training(self) -> TrainingModelSpec:
        """Return the same training as a TrainingModel, from which the workers are made: subclasses implement it."""
        raise NotImplementedError


class TrainerCode(Spec, kw_only=True):
    """The user's trainer: a class with ``train``, ``evaluate`` and ``export``."""

    entry: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=256,
            pattern=CODE,
            description="Perceptron, the name of an installed trainer, or module:Class or file.py:Class.",
            extra={FIX: "use Perceptron, the name of an installed trainer, or module:Class or file.py:Class"},
        ),
    ] = "Perceptron"
    archive: Annotated[
        ModelRef | None,
        Meta(description="A Model whose file has the class: a Python file, or a zip file. Default: it is installed."),
    ] = None
    parameters: Annotated[list[Parameter], Meta(max_length=64, description="Parameters of the class.")] = []


class HardSamplesRef(Spec, kw_only=True):
    """The hard samples that a service keeps on the trainer's node."""

    service: Annotated[ObjectName, Meta(description="A JointInferenceService of the same namespace.")]


class ServiceRef(Spec, kw_only=True, frozen=True):  # type: ignore[misc]  # of a frozen class
    """A service of the same namespace."""

    name: Annotated[ObjectName, Meta(description="Name of a JointInferenceService of the same namespace.")]


class AggregatorSpec(Spec, kw_only=True):
    """The worker that opens rounds and makes the next weights."""

    template: Template


class TrainerSpec(Spec, kw_only=True):
    """One trainer: its samples, and the pod that trains on them."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(f"self.name != '{AGGREGATOR}'", NAME_FIX, ".name"),
        ValidationRule("has(self.dataset) || has(self.hardSamples)", SAMPLES_FIX),
    )

    name: Annotated[Label, Meta(description="Its name within the job.")]
    dataset: Annotated[
        DatasetRef | None,
        Meta(description="A Dataset of its node; with hardSamples, the samples of the stream as it was."),
    ] = None
    hard_samples: Annotated[HardSamplesRef | None, Meta(description="Samples that a service keeps on its node.")] = None
    template: Template


class AggregationSpec(Spec, kw_only=True):
    """How updates become the next weights."""

    name: Annotated[
        str,
        Meta(
            min_length=1, max_length=64, description="The algorithm: FedAvg, FedProx, FedAdam, TrimmedMean or Median."
        ),
    ] = "FedAvg"
    parameters: Annotated[list[Parameter], Meta(max_length=32, description="Parameters of the algorithm.")] = []


class CompressionSpec(Compression, kw_only=True, frozen=True, forbid_unknown_fields=True):  # type: ignore[misc]
    """How updates and changes of the weights are encoded."""

    rules: ClassVar[tuple[ValidationRule, ...]] = ()

    top_k: Annotated[
        float,
        Meta(ge=0.001, le=1, description="Share of the values of each tensor that are sent, the largest ones; 1: all."),
    ] = 1.0


class MetricTarget(Spec, kw_only=True):
    """The metric at which training ends: at least ``value``."""

    metric: Annotated[str, Meta(min_length=1, max_length=64, description="A metric of the trainers, such as accuracy.")]
    value: Annotated[Finite, Meta(description="The value that it must reach.")]


#: a share of one core
ShareOfCore = Annotated[float, Meta(ge=0, le=1)]
#: the share of a core that is reserved for a worker of a training, unless its spec has another one
CPU_SHARE = 0.05
#: an hour of the day; 24 is its end
Hour = Annotated[int, Meta(ge=0, le=24)]


class Hours(Spec, kw_only=True):
    """The hours of the day, by the node's clock, in which it trains: from 22 to 6, for example. Equal: always."""

    begin: Annotated[Hour, Meta(description="The first hour.")] = 0
    end: Annotated[Hour, Meta(description="The hour at which training stops.")] = 0

    def contains(self, now: datetime) -> bool:
        """Whether training is allowed at a time by the node's clock."""
        if self.begin < self.end:
            return self.begin <= now.hour < self.end
        return not (self.end <= now.hour < self.begin)


class TrainingLimits(Spec, kw_only=True):
    """What one step of a trainer's code may use, beyond the needs of the process itself. Other processes go first.

    ``seconds``: of processor time on each of its ``cores``. It may take four times that by the clock.
    """

    memory_mb: Annotated[
        int, Meta(ge=16, le=1024**2, description="Memory for the samples, the trainer and its own libraries, in MiB.")
    ] = 2048
    seconds: Annotated[float, Meta(ge=0.1, le=86_400, description="Processor time of each core.")] = 600.0
    cores: Annotated[int, Meta(ge=1, le=256, description="Cores that a step may use.")] = 1
    hours: Annotated[Hours, Meta(description="Hours of the day in which the node trains. Default: always.")] = (
        msgspec.field(default_factory=Hours)
    )


class LoopRun(Spec, kw_only=True, frozen=True):  # type: ignore[misc]  # a default of a field must be frozen
    """The training of a round of the loop, in what nodes receive."""

    round: Annotated[int, Meta(ge=1, description="The number of the round.")]
    since_s: Annotated[
        float, Meta(ge=0, description="The samples since this time take part, in seconds since 1970.")
    ] = 0.0
    base: Annotated[str, Meta(max_length=256, description="The present version of the Model.")] = ""


class LoopSpec(LoopSettings, kw_only=True, frozen=True):  # type: ignore[misc]
    """The learning loop: each round trains on the samples that a service keeps, and tries the new version there."""

    service: Annotated[
        ServiceRef, Meta(description="A JointInferenceService of the same namespace that uses the Model.")
    ]
    command: Annotated[int, Meta(ge=0, description="A higher number than before starts a round at once.")] = 0
    run: Annotated[LoopRun | None, Meta(description="Set by GM in what nodes receive. Leave it out.")] = None


def admit(spec: TrainingModelSpec) -> None:
    """Refuse ``spec.loop.run``, which GM sets itself. Raises InvalidFieldError."""
    if spec.loop and spec.loop.run:
        raise InvalidFieldError("spec.loop.run", spec.loop.run.round, RUN_FIX)


def check(spec: TrainingModelSpec) -> None:
    """Check names, pods, nodes, and numbers that depend on the number of trainers.

    Raises InvalidFieldError with all errors.
    """
    names = [trainer.name for trainer in spec.trainers]
    models = {"spec.model.name": spec.model, "spec.trainer.archive.name": spec.trainer.archive}
    models |= {"spec.initial.name": spec.initial}
    check_all(
        *(partial(check_name, at, model.name) for at, model in models.items() if model),
        partial(check_pod, "spec.aggregator", spec.aggregator.template),
        *(
            partial(_check_trainer, f"spec.trainers[{i}]", trainer, names[:i])
            for i, trainer in enumerate(spec.trainers)
        ),
        partial(_check_code, spec.trainer),
        partial(check_aggregation, spec.aggregation.name, parameters(spec.aggregation.parameters), AGGREGATION),
        partial(_check_numbers, spec),
        partial(_check_loop, spec),
    )


def _check_trainer(at: str, trainer: TrainerSpec, before: list[str]) -> None:
    """Check the trainer at the path ``at``, after the trainers with the names ``before``. Raises InvalidFieldError."""
    check_all(
        partial(_check_trainer_name, at, trainer.name, before),
        partial(_check_samples, at, trainer),
        partial(check_pod, at, trainer.template),
    )


def _check_trainer_name(at: str, name: str, before: list[str]) -> None:
    """Check that a trainer's name is a label, not the aggregator's, and not that of another one."""
    check_label(f"{at}.name", name)
    if name == AGGREGATOR:
        raise InvalidFieldError(f"{at}.name", name, NAME_FIX)
    if name in before:
        raise InvalidFieldError("spec.trainers", name, UNIQUE_FIX)


def _check_samples(at: str, trainer: TrainerSpec) -> None:
    """Check that a trainer has samples, and the names of what they are in."""
    if trainer.dataset is None and trainer.hard_samples is None:
        raise InvalidFieldError(at, trainer.name, SAMPLES_FIX)
    if trainer.dataset:
        check_name(f"{at}.dataset.name", trainer.dataset.name)
    if trainer.hard_samples:
        check_name(f"{at}.hardSamples.service", trainer.hard_samples.service)


def check_pod(at: str, template: dict[str, Any]) -> None:
    """Check the pod of the worker at the path ``at``, which must name its node. Raises InvalidFieldError."""
    check_pods(at, template, None)
    if not node_of(template):
        raise InvalidFieldError(f"{at}.template.spec.nodeName", None, NODE_FIX)


def _check_code(trainer: TrainerCode) -> None:
    """Check that the trainer's class can be found: in the archive, or in an installed module."""
    if trainer.archive and ":" not in trainer.entry:
        raise InvalidFieldError("spec.trainer.entry", trainer.entry, ARCHIVE_FIX)
    if not trainer.archive and trainer.entry.partition(":")[0].endswith(".py"):
        fix = "name the Model with the file in spec.trainer.archive, or write module:Class of an installed module"
        raise InvalidFieldError("spec.trainer.entry", trainer.entry, fix)


def _check_numbers(spec: TrainingModelSpec) -> None:
    """Check that rounds do not need more trainers than there are."""
    trainers = len(spec.trainers)
    if spec.min_clients > trainers:
        raise InvalidFieldError("spec.minClients", spec.min_clients, CLIENTS_FIX)
    if spec.clients_per_round > trainers:
        raise InvalidFieldError("spec.clientsPerRound", spec.clients_per_round, f"{CLIENTS_FIX}, or 0 for all")
    if 0 < spec.clients_per_round < spec.min_clients:
        raise InvalidFieldError("spec.clientsPerRound", spec.clients_per_round, "write at least minClients, or 0")


def _check_loop(spec: TrainingModelSpec) -> None:
    """Check that in a loop each trainer trains on the samples that the loop's service keeps."""
    if spec.loop is None:
        return
    service = check_name("spec.loop.service.name", spec.loop.service.name)
    for i, trainer in enumerate(spec.trainers):
        source = trainer.hard_samples.service if trainer.hard_samples else None
        if source != service:
            raise InvalidFieldError(f"spec.trainers[{i}].hardSamples.service", source, LOOP_FIX)


def node_of(template: dict[str, Any]) -> str:
    """Return the node that a worker's pod names, empty if it names none."""
    return convert(template, PodTemplate, "template").spec.node_name


def has_own_program(template: dict[str, Any]) -> bool:
    """Whether a worker's container runs another program than halimede's worker: a command, or a foreign image's."""
    container = convert(template, PodTemplate, "template").spec.containers[0]
    return bool(container.command or (container.image and not OWN_IMAGE.fullmatch(container.image)))


def parameters(pairs: list[Parameter]) -> dict[str, str]:
    """Return the parameters of a spec by key."""
    return {pair.key: pair.value for pair in pairs}


#: the options of the kind, in both groups
OPTIONS = KindOptions(check=check, admit=admit, columns=COLUMNS, name_limit=NAME_LIMIT)


@register(SEDNA, "TrainingModel", *NAMES, **OPTIONS)
@register(KUBEEDGE, "TrainingModel", *NAMES, **OPTIONS)
class TrainingModelSpec(TrainingSpec, kw_only=True):
    """Federated training: nodes train on their own samples, and a Model gets a new version."""

    group: ClassVar[str] = "training"

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule("self.trainers.all(a, self.trainers.exists_one(b, b.name == a.name))", UNIQUE_FIX, ".trainers"),
        ValidationRule("!has(self.minClients) || self.minClients <= size(self.trainers)", CLIENTS_FIX, ".minClients"),
    )

    model: Annotated[
        ModelRef,
        Meta(description="The Model that gets a new version. Its labels and preprocess are those of the samples."),
    ]
    trainer: Annotated[TrainerCode, Meta(description="The class that trains. Default: Perceptron.")] = msgspec.field(
        default_factory=TrainerCode
    )
    initial: Annotated[
        ModelRef | None,
        Meta(description="A Model whose file has the first weights: a file of tensors. Default: the trainer's own."),
    ] = None
    aggregator: Annotated[AggregatorSpec, Meta(description="The worker that opens rounds.")]
    trainers: Annotated[
        list[TrainerSpec],
        Meta(min_length=1, max_length=MOST_TRAINERS, description="The trainers, each with its samples."),
    ]
    aggregation: Annotated[AggregationSpec, Meta(description="How updates become weights. Default: FedAvg.")] = (
        msgspec.field(default_factory=AggregationSpec)
    )
    compression: Annotated[
        CompressionSpec, Meta(description="How updates and changes of the weights are encoded. Default: unchanged.")
    ] = msgspec.field(default_factory=CompressionSpec)
    rounds: Annotated[int, Meta(ge=1, le=10_000, description="Rounds of training.")] = 20
    clients_per_round: Annotated[
        int, Meta(ge=0, le=MOST_TRAINERS, description="Trainers that are drawn for each round; 0: all.")
    ] = 0
    min_clients: Annotated[int, Meta(ge=1, le=MOST_TRAINERS, description="Updates that a round needs.")] = 1
    round_deadline_s: Annotated[
        float, Meta(ge=0.1, le=86_400, description="Seconds after which a round ends without those that are late.")
    ] = 600.0
    target: Annotated[
        MetricTarget | None, Meta(description="The metric at which training ends. Default: all rounds.")
    ] = None
    limits: Annotated[TrainingLimits, Meta(description="What one step of the trainer's code may use.")] = msgspec.field(
        default_factory=TrainingLimits
    )
    cpu_share: Annotated[
        ShareOfCore,
        Meta(
            description="Share of one core that each worker gets in a minute, also if other processes use all cores."
            " 0: it computes only when no other process needs the processor."
        ),
    ] = CPU_SHARE
    seed: Annotated[int, Meta(ge=0, le=2**53, description="The seed of the job.")] = 0
    loop: Annotated[
        LoopSpec | None,
        Meta(description="Trains again whenever a service needs it, and tries each version there. Default: once."),
    ] = None

    def as_training(self) -> TrainingModelSpec:
        """Return itself: it is a TrainingModel already."""
        return self


def run_of(spec: TrainingModelSpec) -> str:
    """Return the text that identifies a training within the life of its resource. Another run begins from the start.

    More rounds, other limits or further trainers continue a run. Another model, trainer class, first weights,
    aggregation, compression, seed or round of the loop does not.
    """
    identity = (spec.model, spec.trainer, spec.initial, spec.aggregation, spec.compression, spec.seed)
    digest = hashlib.sha256(msgspec.json.encode(identity, order="deterministic")).hexdigest()[:8]
    return f"{digest}r{spec.loop.run.round}" if spec.loop and spec.loop.run else digest


def job_settings(spec: TrainingModelSpec, trainers: dict[str, str]) -> dict[str, Any]:
    """Return the job as its workers know it, plain data for the variable TRAINING.

    ``trainers``: the node of each trainer, by the name of its worker.
    """
    loop_run = spec.loop.run if spec.loop else None
    return {
        "run": run_of(spec),
        "trainers": trainers,
        "entry": spec.trainer.entry,
        "parameters": parameters(spec.trainer.parameters),
        "aggregation": spec.aggregation.name,
        "aggregationParameters": parameters(spec.aggregation.parameters),
        "compression": {"dtype": spec.compression.dtype, "topK": spec.compression.top_k},
        "rounds": spec.rounds,
        "clientsPerRound": spec.clients_per_round,
        "minClients": spec.min_clients,
        "roundDeadlineS": spec.round_deadline_s,
        "target": spec.target,
        "limits": spec.limits,
        "seed": spec.seed,
        **({"cpuShare": spec.cpu_share} if spec.cpu_share != CPU_SHARE else {}),  # earlier workers do not know it
        **({"sinceS": loop_run.since_s, "base": loop_run.base, "compares": True} if loop_run else {}),
    }
