"""FederatedLearningJob: federated training in Sedna's form, translated to a TrainingModel.

Sedna sets rounds and parameters by variables of the containers; those that a TrainingModel has fields for are read from
there. Containers with a command of their own run it: a script that uses Sedna's SDK, which writes its model itself.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from halimede.api.aggregation import BUILT_IN
from halimede.api.base import SEDNA, Spec, convert, register
from halimede.api.deferral import ModelRef, Parameter
from halimede.api.jointinference import DatasetRef, Template
from halimede.api.mining import instead
from halimede.api.podtemplate import PodTemplate
from halimede.api.schema import AGE, MESSAGE, PHASE, REASON, PrinterColumn
from halimede.api.trainingmodel import (
    NAME_LIMIT,
    AggregationSpec,
    AggregatorSpec,
    TrainerCode,
    TrainerSpec,
    TrainingModelSpec,
    TrainingSpec,
    brings_program,
    check_pod,
)
from halimede.errors import InvalidFieldError, check_all
from halimede.messages.training import MOST_TRAINERS
from halimede.names import check_name

PLURAL = "federatedlearningjobs"
#: variables of the aggregation worker, of training workers with the parameter that each sets, and of the class
ROUNDS, ALGORITHM, ENTRY = "exit_round", "aggregation_algorithm", "trainer"
PARAMETERS = {"batch_size": "batch", "learning_rate": "rate", "epochs": "epochs"}
SAME_FIX = "give all training workers the same value"
ROUNDS_FIX = "write a whole number from 1 to 10000"


class AggregationWorker(Spec, kw_only=True):
    """The worker that makes the next weights."""

    model: Annotated[ModelRef, Meta(description="The Model that gets a new version.")]
    template: Template


class TrainingWorker(Spec, kw_only=True):
    """A worker that trains on the samples of its node."""

    dataset: Annotated[DatasetRef, Meta(description="A Dataset of its node.")]
    template: Template


class S3Transmitter(Spec, kw_only=True):
    """Sedna's exchange over S3; here updates go over the broker."""

    agg_data_path: Annotated[str, Meta(max_length=4096, description="It is not used.")] = ""
    credential_name: Annotated[str, Meta(max_length=253, description="It is not used.")] = ""


class WebSocketTransmitter(Spec, kw_only=True):
    """Sedna's exchange over WebSockets, which has no settings."""


class Transmitter(Spec, kw_only=True):
    """How Sedna exchanges updates. Here they go over the broker in any case."""

    s3: Annotated[S3Transmitter | None, Meta(description="It is not used.")] = None
    ws: Annotated[WebSocketTransmitter | None, Meta(description="It is not used.")] = None


def variables(template: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a worker's container, by their names in lower case."""
    container = convert(template, PodTemplate, "template").spec.containers[0]
    return {each.name.lower(): each.value for each in container.env}


def check(spec: FederatedLearningSpec) -> None:
    """Check what types cannot express: as for a TrainingModel, and the variables that are translated."""
    workers = {f"spec.trainingWorkers[{i}]": each for i, each in enumerate(spec.training_workers)}
    models = {"spec.aggregationWorker.model.name": spec.aggregation_worker.model}
    models |= {"spec.pretrainedModel.name": spec.pretrained_model} if spec.pretrained_model else {}
    check_all(
        partial(check_pod, "spec.aggregationWorker", spec.aggregation_worker.template),
        *(partial(check_pod, at, worker.template) for at, worker in workers.items()),
        *(partial(check_name, f"{at}.dataset.name", worker.dataset.name) for at, worker in workers.items()),
        *(partial(check_name, at, model.name) for at, model in models.items()),
    )
    _check_variables(spec)


def _check_variables(spec: FederatedLearningSpec) -> None:
    at = "spec.aggregationWorker.template.spec.containers[0].env"
    if brings_program(spec.aggregation_worker.template):
        return  # its script reads them
    told = variables(spec.aggregation_worker.template)
    if ROUNDS in told and not (told[ROUNDS].isdecimal() and 0 < int(told[ROUNDS]) <= 10_000):
        raise InvalidFieldError(f"{at}.{ROUNDS}", told[ROUNDS], ROUNDS_FIX)
    if told.get(ALGORITHM, "FedAvg") not in BUILT_IN:
        raise InvalidFieldError(f"{at}.{ALGORITHM}", told[ALGORITHM], instead(told[ALGORITHM], BUILT_IN))
    first = variables(spec.training_workers[0].template)
    for i, worker in enumerate(spec.training_workers):
        own = variables(worker.template)
        for name in (*PARAMETERS, ENTRY):
            if own.get(name) != first.get(name):
                field = f"spec.trainingWorkers[{i}].template.spec.containers[0].env.{name}"
                raise InvalidFieldError(field, own.get(name), SAME_FIX)


@register(
    SEDNA,
    "FederatedLearningJob",
    PLURAL,
    "fl",
    "federatedlearningjob",
    check=check,
    columns=(
        PHASE,
        REASON,
        PrinterColumn("Model", ".spec.aggregationWorker.model.name", "The Model that gets a new version."),
        PrinterColumn("Round", ".status.training.round", "The present round.", "integer"),
        PrinterColumn("Version", ".status.training.version", "The version that the Model got."),
        AGE,
        MESSAGE,
    ),
    name_limit=NAME_LIMIT,
)
class FederatedLearningSpec(TrainingSpec, kw_only=True):
    """Federated training as Sedna writes it: an aggregation worker, and training workers with their Datasets."""

    group: ClassVar[str] = "federated"

    aggregation_worker: Annotated[AggregationWorker, Meta(description="The worker that makes the next weights.")]
    training_workers: Annotated[
        list[TrainingWorker],
        Meta(min_length=1, max_length=MOST_TRAINERS, description="The workers that train, each with its Dataset."),
    ]
    pretrained_model: Annotated[
        ModelRef | None, Meta(description="A Model whose file has the first weights: a file of tensors.")
    ] = None
    transmitter: Annotated[Transmitter | None, Meta(description="Not used: updates go over the broker.")] = None

    def as_training(self) -> TrainingModelSpec:
        """Return the same job as a TrainingModel. Each round needs all training workers, as in Sedna."""
        told, first = variables(self.aggregation_worker.template), variables(self.training_workers[0].template)
        found = TrainingModelSpec(
            model=self.aggregation_worker.model,
            trainer=trainer_of(first),
            initial=self.pretrained_model,
            aggregator=AggregatorSpec(template=self.aggregation_worker.template),
            trainers=[
                TrainerSpec(name=f"trainer{i}", dataset=each.dataset, template=each.template)
                for i, each in enumerate(self.training_workers)
            ],
            min_clients=len(self.training_workers),
        )
        if not brings_program(self.aggregation_worker.template):
            found.aggregation = AggregationSpec(name=told.get(ALGORITHM, "FedAvg"))
            found.rounds = int(told.get(ROUNDS, found.rounds))
        return found


def trainer_of(told: dict[str, str]) -> TrainerCode:
    """Return the trainer that the variables of a training worker set."""
    given = [Parameter(key=ours, value=told[name]) for name, ours in PARAMETERS.items() if name in told]
    return TrainerCode(entry=told.get(ENTRY, "Perceptron"), parameters=given)
