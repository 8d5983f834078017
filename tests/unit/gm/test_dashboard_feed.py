"""The figures of the page's charts, from the difference of two looks."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import pytest

from halimede import codec, topics
from halimede.messages import Box, HardSample, Histogram, TaskInfo
from halimede.messages.samples import MAX_LABEL_TEXT
from halimede.stats import histogram
from services.gm.dashboard.feed import kind_of, point, total, with_bounded_labels


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
    assert sum(both.edge_latency.buckets.values()) == 3


def test_only_pictures_are_pictures() -> None:
    assert kind_of(b"\x89PNG\r\n") == "image/png"
    assert kind_of(b"\xff\xd8\xff\xe0") == "image/jpeg"
    assert kind_of(b"<svg onload=alert(1)>") is None
    assert kind_of(b"") is None


def detected(label: str, boxes: int) -> HardSample:
    """Return a preview of a worker, as the bus delivers it."""
    rows = [Box(0.0, 0.0, 1.0, 1.0, 0.5, label)] * boxes
    fields: dict[str, Any] = {"edge_label": label, "label": label, "edge_boxes": rows, "boxes": rows}
    sample = HardSample(id=bytes(16), data=b"", worker="w", by="cloud", **fields)
    return codec.decode(topics.HARD_SAMPLE, codec.encode(topics.HARD_SAMPLE, sample))


@pytest.mark.parametrize("character", ["x", "\x1b", '"', "\U0001f600", "é"])
@pytest.mark.parametrize("boxes", [0, 1, 64])
def test_the_labels_of_a_preview_have_few_bytes_however_long_a_worker_makes_them(character: str, boxes: int) -> None:
    sample = with_bounded_labels(detected(character * MAX_LABEL_TEXT, boxes))
    boxes = [[box.label for box in rows or ()] for rows in (sample.edge_boxes, sample.boxes)]
    for labels in ([sample.edge_label], [sample.label], *boxes):
        assert sum(len(msgspec.json.encode(label)) - 2 for label in labels) <= MAX_LABEL_TEXT  # type: ignore[attr-defined]
        assert all(labels), "the beginning of each label stays"


def test_labels_of_usual_length_stay_as_they_are() -> None:
    sample = detected("construction helmet", 32)
    assert with_bounded_labels(sample) == sample
