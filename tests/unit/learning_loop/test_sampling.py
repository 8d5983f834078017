"""Sampling: the training set resembles the stream, and no group is on both sides of the split."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.learning_loop.sampling import LabelledSample, Strata, is_held_out, resample_indices, split, weights


def sample(i: int, *, hard: bool, group: str = "") -> LabelledSample:
    return LabelledSample(id=str(i), label=str(i % 10), stratum="hard" if hard else "easy", group=group)


STREAM: Strata = {("", "hard"): 400, ("", "easy"): 1600}
SAMPLES = [sample(i, hard=i < 400, group=f"cam0 {i // 5}") for i in range(440)]


def test_hard_samples_that_the_full_store_removed_are_accounted_for() -> None:
    kept = [*SAMPLES[:40], *SAMPLES[400:]]
    assert set(weights(STREAM, kept)) == {10.0, 40.0}


def test_periods_with_other_shares_of_audits_have_weights_of_their_own() -> None:
    early = [msgspec.structs.replace(each, period="1") for each in SAMPLES[400:410]]
    late = [msgspec.structs.replace(each, period="2") for each in SAMPLES[410:]]
    assert weights({("1", "easy"): 1000, ("2", "easy"): 300}, [*early, *late]) == [100.0] * 10 + [10.0] * 30


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=40), st.integers(1, 300), st.integers())
def test_each_sample_is_repeated_within_one_of_its_share(of: list[float], size: int, seed: int) -> None:
    found = Counter(resample_indices(of, size, seed))
    assert found.total() == size
    for index, weight in enumerate(of):
        assert abs(found[index] - size * weight / sum(of)) <= 1 + 1e-6


def test_a_sample_without_weight_is_never_drawn_and_keeps_no_other_one_from_it() -> None:
    assert resample_indices([0.0, 1.0, 0.0, 3.0, 0.0], 8, 0) == [1, 1, 3, 3, 3, 3, 3, 3]
    assert resample_indices([0.0, 1.0], 3, 1) == [1, 1, 1]
    assert resample_indices([], 10, 0) == resample_indices([0.0], 10, 0) == []


@given(st.text(max_size=20))
def test_all_or_none_are_held_out_at_the_ends(group: str) -> None:
    assert is_held_out(group, 1.0)
    assert not is_held_out(group, 0.0)


def test_the_same_groups_are_held_out_on_every_node_and_in_every_version() -> None:
    assert [i for i in range(40) if is_held_out(f"cam0 {i}", 0.3)] == [2, 5, 8, 10, 11, 16, 18, 20, 23, 34, 35, 36, 37]
    assert sum(is_held_out(str(i), 0.3) for i in range(20_000)) / 20_000 == pytest.approx(0.3, abs=0.015)


def test_a_sample_without_a_group_is_a_group_of_its_own() -> None:
    samples = [sample(i, hard=True) for i in range(200)]
    found = split(samples, {("", "hard"): 200}, size=50, seed=1)
    assert {each.id for each in found.held_out} == {str(i) for i in range(200) if is_held_out(str(i), 0.3)}
    assert not {each.id for each in found.held_out} & set(found.training)


def test_a_sample_stands_for_itself_at_least() -> None:
    assert weights({("", "hard"): 5}, SAMPLES[:10]) == [1.0] * 10
    assert weights({}, SAMPLES[:3]) == [1.0] * 3


def test_neighbouring_frames_are_on_one_side_and_the_share_is_of_groups() -> None:
    samples = [sample(i, hard=True, group=f"cam{i % 2} {i // 20}") for i in range(4000)]
    found = split(samples, {("", "hard"): 4000}, size=4000, seed=3, share=0.5)
    judged = {each.group for each in found.held_out}
    assert {each.id for each in samples if each.group in judged} == {each.id for each in found.held_out}
    assert set(found.training) == {each.id for each in samples if each.group not in judged}
    assert found.distinct == len(set(found.training)) == 4000 - len(found.held_out)
    assert 0.4 < len(judged) / 400 < 0.6


def test_a_draw_depends_on_its_seed_alone() -> None:
    of = [1.0, 2.0, 3.0, 4.0] * 25
    assert resample_indices(of, 10, 7) == resample_indices(of, 10, 7)
    assert len({tuple(resample_indices(of, 10, seed)) for seed in range(20)}) > 5
    assert resample_indices([1.0, 1.0], -1, 0) == resample_indices([1.0, 1.0], 0, 0) == []
    assert sorted(resample_indices([1.0] * 50, 50, 3)) == list(range(50))
