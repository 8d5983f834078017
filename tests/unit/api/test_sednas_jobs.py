"""Sedna's federated and incremental learning jobs: read as Sedna writes them, and what training they are."""

from __future__ import annotations

from typing import Any

import pytest

from halimede import api
from halimede.api.placement import placements
from tests.unit.api.samples import SAMPLES
from tests.unit.api.test_resources import put, refused

FEDERATED, INCREMENTAL = SAMPLES["a federated job of Sedna's"], SAMPLES["an incremental job of Sedna's"]
ENV = "template.spec.containers.0.env"


def names(body: dict[str, Any]) -> list[str]:
    resource = api.parse(body)
    return [place.on(resource.metadata.name, place.pod.node_name) for place in placements(resource.spec)]


def test_a_federated_job_is_a_training_with_the_rounds_and_parameters_of_its_variables() -> None:
    training = api.parse(FEDERATED).spec.as_training()
    assert (training.model.name, training.initial.name, training.rounds) == ("defects", "first-weights", 3)
    assert training.min_clients == 2
    parameters = {parameter.key: parameter.value for parameter in training.trainer.parameters}
    assert parameters == {"batch": "16", "rate": "0.05", "epochs": "2"}
    assert [trainer.dataset.name for trainer in training.trainers] == ["defects-0", "defects-1"]


def test_an_incremental_job_is_a_training_of_one_trainer_in_the_hours_of_its_timer() -> None:
    training = api.parse(INCREMENTAL).spec.as_training()
    assert (training.model.name, training.initial.name, training.rounds) == ("helmets", "first-weights", 1)
    assert (training.limits.hours.begin, training.limits.hours.end) == (2, 24)
    assert [trainer.dataset.name for trainer in training.trainers] == ["helmets"]


def test_workers_of_the_three_kinds_have_different_names() -> None:
    assert names(FEDERATED)[:2] == ["defects.aggregator-federated-cloud0", "defects.trainer0-federated-edge0"]
    assert names(INCREMENTAL) == ["helmets.aggregator-incremental-edge0", "helmets.trainer0-incremental-edge0"]


def test_a_script_of_sedna_reads_its_variables_itself() -> None:
    scripted = put(FEDERATED, "spec.aggregationWorker.template.spec.containers.0.command", ["python", "aggregate.py"])
    scripted = put(scripted, "spec.aggregationWorker.template.spec.containers.0.env.0.value", "until it is good")
    assert api.parse(scripted).spec.as_training().rounds == 20


@pytest.mark.parametrize(
    ("body", "path", "value", "field", "fix"),
    [
        (FEDERATED, f"spec.aggregationWorker.{ENV}.0.value", "many", "exit_round", "whole number"),
        (
            FEDERATED, f"spec.aggregationWorker.{ENV}.0", {"name": "aggregation_algorithm", "value": "mistnet"},
            "aggregation_algorithm", "FedAvg",
        ),
        (FEDERATED, f"spec.trainingWorkers.1.{ENV}.0.value", "8", "batch_size", "the same value"),
        (FEDERATED, "spec.trainingWorkers.1.template.spec.nodeName", None, "nodeName", "name its node"),
        (FEDERATED, "spec.trainingWorker", [], "trainingWorker", "did you mean trainingWorkers"),
        (INCREMENTAL, "spec.dataset.trainProb", 0.5, "trainProb", "write 0.8"),
        (INCREMENTAL, "spec.trainSpec.trigger.condition.metric", "age", "metric", "num_of_samples"),
        (INCREMENTAL, "spec.deploySpec.trigger.condition.metric", "precision", "metric", "accuracy_delta"),
        (INCREMENTAL, "spec.trainSpec.template.spec.containers.0.image", "sedna/il:v1", "image", "TRAINER"),
        (INCREMENTAL, "spec.trainSpec.template.spec.nodeName", "$WORKER_NODE", "nodeName", "envsubst"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_error_that_says_what_to_do(
    body: dict[str, Any], path: str, value: object, field: str, fix: str
) -> None:
    error = refused(put(body, path, value))
    assert error.field.endswith(field)
    assert fix in str(error)
