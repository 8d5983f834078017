"""A worker reports a calibration that was made with other pixels than its Model's."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from halimede.api.processing import pixels_digest
from halimede.mining.calibration_file import CalibrationFile, RegionRule, write_artefact
from halimede.models.desired_state import DesiredModel, spec_of
from halimede.worker.roles import region_rule
from halimede.worker.version_calibration import MOST_FILES, VersionCalibrations, pixels_trouble

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


def test_a_calibration_that_was_removed_is_reported_and_ends_no_worker(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory)" in pixels_trouble(tmp_path / "gone.json", desired())


class World:
    """A worker's calibrations, with what they change."""

    def __init__(self, folder: Path) -> None:
        settings: Any = SimpleNamespace(
            calibration=None, upload="regions", state=folder, hem_mode="inference-then-mining", hem_name="CloudOnly",
            hem_parameters={}, fusion="cloud",
        )  # fmt: skip
        self.settings = settings
        self.encoder, inference, policy = (SimpleNamespace(miners={}) for _ in range(3))
        self.calibrations = VersionCalibrations(settings, inference, policy, self.encoder)  # type: ignore[arg-type]

    def adopt(self, calibration: CalibrationFile, percent: int) -> None:
        loaded: Any = SimpleNamespace(model="m", version="2", desired=desired())
        loaded.desired.calibration = write_artefact(calibration).decode()
        self.calibrations.adopt(loaded, percent)


def test_regions_are_those_of_the_calibration_of_the_version_that_answers(tmp_path: Path) -> None:
    world, rule = World(tmp_path), RegionRule(sure=0.6, padding=1.0)
    calibration = CalibrationFile(service="s", rule="CloudOnly", regions=rule)
    world.adopt(calibration, 10)
    assert not hasattr(world.encoder, "regions")
    world.adopt(calibration, 100)
    assert world.encoder.regions == rule
    assert region_rule(world.settings, None) == RegionRule()


def test_the_calibrations_of_many_refused_canaries_do_not_remove_the_current_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.adopt(CalibrationFile(service="current", rule="CloudOnly"), 100)
    for number in range(MOST_FILES + 2):
        world.adopt(CalibrationFile(service=f"canary {number}", rule="CloudOnly"), 10)
    current = world.calibrations.current_file
    assert current is not None
    assert current.exists()
    assert len(list(current.parent.iterdir())) == MOST_FILES + 2
