"""Samples that depend on their neighbours: how long their blocks are, and that intervals hold what they promise."""

from __future__ import annotations

import numpy as np
import pytest

from halimede.calibration.blocks import block_length, shuffled_blocks
from halimede.calibration.calibrate import LEAST_BLOCKS, CalibrationResult, Goal, fit
from halimede.calibration.measurement import bootstrap, share
from tests.unit.calibration.samples import LABELS, pair, samples_of


def film(chance: np.random.Generator, scenes: int, frames: int) -> np.ndarray:
    """Return whether answers are right, for scenes of equal frames."""
    return np.repeat(chance.random(scenes) < 0.7, frames).astype(float)


def fit_film(scenes: int, frames: int, goal: Goal | None = None) -> CalibrationResult:
    """Calibrate on scenes, each of which stands still for some frames."""
    return fit_chosen(*pair(scenes), np.repeat(np.arange(scenes), frames), goal or Goal(target_upload=0.2))


def fit_chosen(edge, cloud, data, numbers: np.ndarray, goal: Goal) -> CalibrationResult:
    data = samples_of(len(numbers), truths=[data.truths[i] for i in numbers])
    edge, cloud = ([answers[i] for i in numbers] for answers in (edge, cloud))
    return fit(edge, cloud, data, goal=goal, rule="Margin", labels=LABELS)


def coverage(interval: object, scenes: int, frames: int) -> tuple[float, float]:
    """Return how often intervals contain the true share, by the blocks of the samples, and by the samples alone."""
    chance, inside = np.random.default_rng(0), []
    for _ in range(200):
        hits = film(chance, scenes, frames)
        length = block_length(hits[np.newaxis])
        ends = [interval(hits, blocks) for blocks in (np.arange(len(hits)) // length, np.arange(len(hits)))]
        inside.append([low <= 0.7 <= high for low, high in ends])
    return tuple(np.mean(inside, axis=0))


@pytest.mark.parametrize("right_share", [0.98, 0.8])
def test_independent_samples_are_blocks_of_one(right_share: float) -> None:
    chance = np.random.default_rng(0)
    lengths = [block_length(chance.random((1, 300)) < right_share) for _ in range(100)]
    assert np.mean(np.array(lengths) == 1) > 0.95


@pytest.mark.parametrize(
    "values",
    [np.ones((2, 100)), np.zeros((1, 1)), np.zeros((1, 2)), np.tile([0.0, 1.0], (1, 100))],
    ids=["equal", "one", "two", "neighbours that differ, which make no interval too narrow"],
)
def test_samples_that_show_no_dependence_are_blocks_of_one(values: np.ndarray) -> None:
    assert block_length(values) == 1


@pytest.mark.parametrize("frames", [5, 10, 20])
def test_frames_of_a_scene_are_in_a_block_of_about_as_many(frames: int) -> None:
    chance = np.random.default_rng(1)
    films = [film(chance, 2000 // frames, frames) for _ in range(10)]
    assert frames <= np.median([block_length(hits[np.newaxis]) for hits in films]) <= 5 * frames
    assert block_length(np.stack([chance.random(2000) < 0.7, films[0]])) >= frames


def test_a_class_with_more_errors_than_others_is_no_dependence() -> None:
    chance, lengths = np.random.default_rng(2), []
    classes = np.repeat(list("abcdefghij"), 45)
    for _ in range(100):
        hits = chance.random(450) > np.where(classes == "e", 0.3, 0.01)
        lengths.append(block_length(hits[np.newaxis], classes))
    assert np.mean(np.array(lengths) == 1) > 0.95
    assert block_length(hits[np.newaxis]) > 1  # the classes would be taken for scenes


def test_whole_blocks_are_shuffled() -> None:
    indices, blocks = shuffled_blocks(10, 4, seed=0)
    assert sorted(indices) == list(range(10))
    sizes = [2 if 8 in indices[blocks == block] else 4 for block in range(3)]
    assert [blocks.tolist().count(block) for block in range(3)] == sizes
    assert all((np.diff(indices[blocks == block]) == 1).all() for block in range(3))
    alone, numbers = shuffled_blocks(50, 1, seed=3)
    assert (alone.tolist(), numbers.tolist()) == (np.random.default_rng(3).permutation(50).tolist(), list(range(50)))


def test_the_interval_of_a_share_holds_for_the_frames_of_a_film() -> None:
    by_blocks, by_samples = coverage(lambda hits, blocks: share(hits, blocks)[1:], scenes=60, frames=10)
    assert by_blocks > 0.9
    assert by_samples < 0.6


@pytest.mark.slow
def test_the_bootstrap_holds_for_the_frames_of_a_film(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halimede.calibration.measurement.RESAMPLES", 200)
    by_blocks, by_samples = coverage(
        lambda hits, blocks: bootstrap(lambda drawn: float(hits[drawn].mean()), blocks), scenes=60, frames=10
    )
    assert by_blocks > 0.87
    assert by_samples < 0.6


def test_weights_and_parts_of_samples_count_in_a_share() -> None:
    value, low, high = share(np.array([1.0, 0.0, 0.5]), np.arange(3), np.array([1.0, 1.0, 2.0]))
    assert value == 0.5
    assert (low, high) == pytest.approx((0.15, 0.85), abs=0.01)  # Wilson's for 2 of 4
    assert share(np.ones(4), np.arange(4), np.zeros(4)) == (0.0, 0.0, 1.0)
    few = share(np.ones(40), np.arange(40) // 4)  # all right in 10 blocks: no more than 10 of 10 shows
    assert 0.6 < few[1] < 0.75


def test_samples_of_a_film_are_held_out_in_blocks_and_a_note_has_their_length() -> None:
    found = fit_film(scenes=80, frames=10)
    assert 10 <= found.block_length <= 800 // LEAST_BLOCKS
    assert found.held_out % found.block_length == 0 or found.held_out > 200
    (note,) = (note for note in found.notes if "frames of a film" in note)
    assert f"blocks of {found.block_length} neighbours" in note
    figures, same = found.artefact.metrics, fit_film(scenes=800, frames=1)
    assert same.block_length == 1
    width, usual = (each["edge_only.high"] - each["edge_only.low"] for each in (figures, same.artefact.metrics))
    assert width > 2 * usual


def test_a_film_of_too_few_scenes_is_noted_as_such() -> None:
    found = fit_film(scenes=15, frames=20)
    assert found.block_length == 300 // LEAST_BLOCKS
    assert any("give samples of more scenes" in note for note in found.notes)


def test_a_limit_on_the_risk_is_noted_to_need_independent_samples() -> None:
    found = fit_film(scenes=200, frames=10, goal=Goal(max_risk=0.2))
    assert any(note.startswith("--max-risk is shown for independent samples only") for note in found.notes)


def test_class_folders_which_are_sorted_by_class_have_independent_samples() -> None:
    edge, cloud, data = pair(600)
    order = np.argsort(data.truths, kind="stable")
    assert fit_chosen(edge, cloud, data, order, Goal(target_upload=0.2)).block_length == 1
