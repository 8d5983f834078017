"""The controllers of Sedna's jobs that train: federated and incremental learning, with the rules of a TrainingModel.

The resource keeps its kind and its form on nodes too, which translate it in the same way. Trainings of the same name in
several kinds would use the same topics: then a job waits while there is a TrainingModel of its name, and an incremental
one also while there is a federated one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from halimede.api import Resource
from halimede.api.dataset import PLURAL as DATASETS
from halimede.api.federatedlearning import PLURAL as FEDERATED
from halimede.api.incrementallearning import DELTA_ENDING, IncrementalLearningSpec
from halimede.api.incrementallearning import PLURAL as INCREMENTAL
from halimede.api.model import metric_value
from halimede.api.neptune import native
from halimede.api.trainingmodel import PLURAL as TRAINING
from halimede.messages import Status, TrainingProgress
from halimede.names import Key
from services.gm.controllers.base import NodeAction, Observed, forget, register
from services.gm.controllers.trainingmodel import DONE, TrainingModelController, model_of
from services.gm.controllers.worker_service import roles_of
from services.gm.reference_index import ReferenceEntry
from services.gm.service_status import Problem, Readiness, conclude
from services.gm.workloads.deployments import Built


@register(FEDERATED)
class FederatedLearningController(TrainingModelController):
    """The ``Controller`` of federated learning jobs: several nodes train one model together."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:  # noqa: ARG002
        """Return the job as a training, which watches resources of its name in another kind that trains."""
        training = native(resource)
        training = replace(training, spec=training.spec.as_training())
        rivals = [Key(plural, *training.key[1:]) for plural in (TRAINING, FEDERATED) if plural != training.key.plural]
        return ReferenceEntry(training, roles_of(training), edits=(model_of(training),), watches=tuple(rivals))

    def node_actions(self, desired: Resource[Any], observed: Observed) -> Iterator[NodeAction]:
        """Send the job to its nodes; while it has to wait (``obstacle``), they drop it."""
        if self.obstacle(desired, observed):
            yield from forget(desired, replace(observed, placed={}))
        else:
            yield from super().node_actions(desired, observed)

    def build(self, desired: Resource[Any], observed: Observed) -> Built | None:
        """Return the objects of its workers, none of them while it has to wait; None: nodes run the workers."""
        waits = observed.workload is not None and self.obstacle(desired, observed)
        return Built() if waits else super().build(desired, observed)

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Return the progress of the training, or what it waits for."""
        status = super().status(desired, observed, built)
        obstacle = self.obstacle(desired, observed)
        if obstacle is None:
            return status
        verdict = Readiness("Pending", obstacle.reason, obstacle.message)
        generation = (observed.original or desired).metadata.generation
        return conclude(status, verdict, observed.status, generation, observed.now)

    def obstacle(self, desired: Resource[Any], observed: Observed) -> Problem | None:
        """Return why its workers must not run now; None: they may."""
        for key, reports in observed.watched.items():
            if reports is not None and key.plural in {TRAINING, FEDERATED} and key.plural != desired.key.plural:
                return Problem("NameConflict", f"{key} uses the same topics: delete one of the two")
        return None


@register(INCREMENTAL)
class IncrementalLearningController(FederatedLearningController):
    """The ``Controller`` of incremental learning jobs, which have conditions for a training and for a new version."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:
        """Return the job as a training; its Dataset decides when it begins."""
        training_entry = super().entry(resource, status)
        return replace(training_entry, watches=(*training_entry.watches, _dataset_of(resource)))

    def obstacle(self, desired: Resource[Any], observed: Observed) -> Problem | None:
        """Return why its workers must not run now; before the training begins, also that there are too few samples."""
        conflict = super().obstacle(desired, observed)
        if conflict or observed.original is None or _has_begun(observed):
            return conflict
        original: Resource[IncrementalLearningSpec] = observed.original
        key, condition = _dataset_of(original), original.spec.train_spec.trigger.condition
        reports = (observed.watched.get(key) or {}).values()
        samples = next((report.status.dataset.number_of_samples for report in reports if report.status.dataset), None)
        if samples is None:
            return None  # the rules of a training say what the Dataset lacks
        if condition.is_met_by(samples):
            return None
        text = f"{key} has {samples} samples: it trains when they are {condition.operator} {condition.threshold:g}"
        return Problem("TooFewSamples", text)

    def withheld(self, desired: Resource[Any], observed: Observed, progress: TrainingProgress) -> str:
        """Return why the Model does not get the trained version, such as too small a gain; empty: it gets it.

        The gain is over the Model's own metric; a Model without that metric counts as 0.
        """
        original, model = observed.original, observed.edited.get(model_of(desired))
        if original is None or model is None:
            return ""
        condition = original.spec.deploy_spec.trigger.condition
        metric = condition.metric.removesuffix(DELTA_ENDING)
        if metric not in progress.metrics:
            metrics = ", ".join(sorted(progress.metrics)) or "none"
            return f"the trainer has no metric {metric} for {condition.metric}: it has {metrics}"
        gain = progress.metrics[metric] - (metric_value(model.resource.spec, metric) or 0.0)
        if condition.is_met_by(gain):
            return ""
        return f"{condition.metric} is {gain:.4g}, and must be {condition.operator} {condition.threshold:g}"


def _dataset_of(job: Resource[IncrementalLearningSpec]) -> Key:
    """Return the key of the Dataset that a job trains on."""
    return Key(DATASETS, job.metadata.namespace, job.spec.dataset.name)


def _has_begun(observed: Observed) -> bool:
    """Whether the training of this generation has begun, or is done."""
    before = observed.status
    if before is None or before.training is None:
        return False
    same = observed.original is not None and before.observed_generation == observed.original.metadata.generation
    return same and (before.training.round > 0 or before.training.state == DONE)
