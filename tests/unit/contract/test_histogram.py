"""Latency histograms: quantiles within 5 %, and adding up changes nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede import codec, topics
from halimede import messages as m
from halimede.errors import DecodeError
from halimede.stats.histogram import merge, quantile, record
from tests.anything import valid

values = st.lists(st.floats(0.001, 1e5), min_size=1, max_size=200)


def of(numbers: list[float]) -> m.Histogram:
    histogram = m.Histogram(buckets={})
    for number in numbers:
        record(histogram, number)
    return histogram


@given(values, st.floats(0.01, 1.0))
def test_a_quantile_is_within_5_percent_of_the_exact_one(numbers: list[float], q: float) -> None:
    exact = sorted(numbers)[max(0, math.ceil(q * len(numbers) - 1e-9) - 1)]
    assert quantile(of(numbers), q) == pytest.approx(exact, rel=0.05)


@given(values, values)
def test_merging_is_the_same_as_recording_everything_in_one(left: list[float], right: list[float]) -> None:
    assert merge([of(left), None, of(right)]) == of(left + right)


@given(st.lists(st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0]), max_size=50))
def test_any_number_is_counted_and_fits_into_a_message(numbers: list[float]) -> None:
    histogram = of(numbers)
    assert sum(histogram.buckets.values()) == len(numbers)
    task = m.TaskInfo(edge_latency=histogram)
    info = m.WorkerInfo(name="w", namespace="n", owner_name="o", status="running", task_info=task)
    assert codec.decode(topics.WORKER_INFO, codec.encode(topics.WORKER_INFO, info)) == info


def test_an_empty_one_has_no_quantile() -> None:
    assert (quantile(None, 0.5), quantile(m.Histogram(), 0.5), merge([])) == (None, None, m.Histogram())


@given(st.lists(valid(m.Histogram), max_size=4), st.floats(0, 1))
def test_whatever_arrives_as_a_histogram_adds_up_and_has_quantiles(arrived: list[m.Histogram], q: float) -> None:
    got = quantile(merge(arrived), q)
    assert got is None or (got > 0 and math.isfinite(got))


@pytest.mark.parametrize("key", ["x", "", "1.5", "1e3", "99999", "\N{ARABIC-INDIC DIGIT ONE}", "1\\n", " 1", "--1"])
def test_a_bucket_without_a_number_is_refused(key: str) -> None:
    task = b'{"edgeLatency":{"buckets":{"%s":1}}}' % key.encode()
    info = b'{"name":"w","namespace":"n","ownerName":"o","status":"running","taskInfo":%s}' % task
    with pytest.raises(DecodeError, match="edgeLatency"):
        codec.decode(topics.WORKER_INFO, info)
