"""Samples unlike those of the calibration are noticed, samples like them are not, and the word does not flicker."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from halimede.mining.calibration_file import CalibrationFile, Reference
from halimede.pipeline.upload_policy.drift import AGREEMENT, Drift, Shares
from halimede.stats.agreement import wilson

CLASSES = [str(i) for i in range(10)]


def artefact(**changes: object) -> CalibrationFile:
    quantiles = [i / 100 for i in range(101)]
    reference = Reference(hardness=quantiles, classes=dict.fromkeys(CLASSES, 0.1), samples=450)
    return CalibrationFile(service="digits", reference=reference, **changes)  # type: ignore[arg-type]


def feed(drift: Drift, chance: random.Random, n: int, *, power: float = 1.0, classes: int = 10) -> list[bool]:
    said = []
    for _ in range(n):
        drift.see(chance.random() ** power, CLASSES[chance.randrange(classes)])
        said.append(drift.drifting)
    return said


def test_samples_like_those_of_the_calibration_are_no_drift() -> None:
    for seed in range(20):
        assert not any(feed(Drift(artefact()), random.Random(seed), 3000))


def test_a_reference_of_few_samples_and_many_classes_is_no_drift_either() -> None:
    chance = random.Random(2)
    names = [f"c{i}" for i in range(100)]
    drift = Drift(CalibrationFile(service="s", reference=Reference(classes=dict.fromkeys(names, 0.01), samples=300)))
    for _ in range(5000):
        drift.see(None, chance.choice(names))
        assert not drift.drifting


@pytest.mark.parametrize("changed", [{"power": 0.3}, {"classes": 3}])
def test_harder_samples_and_other_classes_are_noticed_and_forgotten_once_they_are_over(
    changed: dict[str, float],
) -> None:
    chance, drift = random.Random(1), Drift(artefact())
    assert not any(feed(drift, chance, 1500))
    assert feed(drift, chance, 1500, **changed)[-1]  # type: ignore[arg-type]
    said = feed(drift, chance, 3000)
    assert not said[-1]
    assert sum(a != b for a, b in pairwise(said)) == 1


def test_classes_that_calibration_never_saw_are_noticed() -> None:
    chance, drift = random.Random(1), Drift(artefact())
    feed(drift, chance, 1000)
    for _ in range(800):
        drift.see(chance.random(), "a new thing")
    assert drift.drifting
    assert drift.metrics()["classes"] > drift.metrics()["hardness"]


def test_a_hardness_of_few_values_is_compared_by_their_shares() -> None:
    reference = Reference(hardness=[0.0] * 81 + [1.0] * 20, samples=1000)
    chance, drift = random.Random(1), Drift(CalibrationFile(service="s", reference=reference))
    for share, expected in ((0.2, False), (0.7, True)):
        for _ in range(2000):
            drift.see(float(chance.random() < share), None)
        assert drift.drifting is expected


def test_without_a_reference_nothing_drifts() -> None:
    drift = Drift(CalibrationFile(service="s"))
    for _ in range(2000):
        drift.see(1.0, "x")
    assert not drift.drifting
    assert drift.metrics() == {}


def stability_index(counts: Sequence[int], shares: Sequence[float], samples: int) -> float:
    """Return the index of these counts, with half a sample more in each bin, less what chance alone makes of it."""
    n, bins = sum(counts), len(counts)
    now = [(count + 0.5) / (n + bins / 2) for count in counts]
    then = [(share * samples + 0.5) / (samples + bins / 2) for share in shares]
    index = sum((a - b) * math.log(a / b) for a, b in zip(now, then, strict=True))
    return index - (bins - 1) * (1 / n + 1 / samples)


def test_the_index_is_that_of_the_last_thousand_samples_and_of_500_at_least() -> None:
    shares = Shares([0.5, 0.3, 0.2], samples=200)
    for _ in range(499):
        shares.see(0)
    assert shares.index() == 0
    for bins, counts in (([0], (500, 0, 0)), ([1] * 500, (500, 500, 0)), ([2] * 300, (200, 500, 300))):
        for bin_ in bins:
            shares.see(bin_)
        assert shares.index() == pytest.approx(stability_index(counts, [0.5, 0.3, 0.2], 200))


def test_drift_is_noticed_at_the_second_check_of_fifty_samples() -> None:
    drift, said = Drift(artefact()), []
    for _ in range(600):
        drift.see(None, "0")
        said.append(drift.drifting)
    assert said.index(True) + 1 == 550


def test_drift_begins_above_an_index_of_a_quarter_and_ends_at_a_tenth() -> None:
    reference, indices = Reference(classes={"a": 0.5, "b": 0.5}, samples=10**6), {}
    for count in range(500, 1000):
        indices[count] = stability_index((count, 1000 - count, 0), [0.5, 0.5, 0.0], 10**6)
    begin = next(count for count, index in indices.items() if index > 0.25)
    end = next(count for count, index in indices.items() if index > 0.1)

    def see(drift: Drift, count: int) -> bool:
        """Let the last thousand samples have this number of class a, also at each check that follows."""
        for i in range(1100):
            drift.see(None, "a" if (i + 1) * count // 1000 > i * count // 1000 else "b")
        return drift.drifting

    for count in (begin - 1, begin):
        drift = Drift(CalibrationFile(service="s", reference=reference))
        assert not see(drift, 500)
        assert see(drift, count) is (count == begin)
    assert see(drift, end)
    assert not see(drift, end - 1)


@pytest.mark.parametrize("audits", [29, 30, 100])
def test_agreement_has_fallen_by_three_deviations_of_thirty_audits_and_is_back_at_one(audits: int) -> None:
    least = next(agreed for agreed in range(audits + 1) if wilson(agreed, audits, 3.0)[1] >= 0.95)
    back = next(agreed for agreed in range(audits + 1) if wilson(agreed, audits, 1.0)[1] >= 0.95)
    for agreed, expected in ((least, False), (least - 1, audits >= 30)):
        drift = Drift(artefact(metrics={AGREEMENT: 0.95}))
        for i in range(audits):
            drift.audited(i < agreed)
        feed(drift, random.Random(1), 100)
        assert drift.drifting is expected
    if audits < 30:
        return
    for agreed, expected in ((back - 1, True), (back, False)):
        drift._agreed.clear()
        for i in range(audits):
            drift.audited(i < agreed)
        feed(drift, random.Random(1), 100)
        assert drift.drifting is expected


def test_the_last_three_hundred_audits_count() -> None:
    drift = Drift(artefact(metrics={AGREEMENT: 0.95}))
    for agreed, expected in (([False] * 300, 0.95), ([True] * 299, 0.95 - 299 / 300), ([True], 0.0)):
        for outcome in agreed:
            drift.audited(outcome)
        assert drift.metrics()["agreement"] == pytest.approx(max(0.0, expected))


def test_drift_begins_and_ends_at_the_second_of_two_checks_in_a_row() -> None:
    drift, said = Drift(artefact(metrics={AGREEMENT: 0.95})), []
    for agreed in (False, True, False, True):
        drift._agreed.clear()
        for _ in range(30):
            drift.audited(agreed)
        for _ in range(50):
            drift.see(None, None)
        said.append(drift.drifting)
        for _ in range(50):
            drift.see(None, None)
        said.append(drift.drifting)
    assert said == [False, True, True, False] * 2


@pytest.mark.parametrize("like", [True, False])
def test_indices_are_those_of_ten_bins_of_hardness_and_of_the_classes_and_0_at_least(like: bool) -> None:
    drift = Drift(artefact())
    for i in range(1000):
        number = i % 100 if like else i % 35  # a value at the end of a bin is in the bin
        drift.see((number + 1) / 100, CLASSES[number // 10])
    counts = [sum(1 for i in range(1000) if i % (100 if like else 35) // 10 == bin_) for bin_ in range(10)]
    hardness = stability_index(counts, [0.1] * 10, 450)
    classes = stability_index([*counts, 0], [*[0.1] * 10, 0.0], 450)
    assert (hardness < 0) is (classes < 0) is like
    assert drift.metrics() == pytest.approx({"hardness": max(0.0, hardness), "classes": max(0.0, classes)}, abs=1e-9)


@pytest.mark.parametrize("quantiles", [[], [0.5], [0.5] * 3])
def test_a_hardness_of_one_value_is_not_compared(quantiles: list[float]) -> None:
    drift = Drift(CalibrationFile(service="s", reference=Reference(hardness=quantiles, samples=500)))
    drift.see(0.5, None)
    assert drift.metrics() == {}


def test_a_hardness_of_two_quantiles_is_compared_by_the_lower_one() -> None:
    drift = Drift(CalibrationFile(service="s", reference=Reference(hardness=[0.2, 0.8], samples=500)))
    for hardness in [0.2] * 300 + [0.3] * 200:
        drift.see(hardness, None)
    assert drift.metrics()["hardness"] == pytest.approx(stability_index([300, 200], [0.0, 1.0], 500))
