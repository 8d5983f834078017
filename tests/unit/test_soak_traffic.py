"""The traffic of the soak: which frames are large, and what a consumer makes of results that come again."""

from __future__ import annotations

import itertools
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.soak_traffic import LARGE, RUN, Traffic, enlarged
from examples.digits import data
from halimede import topics
from halimede.bus import Delivery, Packet
from halimede.messages import Prediction, Result

PICTURES = [data.to_png(image) for image in data.load().test_x[:3]]


def result(traffic: Traffic, number: int, label: str = "7", by: Literal["edge", "cloud"] = "edge") -> Delivery[Result]:
    id_ = (traffic._run + number.to_bytes(RUN)).hex()
    body = Result(id=id_, service="digits", worker="w", by=by, prediction=Prediction(label=label), label=label)
    address = topics.RESULT.at(ns="default", service="digits")
    return Delivery(address, {}, body, Packet(address.text, b""))


@given(st.integers(0, 300), st.integers(0, 300))
def test_large_frames_are_as_many_as_asked_for_and_evenly_spread(small: int, large: int) -> None:
    traffic = Traffic(small, large, PICTURES)
    numbers = [number for number in range(traffic.total) if traffic.is_large(number)]
    assert len(numbers) == large
    gaps = {after - before for before, after in itertools.pairwise(numbers)}
    assert len(gaps) <= 2


async def test_each_frame_counts_once_whatever_comes_again() -> None:
    traffic = Traffic(3, 1, PICTURES)
    for number, label, by in ((0, "7", "cloud"), (3, "2", "edge"), (0, "7", "cloud"), (0, "1", "cloud")):
        await traffic.hear(result(traffic, number, label, by))
    assert (traffic.seen, traffic.repeated, traffic.contradicted, traffic.revised) == (2, 2, 1, 0)
    await traffic.hear(result(traffic, 0, "1", "edge"))
    assert (traffic.seen, traffic.repeated, traffic.contradicted, traffic.revised) == (2, 3, 1, 1)
    assert traffic.seen_large == 1
    with pytest.raises(ValueError, match="nobody sent"):
        await traffic.hear(result(traffic, 4))


def test_a_large_frame_is_the_same_picture_and_600_kb() -> None:
    array = enlarged(PICTURES[0])
    assert array.shape == LARGE
    assert array.nbytes == 614_400
    assert (array[::50, ::64, 0].ravel() == data.load().test_x[0] * 240).mean() > 0.9
