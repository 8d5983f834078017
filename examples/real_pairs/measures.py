"""How good answers are: of boxes F1 and mAP, of texts exact matches and wrong characters, with 95 % intervals. Pure.

Each measure is of one answer to each of the same samples, so the edge alone, both together and the cloud alone are
compared on equal terms. Samples are independent of one another: each is drawn anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from halimede.calibration.measurement import RESAMPLES_OF_BOXES, SEED, bootstrap_ends, draw_times, share
from halimede.evaluation.curves import steps
from halimede.evaluation.detection import Detection, match
from halimede.evaluation.quality import OBJECT_SCORE, edits
from halimede.messages import Box, Prediction
from halimede.stats.agreement import Estimate

Numbers = NDArray[np.float64]


class Measure(Protocol):
    """The truth of all samples. ``accuracy`` names the first of the measures; ``names`` are those of all, to people."""

    accuracy: str
    names: dict[str, str]

    def estimates(self, answers: Sequence[Prediction]) -> dict[str, Estimate]:
        """Return each measure of one answer a sample."""

    def mistakes(self, answers: Sequence[Prediction]) -> Numbers:
        """Return the mistakes in each answer."""

    def curve(
        self, hardness: Numbers, edge: Sequence[Prediction], cloud: Sequence[Prediction]
    ) -> list[tuple[float, float]]:
        """Return the accuracy by the share of the hardest samples that the cloud answers."""

    def chance(self, edge: Sequence[Prediction], cloud: Sequence[Prediction]) -> list[tuple[float, float]]:
        """Return the expected accuracy if random samples go to the cloud."""


class BoxMeasure:
    """Boxes: F1 counts the boxes of a score of at least ``OBJECT_SCORE``; of an object they overlap by half or more."""

    accuracy = "f1"
    names = {"f1": "F1 at IoU 0.5", "map_50": "mAP at IoU 0.5"}

    def __init__(self, truths: Sequence[Sequence[Box]]) -> None:
        self._truths = truths

    def counts(self, answers: Sequence[Prediction]) -> Numbers:
        """Return the boxes that are right, those that are wrong, and the objects not found: ``[samples, 3]``."""
        rows = []
        for objects, answer in zip(self._truths, answers, strict=True):
            sure = sorted((box for box in answer.boxes or () if box.score >= OBJECT_SCORE), key=lambda box: -box.score)
            right = int(match(sure, objects)[:, 0].sum())
            rows.append((right, len(sure) - right, len(objects) - right))
        return np.array(rows, np.float64).reshape(-1, 3)

    def estimates(self, answers: Sequence[Prediction]) -> dict[str, Estimate]:
        counts, detection = self.counts(answers), Detection(self._truths, answers, answers)
        nothing = np.zeros(len(answers), bool)
        return {
            "f1": estimate(lambda times: f1(times @ counts), len(answers)),
            "map_50": estimate(lambda times: detection.measure(nothing, times)[0], len(answers)),
        }

    def mistakes(self, answers: Sequence[Prediction]) -> Numbers:
        wrong: Numbers = self.counts(answers)[:, 1:].sum(axis=1)
        return wrong

    def curve(
        self, hardness: Numbers, edge: Sequence[Prediction], cloud: Sequence[Prediction]
    ) -> list[tuple[float, float]]:
        return _curve(hardness, self.counts(edge), self.counts(cloud), f1)

    def chance(self, edge: Sequence[Prediction], cloud: Sequence[Prediction]) -> list[tuple[float, float]]:
        return _chance(self.counts(edge), self.counts(cloud), f1)


class TextMeasure:
    """Texts: an answer is right if each character is."""

    accuracy = "exact_match"
    names = {"exact_match": "exact match", "character_error_rate": "character error rate"}

    def __init__(self, truths: Sequence[str]) -> None:
        self._truths = truths
        self._lengths = np.array([len(truth) for truth in truths], np.float64)

    def estimates(self, answers: Sequence[Prediction]) -> dict[str, Estimate]:
        errors = self.mistakes(answers)
        return {
            "exact_match": Estimate(*share(errors == 0, np.arange(len(answers)))),
            "character_error_rate": estimate(
                lambda times: float(times @ errors) / max(1.0, float(times @ self._lengths)), len(answers)
            ),
        }

    def mistakes(self, answers: Sequence[Prediction]) -> Numbers:
        pairs = zip(answers, self._truths, strict=True)
        return np.array([edits(answer.label or "", truth) for answer, truth in pairs], np.float64)

    def curve(
        self, hardness: Numbers, edge: Sequence[Prediction], cloud: Sequence[Prediction]
    ) -> list[tuple[float, float]]:
        return _curve(hardness, self._rows(edge), self._rows(cloud), _share_of)

    def chance(self, edge: Sequence[Prediction], cloud: Sequence[Prediction]) -> list[tuple[float, float]]:
        return _chance(self._rows(edge), self._rows(cloud), _share_of)

    def _rows(self, answers: Sequence[Prediction]) -> Numbers:
        right = (self.mistakes(answers) == 0).astype(np.float64)
        return np.stack([right, np.ones(len(right))], axis=1)


def f1(counts: Numbers) -> float:
    """Return F1 of the sums of right and wrong boxes and of missed objects; 1 if there was nothing to find."""
    right, wrong, missed = counts
    return float(2 * right / (2 * right + wrong + missed)) if right + wrong + missed else 1.0


def estimate(statistic: Callable[[NDArray[np.int64]], float], samples: int) -> Estimate:
    """Return a statistic of samples, given how often each counts, and its interval by a bootstrap."""
    blocks, chance = np.arange(samples), np.random.default_rng(SEED)
    drawn = [statistic(draw_times(blocks, chance)) for _ in range(RESAMPLES_OF_BOXES)]
    value = statistic(np.ones(samples, np.int64))
    low, high = bootstrap_ends(drawn, blocks)
    return msgspec.structs.replace(Estimate(value, low, high), low=min(low, value), high=max(high, value))


def _curve(
    hardness: Numbers, edge: Numbers, cloud: Numbers, accuracy: Callable[[Numbers], float]
) -> list[tuple[float, float]]:
    """Upload the hardest first; samples of equal hardness are in a fixed random order."""
    shuffled = np.random.default_rng(SEED).permutation(len(hardness))
    order = shuffled[np.argsort(-hardness[shuffled], kind="stable")]
    sums = edge.sum(axis=0) + np.concatenate([np.zeros((1, edge.shape[1])), np.cumsum((cloud - edge)[order], axis=0)])
    return [(count / len(order), accuracy(sums[count])) for count in steps(len(order))]


def _chance(edge: Numbers, cloud: Numbers, accuracy: Callable[[Numbers], float]) -> list[tuple[float, float]]:
    low, gain = edge.sum(axis=0), (cloud - edge).sum(axis=0)
    return [(ratio, accuracy(low + ratio * gain)) for ratio in np.linspace(0, 1, 41).tolist()]


def _share_of(sums: Numbers) -> float:
    return float(sums[0] / max(1.0, sums[1]))
