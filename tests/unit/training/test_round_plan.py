"""Which update counts, whom a round invites, and when it ends."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.api.trainingmodel import MetricTarget
from halimede.messages import TensorFile, TrainerState, TrainingRound
from halimede.training.round_plan import (
    AcceptedUpdate,
    Round,
    UpdateVerdict,
    candidates,
    invite,
    is_same_round,
    is_superseded,
    is_target_reached,
    mean_metrics,
    round_seed,
    sample_shape,
    trainer_weights,
    update_identity,
)

JOB = "u-1"
FILE = TensorFile(digest="0" * 64, size=100)


def plan(**changes: object) -> Round:
    told = {"job": JOB, "epoch": 2, "number": 5, "invited": ("a", "b", "c"), "until": 60.0, "most_bytes": 1000}
    return Round(**{**told, **changes})  # type: ignore[arg-type]


def accepted(*trainers: str) -> dict[str, AcceptedUpdate]:
    return dict.fromkeys(trainers, AcceptedUpdate(state(), {}))


def state(**changes: object) -> TrainerState:
    told = {"job": JOB, "life": "1", "samples": 10, "epoch": 2, "number": 5, "update": FILE, "shape": [64]}
    return TrainerState(**{**told, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, UpdateVerdict.FETCH),
        ({"job": "u-0"}, UpdateVerdict.NOTHING),
        ({"number": 4}, UpdateVerdict.LATE),
        ({"number": 4, "update": None}, UpdateVerdict.NOTHING),
        ({"number": 6}, UpdateVerdict.UNKNOWN_ROUND),
        ({"epoch": 3}, UpdateVerdict.UNKNOWN_ROUND),
        ({"epoch": 1}, UpdateVerdict.NOTHING),
        ({"epoch": 1, "number": 4}, UpdateVerdict.LATE),
        ({"update": None}, UpdateVerdict.NOTHING),
        ({"update": TensorFile(digest="0" * 64, size=1001)}, UpdateVerdict.TOO_LARGE),
        ({"update": TensorFile(digest="0" * 64, size=1000)}, UpdateVerdict.FETCH),
        ({"epoch": 3, "number": 4}, UpdateVerdict.LATE),
        ({"epoch": 1, "number": 6}, UpdateVerdict.UNKNOWN_ROUND),
        ({"reason": "OutOfMemory", "update": None}, UpdateVerdict.DECLINED),
        ({"reason": "DatasetEmpty", "number": 0, "epoch": 0, "update": None}, UpdateVerdict.DECLINED),
        ({"number": 0, "epoch": 0, "update": None}, UpdateVerdict.NOTHING),
    ],
)
def test_an_update_counts_only_for_the_open_round(changes: dict[str, object], verdict: UpdateVerdict) -> None:
    assert plan().judge("a", state(**changes)) is verdict


def test_an_update_of_somebody_who_was_not_invited_does_not_count() -> None:
    assert plan().judge("z", state()) is UpdateVerdict.NOT_INVITED


def test_who_cannot_take_part_declines_once_and_only_if_invited() -> None:
    cannot = state(reason="DatasetEmpty", number=0, epoch=0, update=None)
    assert plan().judge("z", cannot) is UpdateVerdict.NOTHING
    assert plan(accepted=accepted("a")).judge("a", cannot) is UpdateVerdict.NOTHING
    assert plan(refused={"a": "Shape"}).judge("a", cannot) is UpdateVerdict.NOTHING


def test_a_second_update_of_a_trainer_does_not_count() -> None:
    assert plan(accepted=accepted("a")).judge("a", state()) is UpdateVerdict.REPEATED
    assert plan(refused={"a": "NotFinite"}).judge("a", state()) is UpdateVerdict.REPEATED


def test_the_update_that_counted_in_the_last_round_is_not_late() -> None:
    assert plan(counted=frozenset("a")).judge("a", state(number=4)) is UpdateVerdict.NOTHING
    assert plan(counted=frozenset("a")).judge("a", state(number=3)) is UpdateVerdict.LATE


def test_in_the_last_round_an_evaluation_is_enough() -> None:
    assert plan(only_evaluate=True).judge("a", state(update=None)) is UpdateVerdict.EVALUATED


def test_a_round_ends_when_all_are_done_or_at_its_deadline() -> None:
    assert not plan(accepted=accepted("a"), refused={"b": "Shape"}).is_over(59.0)
    assert plan(accepted=accepted("a", "c"), refused={"b": "Shape"}).is_over(0.0)
    assert plan().is_over(60.0)
    assert plan().is_over(61.0)
    assert not plan().is_over(59.0)
    assert plan(invited=("a", "b"), accepted=accepted("a"), refused={"b": "Shape"}).is_over(0.0)


def test_who_failed_in_a_round_may_take_part_in_the_next_and_who_cannot_may_not() -> None:
    states = {
        "a": state(),
        "b": state(reason="OutOfMemory"),
        "c": state(reason="DatasetEmpty", number=0),
        "d": state(samples=0),
        "e": state(shape=[32]),
        "g": state(shape=[128]),
        "f": state(job="u-0"),
    }
    assert candidates(states, JOB, [64]) == ["a", "b"]


def test_most_trainers_decide_about_the_shape_of_samples() -> None:
    assert sample_shape({"a": state(shape=[8]), "b": state(), "c": state()}, JOB) == [64]
    assert sample_shape({"a": state(shape=[8]), "b": state()}, JOB) == [8]
    assert sample_shape({"a": state(shape=[8], job="u-0"), "b": state(shape=[9], samples=0), "c": state()}, JOB) == [64]
    assert sample_shape({"a": state(samples=0)}, JOB) == sample_shape({"a": state(job="u-0")}, JOB) == []
    assert sample_shape({}, JOB) == []


@given(st.sets(st.text("abcdef", min_size=1, max_size=3), max_size=9), st.integers(0, 12), st.integers(0, 2**32 - 1))
def test_the_same_seed_invites_the_same_trainers(names: set[str], number: int, seed: int) -> None:
    invited = invite(sorted(names), number, seed)
    assert invited == invite(sorted(names, reverse=True), number, seed) == tuple(sorted(invited))
    assert set(invited) <= names
    assert len(invited) == (min(number, len(names)) if number else len(names))


def test_a_claimed_number_of_samples_has_a_bounded_weight() -> None:
    assert trainer_weights({"a": 100, "b": 120, "c": 10**15}) == {"a": 100, "b": 120, "c": 1200}
    assert trainer_weights({"a": 0, "b": 1, "c": 1}) == {"a": 1, "b": 1, "c": 1}


def test_metrics_are_weighed_by_held_out_samples() -> None:
    states = {
        "a": state(held_out=30, evaluation={"accuracy": 1.0, "loss": 0.0}),
        "b": state(held_out=10, evaluation={"accuracy": 0.0}),
        "c": state(held_out=0, evaluation={"accuracy": 0.0}),
    }
    assert mean_metrics(states) == {"accuracy": 0.75}
    assert mean_metrics({"c": states["c"]}) == {}
    assert mean_metrics({"a": states["a"], "d": state(held_out=30, evaluation={})}) == {"accuracy": 1.0, "loss": 0.0}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"epoch": 3},
        {"number": 6},
        {"reason": "OutOfMemory"},
        {"update": None},
        {"update": TensorFile(digest="1" * 64, size=100)},
    ],
)
def test_a_state_is_another_one_if_its_round_update_or_reason_changed(changes: dict[str, object]) -> None:
    assert (update_identity(state(**changes)) == update_identity(state(samples=9))) is (not changes)


@pytest.mark.parametrize("weights", [None, FILE], ids=["without weights", "with weights"])
def test_the_round_of_a_restarted_aggregator_is_the_same_work(weights: TensorFile | None) -> None:
    body = TrainingRound(job=JOB, epoch=1, number=3, source="agg", weights=weights, seed=7)
    assert is_same_round(body, msgspec.structs.replace(body, epoch=2, received=["a"]))
    other = TensorFile(digest="1" * 64, size=9)
    for changes in ({"seed": 8}, {"number": 4}, {"weights": other}, {"only_evaluate": True}):
        assert not is_same_round(body, msgspec.structs.replace(body, **changes))


@pytest.mark.parametrize(
    ("metrics", "reached"),
    [
        ({"accuracy": 0.9}, True),
        ({"accuracy": 0.95, "loss": 3.0}, True),
        ({"accuracy": 0.8999}, False),
        ({"loss": 5.0}, False),
        ({}, False),
    ],
)
def test_a_job_ends_at_its_target_and_not_by_a_metric_that_nobody_reports(
    metrics: dict[str, float], reached: bool
) -> None:
    assert is_target_reached(MetricTarget(metric="accuracy", value=0.9), metrics) is reached
    assert not is_target_reached(None, metrics)


@pytest.mark.parametrize(("received", "enough"), [("", False), ("a", False), ("ab", True), ("abc", True)])
def test_a_round_counts_from_the_least_number_of_updates_on(received: str, enough: bool) -> None:
    assert plan(accepted=accepted(*received), refused={"d": "Diverged"}).has_enough(2) is enough


TRAINS = TrainingRound(job=JOB, source="a", epoch=2, number=5, state="open")
COMPARES = msgspec.structs.replace(TRAINS, state="done", model=FILE)


@pytest.mark.parametrize(
    ("body", "changes", "superseded"),
    [
        (TRAINS, {}, False),
        (TRAINS, {"number": 6}, True),
        (TRAINS, {"epoch": 3}, True),
        (TRAINS, {"state": "done"}, True),
        (TRAINS, {"seed": 9}, False),
        (COMPARES, {}, False),
        (COMPARES, {"epoch": 3}, False),
        (COMPARES, {"model": None}, True),
        (COMPARES, {"model": TensorFile(digest="1" * 64, size=9)}, True),
    ],
)
def test_a_trainer_leaves_its_work_when_another_round_or_model_is_published(
    body: TrainingRound, changes: dict[str, object], superseded: bool
) -> None:
    assert is_superseded(body, msgspec.structs.replace(body, **changes)) is superseded
    assert not is_superseded(body, None)


def test_the_seed_of_a_round_is_the_same_in_each_version() -> None:
    assert [round_seed(7, number) for number in (1, 2, 64)] == [7_000_022, 7_000_023, 7_000_085]
    assert round_seed(2**32 - 1, 5) == ((2**32 - 1) * 1_000_003 + 5) % 2**32 < 2**32
