"""Each algorithm computes what its paper defines, whatever the order in which updates arrived."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from halimede.api.aggregation import BUILT_IN, check_aggregation
from halimede.errors import InvalidFieldError
from halimede.messages import Compression
from halimede.training.aggregation import create, names
from halimede.training.error_feedback import ErrorFeedback
from halimede.training.tensor_file import decode, encode
from halimede.training.update_checks import Update, clip
from halimede.training.weights import Weights, difference, norm, specs_of

floats = st.floats(-1e3, 1e3, width=32)
deltas = st.lists(arrays.arrays(np.float32, 3, elements=floats), min_size=1, max_size=7)


def updates_of(found: list[np.ndarray], samples: int = 10) -> list[Update]:
    return [Update(f"t{i}", samples, {"w": delta}) for i, delta in enumerate(found)]


def start() -> Weights:
    return {"w": np.zeros(3, np.float32)}


def test_the_built_in_ones_are_those_that_a_spec_may_name() -> None:
    assert set(names()) == set(BUILT_IN)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
@given(found=deltas)
def test_weights_keep_their_types_and_stay_between_the_smallest_and_the_largest_update(
    name: str, found: list[np.ndarray]
) -> None:
    after = create(name, {}).aggregate(start(), updates_of(found))
    assert specs_of(after) == specs_of(start())
    assert np.isfinite(after["w"]).all()
    if name != "FedAdam":  # its step does not follow the size of the updates
        assert (after["w"] >= np.min(found, axis=0) - 1e-2).all()
        assert (after["w"] <= np.max(found, axis=0) + 1e-2).all()


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_a_tensor_without_dimensions_stays_an_array(name: str) -> None:
    """Steps of a batch normalisation are such a tensor, and its mean is one in float."""
    before: Weights = {"steps": np.array(3, np.int64), "mean": np.array(0.5, np.float32)}
    after: Weights = {"steps": np.array(5, np.int64), "mean": np.array(0.75, np.float32)}
    feedback = ErrorFeedback(Compression(dtype="float16", top_k=0.5))
    aggregation = create(name, {})
    for _ in range(2):
        content, feedback.residual = feedback.compress(difference(after, before))
        found = aggregation.aggregate(before, [Update("t0", 10, decode(content, specs_of(before)))])
        assert specs_of(found) == specs_of(before)
        assert len(encode(aggregation.state())) > 0 if aggregation.state() else True
    if name != "FedAdam":
        assert (int(found["steps"]), float(found["mean"])) == (5, 0.75)


@pytest.mark.parametrize("name", ["Median", "TrimmedMean"])
@given(
    honest=st.lists(arrays.arrays(np.float32, 3, elements=floats), min_size=4, max_size=4),
    poisoned=arrays.arrays(np.float32, 3, elements=st.floats(-(2.0**99), 2.0**99, width=32)),
)
def test_one_of_five_does_not_leave_the_range_of_the_honest_ones(
    name: str, honest: list[np.ndarray], poisoned: np.ndarray
) -> None:
    after = create(name, {}).aggregate(start(), updates_of([*honest, poisoned]))["w"]
    assert (after >= np.min(honest, axis=0) - 1e-2).all()
    assert (after <= np.max(honest, axis=0) + 1e-2).all()


def test_fedavg_weighs_by_samples_and_fedprox_as_well() -> None:
    updates = [Update("a", 1, {"w": np.float32([4, 0, 0])}), Update("b", 3, {"w": np.float32([0, 4, 0])})]
    for name in ("FedAvg", "FedProx"):
        assert create(name, {}).aggregate(start(), updates)["w"].tolist() == [1, 3, 0]


@pytest.mark.parametrize("name", ["Median", "TrimmedMean"])
def test_a_trainer_cannot_claim_a_larger_share_of_the_robust_ones(name: str) -> None:
    small, large = np.float32([1, 1, 1]), np.float32([5, 5, 5])
    updates = [Update("a", 1, {"w": small}), Update("b", 1, {"w": small}), Update("c", 10**9, {"w": large})]
    assert create(name, {}).aggregate(start(), updates)["w"].tolist() == [1, 1, 1]


def test_fedadam_makes_the_step_of_its_paper() -> None:
    adam = create("FedAdam", {"rate": "0.1", "beta1": "0.9", "beta2": "0.99", "tau": "0.001"})
    after = adam.aggregate(start(), updates_of([np.float32([1, -1, 0])]))["w"]
    second = 0.99 * 0.001**2 + 0.01
    assert after == pytest.approx(0.1 * np.array([0.1, -0.1, 0]) / (np.sqrt(second) + 0.001), rel=1e-5)


@given(st.lists(arrays.arrays(np.float32, 3, elements=floats), min_size=3, max_size=3))
def test_fedadam_continues_from_a_checkpoint_as_if_it_had_never_ended(rounds: list[np.ndarray]) -> None:
    whole, first = create("FedAdam", {}), create("FedAdam", {})
    straight = resumed = start()
    for delta in rounds:
        straight = whole.aggregate(straight, updates_of([delta]))
        resumed = first.aggregate(resumed, updates_of([delta]))
        state, first = first.state(), create("FedAdam", {})
        first.restore(state)
    assert straight["w"].tobytes() == resumed["w"].tobytes()


def test_fedprox_hands_its_term_to_the_trainers() -> None:
    assert create("FedProx", {"mu": "0.5"}).trainer_parameters() == {"mu": 0.5}
    assert create("FedAvg", {}).trainer_parameters() == {}


def test_counters_are_averaged_to_whole_numbers_and_masks_stay() -> None:
    weights = {"steps": np.array(5, np.int64), "mask": np.array([True, False])}
    delta = {"steps": np.array(3, np.int64), "mask": np.array([False, True])}
    none = {"steps": np.array(4, np.int64), "mask": np.array([False, False])}
    after = create("FedAvg", {}).aggregate(weights, [Update("a", 1, delta), Update("b", 1, none)])
    assert int(after["steps"]) in {8, 9}
    assert after["mask"].tolist() == [True, False]


@given(found=deltas, factor=st.floats(3, 1e6))
def test_a_scaled_update_is_clipped_to_twice_the_median(found: list[np.ndarray], factor: float) -> None:
    honest = updates_of([np.float32([1, 2, 2])] * max(2, len(found)))
    scaled = Update("zz", 10, {"w": np.float32([1, 2, 2]) * np.float32(factor)})
    after, clipped_ones = clip([scaled, *honest])
    assert clipped_ones == ["zz"]
    assert norm(after[-1].delta) == pytest.approx(6, rel=1e-3)
    assert [update.trainer for update in after] == sorted(update.trainer for update in after)


def test_one_of_two_cannot_raise_the_bound_for_itself() -> None:
    updates = [Update("a", 1, {"w": np.float32([1])}), Update("b", 1, {"w": np.float32([1000])})]
    after, names_of_clipped = clip(updates)
    assert names_of_clipped == ["b"]
    assert after[1].delta["w"] == pytest.approx([2])


@pytest.mark.parametrize(
    ("name", "parameters", "field", "fix"),
    [
        ("FedAverage", {}, "spec.aggregation.name", "did you mean FedAvg?"),
        ("FedProx", {"mu": "-1"}, "spec.aggregation.parameters.mu", "a number from 0 to 1e6"),
        ("FedProx", {"nu": "1"}, "spec.aggregation.parameters.nu", "use one of mu"),
        ("FedAvg", {"mu": "1"}, "spec.aggregation.parameters.mu", "the algorithm has no parameters"),
        ("FedAdam", {"beta1": "1"}, "spec.aggregation.parameters.beta1", "below 1"),
        ("FedAdam", {"rate": "nan"}, "spec.aggregation.parameters.rate", "over 0"),
        ("TrimmedMean", {"trim": "0.5"}, "spec.aggregation.parameters.trim", "below 0.5"),
    ],
)
def test_gm_and_the_aggregator_refuse_the_same_with_the_remedy(
    name: str, parameters: dict[str, str], field: str, fix: str
) -> None:
    for check in (check_aggregation, create):
        with pytest.raises(InvalidFieldError) as caught:
            check(name, parameters)
        assert caught.value.field == field
        assert fix in str(caught.value)
