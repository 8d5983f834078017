"""Distributions of many values: each is in its bucket, whenever one looks."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from halimede.stats.histogram import HIGHEST, LOWEST, bucket
from halimede.tracing.latency import VALUES_AT_ONCE, Distribution

odd = st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0, 1.0, 5e-324, 1.7e308])


@given(st.lists(st.floats() | odd, max_size=40), st.integers(0, 40))
def test_values_are_in_the_buckets_that_they_would_have_had_one_by_one(values: list[float], look: int) -> None:
    found = Distribution()
    for number, value in enumerate(values):
        found.record(value)
        if number == look:
            assert sum(found.histogram.buckets.values()) == number + 1
    assert found.count == len(values)
    # a logarithm may be one bit off, and a value at the edge of a bucket then in the next
    got = sorted(int(key) for key, count in found.histogram.buckets.items() for _ in range(count))
    wanted = sorted(map(bucket, values))
    assert len(got) == len(wanted)
    assert all(LOWEST <= one <= HIGHEST and abs(one - other) <= 1 for one, other in zip(got, wanted, strict=True))


def test_a_long_stream_is_counted_whole_and_does_not_pile_up() -> None:
    found = Distribution()
    for _ in range(3 * VALUES_AT_ONCE + 7):
        found.record(2.0)
        assert len(found._unsorted) < VALUES_AT_ONCE
    assert found.histogram.buckets == {str(bucket(2.0)): 3 * VALUES_AT_ONCE + 7}
    assert (found.count, found.total) == (3 * VALUES_AT_ONCE + 7, 2.0 * (3 * VALUES_AT_ONCE + 7))
