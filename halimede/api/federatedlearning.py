"""FederatedLearningJob: federated training in Sedna's form, translated to a TrainingModel.

Sedna sets rounds and parameters by variables of the containers. halimede reads the variables for which a TrainingModel
has fields. A container with its own command runs that: a script with Sedna's SDK, which writes its model itself.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from halimede.api.aggregation import BUILT_IN
from halimede.api.base import SEDNA, Spec, convert, register
from halimede.api.deferral import ModelRef, Parameter
from halimede.api.jointinference import DatasetRef, Template
from halimede.api.mining import name_fix
from halimede.api.podtemplate import PodTemplate
from halimede.api.schema import AGE, MESSAGE, PHASE, REASON, PrinterColumn
from halimede.api.trainingmodel import (
    NAME_LIMIT,
    ROUND,
    VERSION,
    AggregationSpec,
    AggregatorSpec,
    TrainerCode,
    TrainerSpec,
    TrainingModelSpec,
    TrainingSpec,
    check_pod,
    has_own_program,
)
from halimede.errors import InvalidFieldError, check_all
from halimede.messages.training import MOST_TRAINERS
from halimede.names import check_name

#: the kind's name in commands and topics
PLURAL = "federatedlearningjobs"
#: plural and short names of the kind, and its columns
NAMES = (PLURAL, "fl", "federatedlearningjob")
MODEL = PrinterColumn("Model", ".spec.aggregationWorker.model.name", "The Model that gets a new version.")
COLUMNS = (PHASE, REASON, MODEL, ROUND, VERSION, AGE, MESSAGE)
#: variables in lower case: two of the aggregation worker, and the one of training workers that names the trainer's
#: class
ROUNDS_VARIABLE, ALGORITHM_VARIABLE, TRAINER_VARIABLE = "exit_round", "aggregation_algorithm", "trainer"
#: the parameters of the trainer's class by the variables of training workers
PARAMETERS = {"batch_size": "batch", "learning_rate": "rate", "epochs": "epochs"}
#: texts of errors: what to write
SAME_VALUE_FIX = "give all training workers the same value"
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
    """Return the variables of a worker's container, by their names in lower case.

    Raises InvalidFieldError for the template.
    """
    container = convert(template, PodTemplate, "template").spec.containers[0]
    return {variable.name.lower(): variable.value for variable in container.env}


def check(spec: FederatedLearningSpec) -> None:
    """Check pods and names as those of a TrainingModel, and the variables that are translated.

    Raises InvalidFieldError.
    """
    workers = {f"spec.trainingWorkers[{i}]": worker for i, worker in enumerate(spec.training_workers)}
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
    """Check rounds and algorithm, and that all training workers have equal parameters. Raises InvalidFieldError."""
    at = "spec.aggregationWorker.template.spec.containers[0].env"
    if has_own_program(spec.aggregation_worker.template):
        return  # the script reads its variables
    settings = variables(spec.aggregation_worker.template)
    # a missing variable is valid; ``as_training`` sets the defaults
    rounds, algorithm = settings.get(ROUNDS_VARIABLE, "1"), settings.get(ALGORITHM_VARIABLE, "FedAvg")
    if not (rounds.isdecimal() and 0 < int(rounds) <= 10_000):
        raise InvalidFieldError(f"{at}.{ROUNDS_VARIABLE}", rounds, ROUNDS_FIX)
    if algorithm not in BUILT_IN:
        raise InvalidFieldError(f"{at}.{ALGORITHM_VARIABLE}", algorithm, name_fix(algorithm, BUILT_IN))
    first = variables(spec.training_workers[0].template)
    for i, worker in enumerate(spec.training_workers):
        own = variables(worker.template)
        for name in (*PARAMETERS, TRAINER_VARIABLE):
            if own.get(name) != first.get(name):
                field = f"spec.trainingWorkers[{i}].template.spec.containers[0].env.{name}"
                raise InvalidFieldError(field, own.get(name), SAME_VALUE_FIX)


@register(SEDNA, "FederatedLearningJob", *NAMES, check=check, columns=COLUMNS, name_limit=NAME_LIMIT)
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
        training = TrainingModelSpec(
            model=self.aggregation_worker.model,
            trainer=trainer_code(variables(self.training_workers[0].template)),
            initial=self.pretrained_model,
            aggregator=AggregatorSpec(template=self.aggregation_worker.template),
            trainers=[
                TrainerSpec(name=f"trainer{i}", dataset=worker.dataset, template=worker.template)
                for i, worker in enumerate(self.training_workers)
            ],
            min_clients=len(self.training_workers),
        )
        if not has_own_program(self.aggregation_worker.template):
            settings = variables(self.aggregation_worker.template)
            training.aggregation = AggregationSpec(name=settings.get(ALGORITHM_VARIABLE, "FedAvg"))
            training.rounds = int(settings.get(ROUNDS_VARIABLE, training.rounds))
        return training


def trainer_code(settings: dict[str, str]) -> TrainerCode:
    """Return the trainer that the variables of a training worker set, Perceptron by default.

    ``settings``: the variables by their names in lower case.
    """
    parameters = [Parameter(key=key, value=settings[name]) for name, key in PARAMETERS.items() if name in settings]
    return TrainerCode(entry=settings.get(TRAINER_VARIABLE, "Perceptron"), parameters=parameters)
