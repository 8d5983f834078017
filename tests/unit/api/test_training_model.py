"""TrainingModels as users write them: one clear error for each mistake, and what their workers are told."""

from __future__ import annotations

import copy

import msgspec
import pytest

from halimede import api
from halimede.api.placement import placements, training_workers
from halimede.api.trainingmodel import job_settings, run_of
from halimede.training.settings import JobSettings
from tests.unit.api.samples import SAMPLES
from tests.unit.api.test_resources import fields_of, put, refused

TRAINING = SAMPLES["a training"]
NODE = "spec.trainers.0.template.spec.nodeName"


@pytest.mark.parametrize(
    ("path", "value", "field", "fix"),
    [
        (NODE, None, "spec.trainers[0].template.spec.nodeName", "name its node"),
        (NODE, "$NODE", "spec.trainers[0].template.spec.nodeName", "envsubst"),
        ("spec.aggregator.template.spec.nodeName", None, "spec.aggregator.template.spec.nodeName", "name its node"),
        ("spec.trainer.entry", "Perceptron", "spec.trainer.entry", "name the class in the archive"),
        ("spec.trainer.archive", None, "spec.trainer.entry", "name the Model with the file in spec.trainer.archive"),
        ("spec.aggregation.name", "FedAverage", "spec.aggregation.name", "did you mean FedAvg"),
        ("spec.aggregation.parameters.0.value", "0.7", "spec.aggregation.parameters.trim", "below 0.5"),
        ("spec.clientsPerRound", 1, "spec.clientsPerRound", "at least minClients, or 0"),
        ("spec.clientsPerRound", 3, "spec.clientsPerRound", "at most the number of trainers"),
        ("spec.target.value", float("nan"), "spec.target.value", ""),
        ("spec.target.metrics", "accuracy", "spec.target.metrics", "did you mean metric"),
        ("spec.compression.topk", 0.1, "spec.compression.topk", "did you mean topK"),
        ("spec.limits.hours.end", 30, "spec.limits.hours.end", "to 24"),
        ("spec.round", 5, "spec.round", "did you mean rounds"),
    ],
)
def test_a_mistake_is_one_error_with_its_field_and_what_to_do(path: str, value: object, field: str, fix: str) -> None:
    error = refused(put(TRAINING, path, value), api.admit)
    assert (error.field, error.further_errors) == (field, ())
    assert fix in str(error)


def test_all_mistakes_are_named_at_once() -> None:
    body = put(put(TRAINING, "spec.trainers.0.dataset", None), "spec.minClients", 9)
    assert fields_of(body) == ["spec.trainers[0]", "spec.minClients"]


def test_the_other_group_has_the_same_kind() -> None:
    other = api.parse(TRAINING | {"apiVersion": "ai.kubeedge.io/v1alpha1"})
    assert other.spec == api.parse(TRAINING).spec


def test_workers_are_told_a_job_that_they_can_read() -> None:
    spec = api.parse(TRAINING).spec
    trainers = training_workers("digits", spec)
    assert trainers == {"digits.edge0-training-edge0": "edge0", "digits.edge1-training-edge0": "edge0"}
    told = msgspec.convert(msgspec.json.decode(msgspec.json.encode(job_settings(spec, trainers))), JobSettings)
    assert (told.entry, told.parameters, told.rounds, told.seed) == ("train.py:Digits", {"rate": "0.1"}, 30, 7)
    assert (told.compression.dtype, told.compression.top_k) == ("float16", 0.125)
    assert (told.aggregation_parameters, told.limits, told.target) == ({"trim": "0.1"}, spec.limits, spec.target)


def test_only_the_aggregator_needs_the_first_weights_and_the_model_needs_no_file() -> None:
    aggregator, first, second = placements(api.parse(TRAINING).spec)
    assert aggregator.needs == {"archive": "digits-trainer", "initial": "digits-weights"}
    assert first.needs == {"archive": "digits-trainer"}
    assert aggregator.described == first.described == {"model": "digits-small"}
    assert (first.dataset, first.keeper) == ("digits-0", "")
    assert (second.dataset, second.keeper) == ("", "digits")
    assert [place.role for place in (aggregator, first, second)] == ["cloud", "edge", "edge"]


@pytest.mark.parametrize(
    ("path", "value", "anew"),
    [
        ("spec.rounds", 50, False),
        ("spec.minClients", 1, False),
        ("spec.target.value", 0.99, False),
        ("spec.limits.seconds", 5, False),
        ("spec.seed", 8, True),
        ("spec.trainer.parameters.0.value", "0.2", True),
        ("spec.aggregation", {"name": "Median"}, True),
        ("spec.initial", None, True),
        ("spec.model.name", "other", True),
    ],
)
def test_an_edit_of_what_is_trained_begins_anew_and_other_edits_continue(path: str, value: object, anew: bool) -> None:
    before, after = (api.parse(copy.deepcopy(body)).spec for body in (TRAINING, put(TRAINING, path, value)))
    assert (run_of(before) != run_of(after)) is anew


def test_the_identity_of_a_training_stays_the_same_with_another_version() -> None:
    # it is in the checkpoints of aggregators: another one would begin all trainings anew
    assert run_of(api.parse(TRAINING).spec) == "27aa13a1"
