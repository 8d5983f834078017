"""IncrementalLearningJob: training on new samples in Sedna's form, translated to a TrainingModel with one trainer.

It trains once the trigger's condition holds, in the hours of its timer. The Model gets the version only if the
condition of ``deploySpec`` holds. halimede runs no inference worker for it: services that name the Model get the
version.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, ClassVar

from msgspec import Meta

from halimede.api.base import SEDNA, Spec, register
from halimede.api.deferral import HardExampleMining, ModelRef
from halimede.api.federatedlearning import trainer_code, variables
from halimede.api.jointinference import DatasetRef, Template, check_pods
from halimede.api.schema import AGE, MESSAGE, PHASE, REASON, ObjectName, PrinterColumn
from halimede.api.trainingmodel import (
    NAME_LIMIT,
    VERSION,
    AggregatorSpec,
    Hours,
    TrainerSpec,
    TrainingLimits,
    TrainingModelSpec,
    TrainingSpec,
    check_pod,
    has_own_program,
)
from halimede.errors import InvalidFieldError, check_all
from halimede.names import FIX, check_name

#: the kind's name in commands and topics
PLURAL = "incrementallearningjobs"
#: plural and short names of the kind, and its columns
NAMES = (PLURAL, "il", "incrementallearningjob")
MODEL = PrinterColumn("Model", ".spec.deploySpec.model.name", "The Model that gets a new version.")
COLUMNS = (PHASE, REASON, MODEL, VERSION, AGE, MESSAGE)
#: the metric of the training's trigger, the ending of the deployment's metrics, and the share of samples to train on
SAMPLES_METRIC, DELTA_ENDING, TRAINED_SHARE = "num_of_samples", "_delta", 0.8
#: texts of errors: what to write
SHARE_FIX = f"write {TRAINED_SHARE}: one sample of five is held out"
SAMPLES_FIX = f"write {SAMPLES_METRIC}: samples of the Dataset"
DELTA_FIX = (
    "write a metric of the trainer with _delta, such as accuracy_delta: what it gains over spec.metrics of the Model"
)
PROGRAM_FIX = "remove it, and the image: halimede trains with Perceptron, or with the class in the variable TRAINER"
#: functions of a metric's value and the threshold, by operator
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "=": operator.eq, "==": operator.eq,
}  # fmt: skip
Clock = Annotated[
    str,
    Meta(
        max_length=5,
        pattern=r"^([01]?[0-9]|2[0-4]):[0-5][0-9]$",
        description="A time of the day: 02:00.",
        extra={FIX: "use a time of the day from 00:00 to 24:00, such as 02:00"},
    ),
]


class TriggerTimer(Spec, kw_only=True):
    """The time of the day in which it trains, by the node's clock; whole hours count."""

    start: Clock
    end: Clock


class TriggerCondition(Spec, kw_only=True):
    """A metric and the value that it is compared with."""

    operator: Annotated[
        str,
        Meta(
            max_length=2,
            pattern=r"^([<>]=?|==?)$",
            description="One of > >= < <= = ==.",
            extra={FIX: "use one of > >= < <= = =="},
        ),
    ]
    threshold: Annotated[float, Meta(ge=-1e12, le=1e12, description="The value.")]
    metric: Annotated[str, Meta(min_length=1, max_length=128, description="The metric.")]

    def is_met_by(self, value: float) -> bool:
        """Whether a value of the metric satisfies the condition."""
        return COMPARISONS[self.operator](value, self.threshold)


class JobTrigger(Spec, kw_only=True):
    """When a step is done."""

    check_period_seconds: Annotated[int, Meta(ge=0, le=86_400, description="Not used: changes are seen at once.")] = 60
    timer: Annotated[TriggerTimer | None, Meta(description="Hours of the day. Default: always.")] = None
    condition: Annotated[TriggerCondition, Meta(description="What must hold.")]


class JobDataset(Spec, kw_only=True):
    """The samples to train on."""

    name: Annotated[ObjectName, Meta(description="Name of a Dataset of the same namespace.")]
    train_prob: Annotated[float, Meta(ge=0, le=1, description="Share of samples that are trained on: 0.8.")] = (
        TRAINED_SHARE
    )


class TrainStep(Spec, kw_only=True):
    """Training: the pod of the trainer, and when it begins."""

    template: Template
    trigger: Annotated[JobTrigger, Meta(description="When it trains.")]


class EvaluationStep(Spec, kw_only=True):
    """Evaluation: the pod of the worker that collects the trainer's metrics, and makes the model."""

    template: Template
    initial_eval_model: Annotated[
        ModelRef | None, Meta(description="Not used: the gain is over the metrics of the Model to deploy.")
    ] = None


class DeployedModel(Spec, kw_only=True):
    """The Model that gets the new version."""

    name: Annotated[ObjectName, Meta(description="Name of a Model of the same namespace.")]
    hot_update_enabled: Annotated[bool, Meta(description="Not used: workers change models while they run.")] = False
    poll_period_seconds: Annotated[int, Meta(ge=1, le=86_400, description="It is not used.")] = 60


class DeployStep(Spec, kw_only=True):
    """Deployment: the Model, and what the new version must gain. Its pod is not run."""

    model: Annotated[DeployedModel, Meta(description="The Model that gets the new version.")]
    trigger: Annotated[JobTrigger, Meta(description="What the new version must gain.")]
    hard_example_mining: Annotated[
        HardExampleMining | None, Meta(description="Not used: it is part of the service that names the Model.")
    ] = None
    template: Template


def check(spec: IncrementalLearningSpec) -> None:
    """Check names and pods, and refuse what is not supported. Raises InvalidFieldError."""
    deploy, train = spec.deploy_spec, spec.train_spec
    names = {"spec.dataset.name": spec.dataset.name, "spec.deploySpec.model.name": deploy.model.name}
    names |= {"spec.initialModel.name": spec.initial_model.name}
    check_all(
        *(partial(check_name, at, name) for at, name in names.items()),
        partial(check_pod, "spec.trainSpec", train.template),
        partial(check_pod, "spec.evalSpec", spec.eval_spec.template),
        partial(check_pods, "spec.deploySpec", deploy.template, None),
        partial(_check_support, spec),
    )


def _check_support(spec: IncrementalLearningSpec) -> None:
    """Refuse metrics, shares and programs that halimede cannot translate. Raises InvalidFieldError."""
    at = "spec.trainSpec.trigger.condition.metric"
    if spec.dataset.train_prob != TRAINED_SHARE:
        raise InvalidFieldError("spec.dataset.trainProb", spec.dataset.train_prob, SHARE_FIX)
    if spec.train_spec.trigger.condition.metric != SAMPLES_METRIC:
        raise InvalidFieldError(at, spec.train_spec.trigger.condition.metric, SAMPLES_FIX)
    if not spec.deploy_spec.trigger.condition.metric.endswith(DELTA_ENDING):
        field = "spec.deploySpec.trigger.condition.metric"
        raise InvalidFieldError(field, spec.deploy_spec.trigger.condition.metric, DELTA_FIX)
    for step, template in {"trainSpec": spec.train_spec.template, "evalSpec": spec.eval_spec.template}.items():
        if has_own_program(template):
            container = template["spec"]["containers"][0]
            field = "command" if container.get("command") else "image"
            raise InvalidFieldError(f"spec.{step}.template.spec.containers[0].{field}", container[field], PROGRAM_FIX)


@register(SEDNA, "IncrementalLearningJob", *NAMES, check=check, columns=COLUMNS, name_limit=NAME_LIMIT)
class IncrementalLearningSpec(TrainingSpec, kw_only=True):
    """Training on new samples as Sedna writes it: train, evaluate, and deploy what is better."""

    group: ClassVar[str] = "incremental"

    dataset: Annotated[JobDataset, Meta(description="The samples.")]
    initial_model: Annotated[ModelRef, Meta(description="A Model whose file has the first weights: a file of tensors.")]
    train_spec: Annotated[TrainStep, Meta(description="The training, and when it begins.")]
    eval_spec: Annotated[EvaluationStep, Meta(description="The evaluation of the trained model.")]
    deploy_spec: Annotated[DeployStep, Meta(description="The Model, and what a version of it must gain.")]
    credential_name: Annotated[str, Meta(max_length=253, description="It is not used.")] = ""
    output_dir: Annotated[str, Meta(max_length=4096, description="Not used: the Model gets a version.")] = ""

    def as_training(self) -> TrainingModelSpec:
        """Return the same training as a TrainingModel: one trainer, one round."""
        timer = self.train_spec.trigger.timer
        begin, end = (int(text.partition(":")[0]) for text in ((timer.start, timer.end) if timer else ("0:00", "0:00")))
        dataset, template = DatasetRef(name=self.dataset.name), self.train_spec.template
        return TrainingModelSpec(
            model=ModelRef(name=self.deploy_spec.model.name),
            trainer=trainer_code(variables(template)),
            initial=self.initial_model,
            aggregator=AggregatorSpec(template=self.eval_spec.template),
            trainers=[TrainerSpec(name="trainer0", dataset=dataset, template=template)],
            rounds=1,
            limits=TrainingLimits(hours=Hours(begin=begin, end=end)),
        )
