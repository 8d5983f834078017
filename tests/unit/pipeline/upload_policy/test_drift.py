"""Samples unlike those of the calibration are noticed, samples like them are not, and the word does not flicker."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from halimede.mining.calibration_file import CalibrationFile, Reference
from halimede.pipeline.upload_policy.drift import AGREEMENT, Drift

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


def test_audits_that_agree_less_than_promised_are_noticed_and_heal() -> None:
    chance, drift = random.Random(1), Drift(artefact(figures={AGREEMENT: 0.95}))
    for share, expected in ((0.97, False), (0.7, True), (0.98, False)):
        for _ in range(400):
            drift.audited(chance.random() < share)
        feed(drift, chance, 1000)
        assert drift.drifting is expected


def test_few_audits_and_few_samples_prove_nothing() -> None:
    drift = Drift(artefact(figures={AGREEMENT: 0.95}))
    for _ in range(20):
        drift.audited(agreed=False)
    for _ in range(400):
        drift.see(1.0, "0")
    assert not drift.drifting


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
