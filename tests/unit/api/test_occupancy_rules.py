"""Mistakes in the zones of occupancy: each error names the field, the value and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from halimede.api import parse
from tests.unit.api.samples import SAMPLES
from tests.unit.api.test_resources import put, refused

BOW_TIE = [[0, 0], [1, 1], [1, 0], [0, 1]]
DOOR = {"name": "door", "camera": "gate", "polygon": [[0, 0], [1, 0], [1, 1]]}


def service(*zones: dict[str, Any], cameras: tuple[str, ...] = ("gate",)) -> dict[str, Any]:
    body = put(SAMPLES["several tiers"], "spec.edgeWorker.source", {"cameras": list(cameras)})
    return put(body, "spec.edgeWorker.occupancy", {"zones": list(zones)})


@pytest.mark.parametrize(
    ("zone", "field", "fix"),
    [
        ({**DOOR, "polygon": BOW_TIE}, "zones[1].polygon", "so that no two sides cross"),
        ({**DOOR, "polygon": [[0, 0], [1, 0], [0.5, 0]]}, "zones[1].polygon", "enclose an area"),
        ({**DOOR, "polygon": [[0, 0], [0, 0], [1, 1]]}, "zones[1].polygon", "no two sides cross"),
        ({**DOOR, "camera": "nobody-knows"}, "zones[1].camera", "name a camera of edgeWorker.source.cameras"),
    ],
    ids=["crosses itself", "has no area", "has a corner twice", "is of no camera"],
)
def test_a_zone_is_refused_that(zone: dict[str, Any], field: str, fix: str) -> None:
    error = refused(service(DOOR, {**zone, "name": "other"}))
    assert error.field == f"spec.edgeWorker.occupancy.{field}"
    assert fix in error.fix


def test_zones_of_one_name_in_two_cameras_are_accepted() -> None:
    parse(service(DOOR, {**DOOR, "camera": "dock"}, cameras=("gate", "dock")))
