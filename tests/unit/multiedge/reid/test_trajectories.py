"""Where an object should be now, by a clock that may stand still or be put back."""

from __future__ import annotations

import numpy as np
import pytest

from halimede.multiedge.reid.matcher import MAX_OBJECTS, Trajectories


def corners(x: float) -> np.ndarray:
    return np.array([x, 0.0, x + 20.0, 20.0])


def expected(paths: Trajectories, time: float) -> dict[str, float]:
    return {identity: float(step.expected_box(time)[0]) for identity, step in paths.near_time("door", time)}


def test_what_moves_is_expected_further_on() -> None:
    paths = Trajectories(1.0)
    for tenth in range(4):
        paths.record("door", "a", 10 + tenth / 10, corners(10.0 * tenth))
    assert expected(paths, 10.5) == pytest.approx({"a": 50.0})


def test_who_was_not_seen_for_long_is_not_expected() -> None:
    paths = Trajectories(1.0)
    paths.record("door", "a", 10.0, corners(0))
    assert expected(paths, 11.5) == {}
    paths.record("door", "b", 11.5, corners(50))
    assert expected(paths, 11.5) == {"b": 50.0}
    assert not list(paths.near_time("yard", 11.5))


@pytest.mark.parametrize(
    ("first", "then", "now", "places"),
    [((10.2, 20), (10.1, 10), 10.2, {"a": 20.0}), ((1000.0, 0), (10.0, 40), 10.0, {"a": 40.0})],
    ids=["a picture out of order changes nothing", "a clock that was put back begins anew"],
)
def test_time_that_goes_back(
    first: tuple[float, int], then: tuple[float, int], now: float, places: dict[str, float]
) -> None:
    paths = Trajectories(1.0)
    for at, x in (first, then):
        paths.record("door", "a", at, corners(x))
    assert expected(paths, now) == places


def test_who_saw_somebody_last_and_how_long_ago() -> None:
    paths = Trajectories(1.0)
    assert paths.travel_s("a", "door", 10.0) == float("inf")
    paths.record("door", "a", 10.0, corners(0))
    assert paths.travel_s("a", "door", 10.5) == float("inf")
    assert paths.travel_s("a", "yard", 10.5) == 0.5


def test_it_is_bounded() -> None:
    paths = Trajectories(1.0)
    for number in range(2 * MAX_OBJECTS):
        paths.record("door", str(number), 10.0, corners(0))
    assert len(expected(paths, 10.0)) == MAX_OBJECTS
