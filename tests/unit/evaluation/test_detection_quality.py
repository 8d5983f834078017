"""Average precision and recall of boxes, against numbers worked out by hand and a plain second writing of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.evaluation.detection import THRESHOLDS, Detection, average_precision, match
from halimede.messages import Box, Prediction

TRUTH = Box(0, 0, 10, 10, 1.0, "cat")


def box(x: float, score: float, label: str = "cat") -> Box:
    return Box(x, 0, x + 10, 10, score, label)


def said(*boxes: Box) -> Prediction:
    return Prediction(boxes=list(boxes))


def alone(truths: Sequence[Sequence[Box]], answers: Sequence[Prediction]) -> tuple[float, float, float]:
    return Detection(truths, answers, answers).measure(np.zeros(len(truths), bool))


def test_all_found_is_one_and_nothing_found_is_nothing() -> None:
    assert alone([[TRUTH]], [said(box(0, 0.9))]) == (1.0, 1.0, 1.0)
    assert alone([[TRUTH]], [said()]) == (0.0, 0.0, 0.0)
    assert alone([[TRUTH]], [said(box(0, 0.9, "dog"))]) == (0.0, 0.0, 0.0)
    assert alone([[]], [said(box(0, 0.9))]) == (0.0, 0.0, 0.0)


def test_an_overlap_of_two_thirds_counts_up_to_its_threshold() -> None:
    half, strict, recall = alone([[TRUTH]], [said(box(2, 0.9))])  # 8 of 12 columns: IoU 0.667
    assert (half, recall) == (1.0, 1.0)
    assert strict == pytest.approx(0.4)  # at 0.5, 0.55, 0.6 and 0.65


def test_a_second_box_for_one_object_is_false() -> None:
    assert match([box(0, 0.9), box(1, 0.8)], [TRUTH])[:, 0].tolist() == [True, False]


def test_of_two_objects_a_box_takes_the_one_that_it_overlaps_most() -> None:
    hits = match([box(4, 0.9), box(0, 0.8)], [TRUTH, Box(5, 0, 15, 10, 1.0, "cat")])[:, 0]
    assert hits.tolist() == [True, True]


def test_precision_is_that_of_the_best_at_any_higher_recall() -> None:
    hits = np.repeat(np.array([True, False, True, True])[:, np.newaxis], len(THRESHOLDS), axis=1)
    # recalls 1/4, 2/4, 3/4 at precisions 1, 3/4 (better than 2/3), 3/4
    assert average_precision(hits, 4)[0] == pytest.approx((1 + 0.75 + 0.75) / 4)


def test_only_pictures_that_go_up_have_the_clouds_boxes() -> None:
    measure = Detection([[TRUTH], [TRUTH]], [said(), said()], [said(box(0, 0.9)), said(box(0, 0.5))])
    half = dict.fromkeys(("upload_ratio", "accuracy", "map_50_95", "recall"), 0.5)
    assert measure.point(np.array([True, False])) == half
    points = measure.curve(np.array([0.0, 1.0]))
    assert [point["accuracy"] for point in points] == [0.0, 0.5, 1.0]


def test_the_order_of_the_oracle_is_what_is_gained() -> None:
    truths = [[TRUTH], [TRUTH], [TRUTH], []]
    low = [said(box(0, 0.9)), said(), said(), said(box(0, 0.9))]
    up = [said(), said(box(0, 0.9)), said(), said()]
    gain = Detection(truths, low, up).gain()
    assert np.argsort(-gain, kind="stable").tolist() == [1, 3, 2, 0]


def test_an_object_of_a_rare_class_lifts_map_more_than_the_order_by_objects_gained_shows() -> None:
    cats, dog = [box(20 * i, 1.0) for i in range(9)], box(0, 1.0, "dog")
    truths = [cats[:2], [dog], cats[2:]]
    measure = Detection(truths, [said()] * 3, [said(*boxes) for boxes in truths])
    rule = np.array([0.0, 1.0, 0.0])  # uploads the dog first
    by_gain, best = ([point["accuracy"] for point in measure.curve(order)] for order in (measure.gain(), rule))
    assert by_gain[1] == pytest.approx(7 / 9 / 2, abs=1e-6)
    assert best[1] == 0.5 > by_gain[1]
    assert measure.rewards().argmax() == 1


def test_rewards_are_the_mean_gains_of_uploads_where_others_are_uploaded_by_chance() -> None:
    chance = np.random.default_rng(0)
    truths, low, up = [], [], []
    for _ in range(60):
        objects = [box(20 * i, 1.0, str(chance.choice(["cat", "dog"]))) for i in range(chance.integers(1, 4))]
        truths.append(objects)
        for answers, share in ((low, 0.5), (up, 0.8)):
            matches = [box(b.x1, float(chance.uniform(0.3, 1)), b.label) for b in objects if chance.random() < share]
            answers.append(said(*matches, box(200, float(chance.uniform(0, 0.7)))))
    measure = Detection(truths, low, up)
    gains = np.zeros(60)
    for _ in range(40):
        context = chance.random(60) < 0.5
        for i in range(60):
            without, uploaded = context.copy(), context.copy()
            without[i], uploaded[i] = False, True
            gains[i] += (measure.measure(uploaded)[0] - measure.measure(without)[0]) * 60 / 40
    rewards = measure.rewards()
    assert np.corrcoef(rewards, gains)[0, 1] > 0.97
    assert rewards.mean() == pytest.approx(gains.mean(), rel=0.15)


def test_rewards_without_objects_or_boxes_are_zero() -> None:
    assert Detection([[], []], [said(), said()], [said(box(0, 0.5)), said()]).rewards().tolist() == [0, 0]
    assert Detection([[TRUTH]], [said()], [said()]).rewards().tolist() == [0]


BOXES = st.lists(
    st.builds(
        lambda x, width, score, label: Box(x, 0.0, x + width, 10.0, score, label),
        st.integers(0, 30), st.integers(1, 20), st.integers(1, 100).map(lambda n: n / 100), st.sampled_from("ab"),
    ),
    max_size=6,
)  # fmt: skip


@given(st.lists(st.tuples(BOXES, BOXES), min_size=1, max_size=6))
def test_it_agrees_with_a_plain_writing_of_the_definition(pictures: list[tuple[list[Box], list[Box]]]) -> None:
    truths, answers = [truth for truth, _ in pictures], [Prediction(boxes=boxes) for _, boxes in pictures]
    kinds = sorted({box.label for boxes in truths for box in boxes})
    expected = np.mean([plain(truths, answers, kind) for kind in kinds]) if kinds else 0.0
    assert alone(truths, answers)[0] == pytest.approx(expected)


def plain(truths: list[list[Box]], answers: list[Prediction], kind: int | str) -> float:
    flags = []
    for objects, answer in zip(truths, answers, strict=True):
        free = [each for each in objects if each.label == kind]
        for each in sorted((b for b in answer.boxes or [] if b.label == kind), key=lambda b: -b.score):
            best = max(free, key=lambda other: overlap(each, other), default=None)
            hit = best is not None and overlap(each, best) >= 0.5
            if hit:
                free.remove(best)  # type: ignore[arg-type]
            flags.append((each.score, hit))
    flags.sort(key=lambda flag: -flag[0])
    count = sum(each.label == kind for objects in truths for each in objects)
    precisions = [sum(hit for _, hit in flags[: i + 1]) / (i + 1) for i in range(len(flags))]
    return sum(max(precisions[i:]) for i, (_, hit) in enumerate(flags) if hit) / count


def overlap(a: Box, b: Box) -> float:
    shared = max(0.0, min(a.x2, b.x2) - max(a.x1, b.x1)) * 10
    return shared / ((a.x2 - a.x1 + b.x2 - b.x1) * 10 - shared)
