"""A worker reports a calibration that was made with other pixels than its Model's."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from halimede.api.processing import pixels_digest
from halimede.mining.calibration_file import CalibrationFile, RegionRule, write_artefact
from halimede.models.desired_state import DesiredModel, spec_of
from halimede.worker.roles import region_rule
from halimede.worker.version_calibration import VersionCalibrations, pixels_trouble

RESIZE = {"op": "resize", "width": 32, "height": 32}


def desired(**fields: object) -> DesiredModel:
    return DesiredModel(name="m", path="/m.onnx", spec={"format": "onnx", "preprocess": [RESIZE], **fields})


def calibration(folder: Path, pixels: str) -> Path:
    path = folder / "calibration.json"
    path.write_bytes(write_artefact(CalibrationFile(service="s", edge_pixels=pixels)))
    return path


@pytest.mark.parametrize(
    ("fields", "is_same"),
    [
        ({}, True),
        ({"decode": "exact"}, True),
        ({"decode": "scaled"}, False),
        ({"preprocess": [{**RESIZE, "method": "linear"}]}, False),
        ({"preprocess": [RESIZE, {"op": "normalize"}]}, False),
        ({"labels": ["a", "b"]}, True),
    ],
)
def test_other_pixels_are_reported(fields: dict[str, object], is_same: bool, tmp_path: Path) -> None:
    spec = spec_of(desired(), "spec")
    path = calibration(tmp_path, pixels_digest(spec.decode, spec.preprocess))
    text = pixels_trouble(path, desired(**fields))
    assert (text == "") is is_same
    if not is_same:
        assert "decode or preprocess of the Model has changed" in text


def test_a_calibration_without_the_record_is_accepted(tmp_path: Path) -> None:
    assert not pixels_trouble(calibration(tmp_path, ""), desired(decode="scaled"))
    assert not pixels_trouble(None, desired(decode="scaled"))


def test_regions_are_those_of_the_calibration_of_the_version_that_answers(tmp_path: Path) -> None:
    rule = RegionRule(sure=0.6, padding=1.0)
    text = write_artefact(CalibrationFile(service="s", rule="CloudOnly", regions=rule)).decode()
    settings: Any = SimpleNamespace(
        calibration=None, upload="regions", state=tmp_path, hem_mode="inference-then-mining", hem_name="CloudOnly",
        hem_parameters={}, fusion="cloud",
    )  # fmt: skip
    encoder, inference, policy = (SimpleNamespace(miners={}) for _ in range(3))
    calibrations = VersionCalibrations(settings, inference, policy, encoder)  # type: ignore[arg-type]
    loaded: Any = SimpleNamespace(model="m", version="2", desired=desired())
    loaded.desired.calibration = text
    calibrations.adopt(loaded, 10)
    assert not hasattr(encoder, "regions")
    calibrations.adopt(loaded, 100)
    assert encoder.regions == rule
    assert region_rule(settings, None) == RegionRule()
