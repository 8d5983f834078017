"""The application as a resource names it: real stages find, cut and describe; the matcher tells who is who."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from halimede.errors import InvalidFieldError
from halimede.inference import Model
from halimede.messages import Prediction
from halimede.multiedge import Finding, JointTools, Parameters, create
from halimede.multiedge.reid import Matcher
from tests.staged import a_picture, an_item, some_tools


@pytest.mark.parametrize("detect", ["model", "whole"])
def test_two_workers_and_their_matcher(tmp_path: Path, models: Mapping[str, Model], detect: str) -> None:
    application = create("reid", "", Parameters({"detect": detect, "threshold": "0.9"}))
    assert application.joint is not None
    joint = application.joint(JointTools(Parameters({}), tmp_path))
    assert isinstance(joint, Matcher)
    joint.open()
    found = []
    for number, camera in enumerate(("door", "yard")):
        item = an_item((10, 10, 30, 30), camera=camera)
        for make in application.stages:
            make(some_tools(models, model="describer", detector="spotter")).run([item])
        assert application.joins(item.prediction)
        key = number.to_bytes(16, "big")
        seen = Finding(key, camera, "worker", "edge0", number, 10**18, item.prediction)
        answer = joint.take([seen], float(number)).answers[key]
        assert answer is not None
        found += answer.value
    assert len(found) == 2
    assert found[0] == found[1] is not None
    joint.close()


def test_a_picture_without_objects_is_answered_where_it_was_taken() -> None:
    application = create("reid", "", Parameters({}))
    assert not application.joins(Prediction(boxes=[], embeddings=b""))


def test_frames_are_shared_unless_a_camera_has_to_be_seen_from_the_beginning() -> None:
    assert create("reid", "", Parameters({"share": "true"})).share
    assert not create("reid", "", Parameters({"share": "true", "detect": "motion"})).share


@pytest.mark.parametrize(
    ("name", "value"),
    [("detect", "magic"), ("threshold", "2"), ("identities", "5"), ("ttl", "0"), ("vectors", "many"), ("share", "yes")],
)
def test_a_wrong_parameter_names_field_and_value(name: str, value: str) -> None:
    with pytest.raises(InvalidFieldError, match=f"spec.application.parameters.{name}.*{value}"):
        create("reid", "", Parameters({name: value}))


def test_the_memory_that_parameters_ask_for_is_bounded() -> None:
    with pytest.raises(InvalidFieldError, match="identities times vectors"):
        create("reid", "", Parameters({"identities": "100000", "vectors": "32"}))


def test_what_moves_is_found_without_a_detector(models: Mapping[str, Model]) -> None:
    application = create("reid", "", Parameters({"detect": "motion"}))
    assert not application.share
    stages = [make(some_tools(models, model="describer")) for make in application.stages]
    noise = np.random.default_rng(0)
    joined = []
    for number in range(20):
        boxes = [(20 + 4 * number, 40, 44 + 4 * number, 70)] if number > 8 else []
        item = an_item()
        light = noise.normal(40, 2, (120, 160, 1))
        item.image = np.clip(a_picture(*boxes, size=(120, 160)) + light, 0, 255).astype(np.uint8)
        for stage in stages:
            stage.run([item])
        joined.append(application.joins(item.prediction))
    assert not any(joined[:9])
    assert sum(joined[9:]) >= 8
