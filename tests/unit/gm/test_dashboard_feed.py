"""The figures of the page's charts, from the difference of two looks."""

from __future__ import annotations

from collections import deque

from halimede.messages import Histogram, TaskInfo
from halimede.stats import histogram
from services.gm.dashboard.feed import kind_of, point, total


def counted(answers: int, cloud: int, *milliseconds: float) -> TaskInfo:
    latency = Histogram(buckets={})
    for value in milliseconds:
        histogram.record(latency, value)
    return TaskInfo(inference_number=answers, cloud_inference_number=cloud, edge_latency=latency)


def test_rates_are_those_of_the_last_second_and_latencies_those_of_the_window() -> None:
    slow, fast = [100.0] * 50, [1.0] * 50
    points = point(deque([counted(50, 10, *slow), counted(80, 20, *slow), counted(100, 30, *slow, *fast)]))
    assert points[:2] == [20.0, 10.0]
    assert points[2] is not None
    assert 0.9 < points[2] < 1.1  # the slow ones were before the window
    assert points[4:] == [None, None]  # nothing was offloaded: no figure is not zero


def test_the_first_look_and_a_count_that_begins_anew_give_no_negative_rate() -> None:
    assert point(deque([counted(50, 10)]))[:2] == [0.0, 0.0]
    assert point(deque([counted(50, 10), counted(3, 0)]))[:2] == [0.0, 0.0]


def test_counts_of_all_edge_workers_are_added_up() -> None:
    both = total([counted(5, 1, 2.0), counted(7, 2, 2.0, 3.0)])
    assert (both.inference_number, both.cloud_inference_number) == (12, 3)
    assert both.edge_latency is not None
    assert sum(both.edge_latency.buckets.values()) == 3


def test_only_pictures_are_pictures() -> None:
    assert kind_of(b"\x89PNG\r\n") == "image/png"
    assert kind_of(b"\xff\xd8\xff\xe0") == "image/jpeg"
    assert kind_of(b"<svg onload=alert(1)>") is None
    assert kind_of(b"") is None
