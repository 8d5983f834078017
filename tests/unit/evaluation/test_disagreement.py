"""The samples on which both models differ most: their order, their bounds, and their pictures in the page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.evaluation import pictures
from halimede.evaluation.data import LabelledSamples
from halimede.evaluation.detection import MAX_BOXES, Detection, match
from halimede.evaluation.disagreement import MAX_SAMPLES, Disagreement, difference, list_disagreements
from halimede.evaluation.pictures import MAX_BYTES, disagreements_section
from halimede.frames.drawing import EDGE_COLOUR, FINAL_COLOUR
from halimede.messages import Box, Prediction, TextLine


def boxes(*scores: float, x: float = 0, label: str = "face") -> Prediction:
    return Prediction(boxes=[Box(x + 40 * i, 0, x + 40 * i + 30, 30, score, label) for i, score in enumerate(scores)])


def read(*texts: str) -> Prediction:
    return Prediction(lines=[TextLine(text=text) for text in texts])


@pytest.mark.parametrize(
    ("low", "up", "expected"),
    [
        (boxes(0.9), boxes(0.6), 0.0),
        (boxes(), boxes(0.9, 0.5), 1.4),
        (boxes(0.9, 0.4), boxes(0.8), 0.4),
        (boxes(0.9, x=500), boxes(0.8), 1.7),
        (boxes(0.9, label="cat"), boxes(0.8), 1.7),
        (boxes(-5.0), boxes(), 0.0),
        (Prediction(label="a", score=0.9), Prediction(label="b", score=0.7), 1.8),
        (Prediction(label="a", score=0.9), Prediction(label="a", score=0.7), 0.2),
        (Prediction(label="a"), Prediction(label="b", score=1e300), 1.5),
        (Prediction(label="a"), Prediction(), 1.0),
        (read("EXIT"), read("EXIT"), 0.0),
        (read("EXIT", "A"), read("EX1T", "A"), 1 - 10 / 12),
        (read("ab"), read(), 1.0),
        (Prediction(value=1), Prediction(value=2), 1.0),
        (Prediction(value=[1]), Prediction(value=[1]), 0.0),
    ],
)
def test_the_difference_of_two_answers(low: Prediction, up: Prediction, expected: float) -> None:
    assert difference(low, up) == pytest.approx(expected)
    assert difference(up, low) == pytest.approx(expected)


BOXES = st.lists(
    st.builds(
        lambda x, width, score, label: Box(x, 0.0, x + width, 10.0, score, label),
        st.integers(0, 30), st.integers(0, 20), st.integers(-1, 4).map(lambda n: n / 4), st.sampled_from(["a", "b", 1]),
    ),
    max_size=8,
)  # fmt: skip


@given(BOXES, BOXES)
def test_the_difference_of_boxes_is_that_of_a_plain_writing_of_the_definition(low: list[Box], up: list[Box]) -> None:
    expected = unmatched(low, up) + unmatched(up, low)
    assert difference(Prediction(boxes=low), Prediction(boxes=up)) == pytest.approx(expected)


def unmatched(boxes: Sequence[Box], partners: Sequence[Box]) -> float:
    total = 0.0
    for label in {str(box.label) for box in boxes}:
        own, same = (
            sorted((box for box in side if str(box.label) == label), key=lambda box: -box.score)[:MAX_BOXES]
            for side in (boxes, partners)
        )
        hits = match(own, same)[:, 0]
        total += sum(max(0.0, box.score) for box, hit in zip(own, hits, strict=True) if not hit)
    return total


class CountedBoxes(list[Box]):
    """Boxes that count how often they are read from the first on."""

    passes = 0

    def __iter__(self) -> Iterator[Box]:
        self.passes += 1
        return super().__iter__()


def test_boxes_are_read_once_although_each_has_a_label_of_its_own() -> None:
    labelled = [CountedBoxes(Box(i, 0, i + 1, 5, 0.5, f"label {i}") for i in range(500)) for _ in range(2)]
    low, up = (Prediction(boxes=side) for side in labelled)
    assert difference(low, up) == 0
    Detection([labelled[0]], [low], [up])
    assert max(side.passes for side in labelled) < 10


def test_the_most_different_come_first_and_equal_answers_not_at_all() -> None:
    up = [boxes(0.9)] * 40
    low = [boxes(0.9)] * 10 + [boxes()] * 29 + [boxes(0.5, x=500)]
    chosen = list_disagreements([f"{i}.jpg" for i in range(40)], low, up)
    assert len(chosen) == MAX_SAMPLES
    assert (chosen[0].sample, chosen[0].difference) == ("39.jpg", 1.4)
    assert [each.number for each in chosen[1:]] == list(range(10, 33))


def test_ten_thousand_boxes_are_bounded_in_the_report() -> None:
    many = Prediction(boxes=[Box(i, 0, i + 1, 5, 0.5, "x" * 99) for i in range(10_000)], embeddings=bytes(10_000))
    (chosen,) = list_disagreements(["a"], [many], [boxes()])
    assert len(msgspec.json.encode(chosen)) < 20_000


def section(data: LabelledSamples, disagreements: list[Disagreement]) -> str:
    tiers = [type("Tier", (), {"model": name})() for name in ("small", "<big>")]
    report = type("Report", (), {"disagreements": disagreements, "tiers": tiers})()
    return disagreements_section(report, data)


def samples(count: int, **truth: list[object]) -> LabelledSamples:
    noise = np.random.default_rng(0).integers(0, 255, (count, 400, 600, 3), np.uint8)
    names = [f"<img src=x>{i}" for i in range(count)]
    return LabelledSamples(images=list(noise), names=names, sizes=[1] * count, **truth)  # type: ignore[arg-type]


def test_the_page_has_both_answers_as_small_pictures_and_no_text_acts() -> None:
    data = samples(2, boxes=[[Box(0, 0, 50, 50, 1.0, "face")], []])
    html = section(data, list_disagreements(data.names, [boxes(), boxes()], [boxes(0.9), boxes(0.4, label="<b>")]))
    assert html.count('src="data:image/jpeg;base64,') == 4
    assert len(html) < 4 * MAX_BYTES * 4 / 3 + 4000
    for part in ("&lt;big&gt;: 1 box: face 0.90", "truth: 1 box: face 1.00", "Dashed boxes are the truth"):
        assert part in html
    for colour, name in ((EDGE_COLOUR, "small"), (FINAL_COLOUR, "&lt;big&gt;")):
        assert f'<span class="key" style="border-color:{colour}"></span> {name}' in html
    assert not re.search(r"<img src=x|<b>0|<big>", html)


def test_a_class_as_truth_and_no_truth() -> None:
    answers = [Prediction(label="3", score=0.5)], [Prediction(label="5", score=0.9)]
    data = samples(1, truths=["5"])
    html = section(data, list_disagreements(data.names, *answers))
    assert "small: 3 0.50" in html
    assert "truth: 5" in html
    assert "truth" not in section(samples(1), list_disagreements(data.names, *answers))


def test_rows_of_numbers_have_no_pictures() -> None:
    data = LabelledSamples(images=[np.zeros(64, np.float32)], names=["1"], sizes=[1])
    assert section(data, list_disagreements(["1"], [Prediction(label="3")], [Prediction(label="5")])) == ""


def test_the_limit_of_a_picture_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_BYTES", 6000)
    html = section(samples(1), list_disagreements(samples(1).names, [boxes()], [boxes(0.9)]))
    assert len(html) < 2 * 6000 * 4 / 3 + 2000
