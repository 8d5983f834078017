"""A few easy samples that go up as well tell how often answers are the cloud's, without bias and with an interval."""

from __future__ import annotations

import random

import pytest

from halimede.messages import Box, Prediction, TaskInfo
from halimede.pipeline.upload_policy.audit import Audits, is_same_answer
from halimede.stats.agreement import agreement, agreement_of, wilson

#: stated here again, so that a change in the product is noticed
MAX_OPEN_AUDITS = 8


def test_the_estimate_is_unbiased_and_its_interval_holds_the_truth() -> None:
    """200 streams of 10,000 samples, 20 % of them sent up, of the others 1 % audited; the easier, the better."""
    held, errors = 0, []
    for seed in range(200):
        chance = random.Random(seed)
        easy = 8_000
        # each stream has its own share of edge answers that are wrong
        wrong = chance.uniform(0.005, 0.08)
        disagree = sum(chance.random() < wrong for _ in range(easy))
        order = [True] * (easy - disagree) + [False] * disagree
        audited = [same for same in order if chance.random() < 0.01]
        found = agreement(easy=easy, audited=len(audited), agreed=sum(audited), uploaded=2_000)
        assert found
        truth = 1 - disagree / 10_000
        held += found.low <= truth <= found.high
        errors.append(found.value - truth)
    assert held >= 0.9 * 200
    assert abs(sum(errors) / len(errors)) < 0.004


def test_without_audits_nothing_is_claimed() -> None:
    assert agreement(easy=100, audited=0, agreed=0, uploaded=10) is None
    assert agreement_of(TaskInfo(inference_number=100)) is None


def test_what_the_cloud_answered_is_known_and_a_mixture_that_differs_counts_against_it() -> None:
    info = TaskInfo(
        inference_number=1000, hard_example_number=200, cloud_inference_number=200, audited=80, audit_agreed=76,
        overruled=20,
    )  # fmt: skip
    found = agreement_of(info)
    assert found
    assert found.value == pytest.approx((200 - 20 + 800 * 0.95) / 1000)
    assert found.low < found.value < found.high


def test_degraded_answers_are_no_part_of_it() -> None:
    info = TaskInfo(inference_number=1000, hard_example_number=500, degraded=500, audited=10, audit_agreed=10)
    found = agreement_of(info)
    assert found
    assert found.value == 1


def test_the_interval_holds_for_shares_at_the_ends() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = wilson(50, 50)
    assert high == 1
    assert low == pytest.approx(0.9287, abs=1e-3)  # 50 / (50 + 1.96^2)


@pytest.mark.parametrize(("waiting", "is_audited"), [(MAX_OPEN_AUDITS - 1, True), (MAX_OPEN_AUDITS, False)])
def test_not_more_than_a_few_audits_wait_at_once(waiting: int, is_audited: bool) -> None:
    audits = Audits(0.02, lambda: 0.0)
    audits.open = waiting
    assert audits.must_audit() is is_audited


@pytest.mark.parametrize(("least", "drawn", "is_audited"), [(0.3, 0.29, True), (0.3, 0.3, False), (0.1, 0.2, False)])
def test_the_larger_of_both_shares_is_audited(least: float, drawn: float, is_audited: bool) -> None:
    audits = Audits(0.2, lambda: drawn, lambda: least)
    assert audits.present() == max(0.2, least)
    assert audits.must_audit() is is_audited
    assert not Audits(0.0, lambda: 0.0).must_audit()


def box(x: float, label: int | str = 0, score: float = 0.9) -> Box:
    return Box(x, 0, x + 10, 10, score, label)


@pytest.mark.parametrize(
    ("edge", "cloud", "same"),
    [
        (Prediction(label="7", score=0.4), Prediction(label="7", score=0.9), True),
        (Prediction(label="7"), Prediction(label="1"), False),
        (Prediction(value={"n": 3}), Prediction(value={"n": 3}), True),
        (Prediction(value=3), Prediction(value=4), False),
        (Prediction(label="7"), Prediction(), False),
        (Prediction(label="7", value=3), Prediction(label="7", value=4), True),
        (Prediction(boxes=[]), Prediction(boxes=[]), True),
        (Prediction(boxes=[]), Prediction(boxes=[box(0)]), False),
        (Prediction(boxes=[box(0), box(50)]), Prediction(boxes=[box(51), box(1)]), True),
        (Prediction(boxes=[box(0)]), Prediction(boxes=[box(8)]), False),
        (Prediction(boxes=[Box(0, 0, 10, 10, 0.9, 0)]), Prediction(boxes=[Box(0, 0, 20, 10, 0.9, 0)]), True),
        (Prediction(boxes=[Box(0, 0, 10, 10, 0.9, 0)]), Prediction(boxes=[Box(0, 0, 21, 10, 0.9, 0)]), False),
        (Prediction(boxes=[box(0)]), Prediction(boxes=[box(0, label=1)]), False),
        (Prediction(boxes=[box(0), box(1)]), Prediction(boxes=[box(0), box(60)]), False),
        (Prediction(boxes=[box(0)]), Prediction(label="7"), False),
    ],
)
def test_answers_are_the_same_by_label_boxes_or_value(edge: Prediction, cloud: Prediction, same: bool) -> None:
    assert is_same_answer(edge, cloud) is same
    assert is_same_answer(cloud, edge) is same


@pytest.mark.parametrize(("compared", "same"), [(199, False), (200, True)])
def test_of_thousands_of_boxes_the_two_hundred_surest_are_compared(compared: int, same: bool) -> None:
    sure = [box(20 * number, score=0.9) for number in range(compared)]
    edge, cloud = (Prediction(boxes=[box(-100, label, 0.1), *sure]) for label in ("one", "other"))
    assert is_same_answer(edge, cloud) is same
