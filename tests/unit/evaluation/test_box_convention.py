"""Two models that draw different boxes around the same objects: named, with the factors, and only then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from halimede.evaluation.box_convention import MIN_PAIRS, find_convention
from halimede.messages import Box, Prediction


def faces(seed: int, pictures: int = 20) -> list[Prediction]:
    """Pictures with two faces each, of many sizes."""
    random = np.random.default_rng(seed)
    answers = []
    for _ in range(pictures):
        sides = random.uniform(40, 90, 2)
        lefts = (random.uniform(0, 200), random.uniform(400, 600))
        boxes = [Box(x, 100, x + side, 100 + side * 1.3, 0.9, "face") for x, side in zip(lefts, sides, strict=True)]
        answers.append(Prediction(boxes=boxes))
    return answers


def changed(answers: list[Prediction], width: float, height: float, down: float = 0.0) -> list[Prediction]:
    """The same boxes with other sizes around the same centres, and shifted by a share of their own height."""

    def change(box: Box) -> Box:
        x, y, wide, high = (box.x1 + box.x2) / 2, (box.y1 + box.y2) / 2, box.x2 - box.x1, box.y2 - box.y1
        y += down * high
        half = wide * width / 2, high * height / 2
        return Box(x - half[0], y - half[1], x + half[0], y + half[1], 0.7, "head")

    return [Prediction(boxes=[change(box) for box in answer.boxes or ()]) for answer in answers]


def test_other_sizes_around_the_same_centres_are_a_convention() -> None:
    convention: Any = find_convention(changed(faces(1), 0.6, 0.5, down=0.1), faces(1))
    assert convention.pairs == 40
    assert convention.overlap == pytest.approx(0.3)
    assert (convention.width, convention.height, convention.down) == pytest.approx((0.6, 0.5, 0.1))
    text = convention.describe("small", "big")
    assert "those of small are 0.60 times as wide and 0.50 times as high" in text
    assert "0.10 of the height further down" in text
    assert "right" not in text.split("(")[0]


def test_the_other_order_gives_the_inverse_factors() -> None:
    convention: Any = find_convention(faces(1), changed(faces(1), 0.5, 0.5))
    assert (convention.width, convention.height) == pytest.approx((2.0, 2.0))


@pytest.mark.parametrize(("width", "height", "down"), [(1.0, 1.0, 0), (0.8, 0.8, 0), (1.1, 1.2, 0), (0.5, 0.5, 0.8)])
def test_boxes_that_overlap_or_are_elsewhere_are_no_convention(width: float, height: float, down: float) -> None:
    assert find_convention(changed(faces(1), width, height, down), faces(1)) is None


def test_random_boxes_are_no_convention() -> None:
    random = np.random.default_rng(5)

    def noise() -> list[Prediction]:
        corners, sizes = random.uniform(0, 300, (20, 60, 2)), random.uniform(5, 300, (20, 60, 2))
        return [
            Prediction(boxes=[Box(*low, *(low + size), 0.5) for low, size in zip(lows, wide, strict=True)])  # type: ignore[call-arg]
            for lows, wide in zip(corners, sizes, strict=True)
        ]

    assert find_convention(noise(), noise()) is None


@pytest.mark.parametrize("answers", [[], [Prediction(label="a")] * 9, [Prediction(boxes=[])] * 9])
def test_without_boxes_there_is_no_finding(answers: list[Prediction]) -> None:
    assert find_convention(answers, answers) is None


def test_few_pairs_and_boxes_without_an_area_are_no_finding() -> None:
    few = faces(1, pictures=MIN_PAIRS // 2 - 1)
    assert find_convention(changed(few, 0.5, 0.5), few) is None
    flat = [Prediction(boxes=[Box(10, 10, 10, 10, 0.9), Box(50, 50, 20, 20, 0.9)] * 6)] * 5
    assert find_convention(flat, flat) is None
