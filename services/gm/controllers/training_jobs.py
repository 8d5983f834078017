"""Sedna's jobs that train, federated and incremental learning: the rules of a TrainingModel, and some of their own.

The resource keeps its kind and its form also on nodes, which translate it in the same way. A TrainingModel of the same
name would use the same topics: then it trains, and the job waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from halimede.api import Resource
from halimede.api.dataset import PLURAL as DATASETS
from halimede.api.federatedlearning import PLURAL as FEDERATED
from halimede.api.incrementallearning import DELTA, IncrementalLearningSpec
from halimede.api.incrementallearning import PLURAL as INCREMENTAL
from halimede.api.model import measured
from halimede.api.neptune import native
from halimede.api.trainingmodel import PLURAL as TRAINING
from halimede.messages import Status, TrainingProgress
from halimede.names import Key
from services.gm.controllers.base import Delivery, Observed, forget, register
from services.gm.controllers.trainingmodel import DONE, TrainingModelController, model_of
from services.gm.controllers.worker_service import roles_of
from services.gm.reference_index import ReferenceEntry
from services.gm.service_status import Problem, Readiness, conclude
from services.gm.workloads.deployments import Built


@register(FEDERATED)
class FederatedLearningController(TrainingModelController):
    """The rules of federated learning jobs."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:  # noqa: ARG002
        """Return the job as a training."""
        training = native(resource)
        training = replace(training, spec=training.spec.as_training())
        rivals = [Key(plural, *training.key[1:]) for plural in (TRAINING, FEDERATED) if plural != training.key.plural]
        return ReferenceEntry(training, roles_of(training), edits=(model_of(training),), watches=tuple(rivals))

    def deliver(self, desired: Resource[Any], observed: Observed) -> Iterator[Delivery]:
        """Send it to its nodes unless it has to wait; a training that has begun goes on."""
        if self.obstacle(desired, observed):
            yield from forget(desired, replace(observed, placed={}))
        else:
            yield from super().deliver(desired, observed)

    def build(self, desired: Resource[Any], observed: Observed) -> Built | None:
        """Return the objects of its workers, in a cluster that runs pods; none while it has to wait."""
        waits = observed.pods is not None and self.obstacle(desired, observed)
        return Built() if waits else super().build(desired, observed)

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Return the progress, or what it waits for."""
        status = super().status(desired, observed, built)
        obstacle = self.obstacle(desired, observed)
        if obstacle is None:
            return status
        verdict = Readiness("Pending", obstacle.reason, obstacle.message)
        generation = (observed.original or desired).metadata.generation
        return conclude(status, verdict, observed.status, generation, observed.now)

    def obstacle(self, desired: Resource[Any], observed: Observed) -> Problem | None:
        """Return why its workers must not run now."""
        for key, reports in observed.watched.items():
            if reports is not None and key.plural in {TRAINING, FEDERATED} and key.plural != desired.key.plural:
                return Problem("NameConflict", f"{key} uses the same topics: delete one of the two")
        return None


@register(INCREMENTAL)
class IncrementalLearningController(FederatedLearningController):
    """The rules of incremental learning jobs: when they train, and what a version must gain."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:
        """Return the job as a training; its Dataset decides when it begins."""
        training_entry = super().entry(resource, status)
        return replace(training_entry, watches=(*training_entry.watches, _dataset_of(resource)))

    def obstacle(self, desired: Resource[Any], observed: Observed) -> Problem | None:
        """Return why its workers must not run now: also that there are too few samples for a training to begin."""
        conflict = super().obstacle(desired, observed)
        if conflict or observed.original is None or _has_begun(observed):
            return conflict
        original: Resource[IncrementalLearningSpec] = observed.original
        key, condition = _dataset_of(original), original.spec.train_spec.trigger.condition
        reports = (observed.watched.get(key) or {}).values()
        samples = next((report.status.dataset.number_of_samples for report in reports if report.status.dataset), None)
        if samples is None:
            return None  # the rules of a training say what the Dataset lacks
        if condition.holds(samples):
            return None
        text = f"{key} has {samples} samples: it trains when they are {condition.operator} {condition.threshold:g}"
        return Problem("TooFewSamples", text)

    def withheld(self, desired: Resource[Any], observed: Observed, progress: TrainingProgress) -> str:
        """Return why the Model does not get the version: it gains too little over the Model's own metric."""
        original, model = observed.original, observed.edited.get(model_of(desired))
        if original is None or model is None:
            return ""
        condition = original.spec.deploy_spec.trigger.condition
        metric = condition.metric.removesuffix(DELTA)
        if metric not in progress.metrics:
            metrics = ", ".join(sorted(progress.metrics)) or "none"
            return f"the trainer has no metric {metric} for {condition.metric}: it has {metrics}"
        gain = progress.metrics[metric] - (measured(model.resource.spec, metric) or 0.0)
        if condition.holds(gain):
            return ""
        return f"{condition.metric} is {gain:.4g}, and must be {condition.operator} {condition.threshold:g}"


def _dataset_of(job: Resource[IncrementalLearningSpec]) -> Key:
    return Key(DATASETS, job.metadata.namespace, job.spec.dataset.name)


def _has_begun(observed: Observed) -> bool:
    """Whether the training of this generation has begun, or is done."""
    before = observed.status
    if before is None or before.training is None:
        return False
    same = observed.original is not None and before.observed_generation == observed.original.metadata.generation
    return same and (before.training.round > 0 or before.training.state == DONE)
