"""Samples that depend on their neighbours: how long their blocks are, and that intervals hold what they promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from halimede.calibration.blocks import block_length, shuffled_blocks
from halimede.calibration.calibrate import LEAST_BLOCKS, Calibrated, Goal, fit
from halimede.calibration.measurement import bootstrap, share
from halimede.evaluation.quality import right
from tests.unit.calibration.samples import LABELS, pair


def film(chance: np.random.Generator, scenes: int, frames: int) -> np.ndarray:
    """Return whether answers are right, for scenes of equal frames."""
    return np.repeat(chance.random(scenes) < 0.7, frames).astype(float)


def fit_film(scenes: int, frames: int, goal: Goal | None = None) -> Calibrated:
    """Calibrate on scenes, each of which stands still for some frames."""
    edge, cloud, data = pair(scenes)
    numbers = np.repeat(np.arange(scenes), frames)
    data = replace(
        data, **{name: [getattr(data, name)[i] for i in numbers] for name in ("images", "names", "sizes", "truths")}
    )
    edge, cloud = ([answers[i] for i in numbers] for answers in (edge, cloud))
    return fit(edge, cloud, data, goal=goal or Goal(target_upload=0.2), rule="Margin", labels=LABELS)


def coverage(interval: object, scenes: int, frames: int) -> tuple[float, float]:
    """Return how often intervals contain the true share, by the blocks of the samples, and by the samples alone."""
    chance, inside = np.random.default_rng(0), []
    for _ in range(200):
        hits = film(chance, scenes, frames)
        length = block_length([hits])
        ends = [interval(hits, blocks) for blocks in (np.arange(len(hits)) // length, np.arange(len(hits)))]
        inside.append([low <= 0.7 <= high for low, high in ends])
    return tuple(np.mean(inside, axis=0))


def test_independent_samples_are_blocks_of_one() -> None:
    chance = np.random.default_rng(0)
    lengths = [block_length([chance.random(300) < 0.8]) for _ in range(200)]
    assert np.mean(np.array(lengths) == 1) > 0.97
    assert block_length([np.ones(100)]) == block_length([np.zeros(2)]) == block_length([]) == 1
    assert block_length([np.tile([0.0, 1.0], 100)]) == 1  # neighbours that differ make no interval too narrow


@pytest.mark.parametrize("frames", [5, 10, 20])
def test_frames_of_a_scene_are_in_a_block_of_about_as_many(frames: int) -> None:
    chance = np.random.default_rng(1)
    lengths = [block_length([film(chance, 2000 // frames, frames)]) for _ in range(20)]
    assert frames <= np.median(lengths) <= 5 * frames
    independent = chance.random(2000) < 0.7
    assert block_length([independent, film(chance, 2000 // frames, frames)]) >= frames


def test_whole_blocks_are_shuffled() -> None:
    indices, blocks = shuffled_blocks(10, 4, seed=0)
    assert sorted(indices) == list(range(10))
    assert [blocks.tolist().count(block) for block in range(3)] == [
        2 if 8 in indices[blocks == block] else 4 for block in range(3)
    ]
    assert all((np.diff(indices[blocks == block]) == 1).all() for block in range(3))
    alone, numbers = shuffled_blocks(50, 1, seed=3)
    assert (alone.tolist(), numbers.tolist()) == (np.random.default_rng(3).permutation(50).tolist(), list(range(50)))


def test_the_interval_of_a_share_holds_for_the_frames_of_a_film() -> None:
    by_blocks, by_samples = coverage(lambda hits, blocks: share(hits, blocks)[1:], scenes=60, frames=10)
    assert by_blocks > 0.9
    assert by_samples < 0.6


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
    figures, same = found.artefact.figures, fit_film(scenes=800, frames=1)
    assert same.block_length == 1
    width, usual = (each["edge_only.high"] - each["edge_only.low"] for each in (figures, same.artefact.figures))
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
    data = replace(data, truths=[data.truths[i] for i in order])
    edge, cloud = ([answers[i] for i in order] for answers in (edge, cloud))
    assert block_length([right(data.truths, edge)]) > 1
    assert fit(edge, cloud, data, goal=Goal(target_upload=0.2), rule="Margin", labels=LABELS).block_length == 1
