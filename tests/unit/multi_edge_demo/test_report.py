"""The report of the demo: its figures are those of the run, it says what was missed, and the page is one file."""

from __future__ import annotations

import json
import re

from examples.multi_edge import page, report
from tests.html_page import HtmlPage
from tests.unit.multi_edge_demo.runs import told


def test_the_figures_are_those_that_were_asked_for() -> None:
    figures = report.figures(told())
    wanted = ("frames", "answered", "skipped", "lost", "rank1", "idf1", "single_best_accuracy", "fused_accuracy",
              "node_share", "p50_ms", "p99_ms")  # fmt: skip
    assert set(wanted) <= set(figures)
    assert figures["frames"] == figures["answered"] == 108
    assert (figures["p50_ms"], figures["lost"]) == (50.0, 0)


def test_a_frame_without_an_answer_is_lost_and_the_run_has_missed_its_aim() -> None:
    figures = report.figures(told(lost=2))
    assert figures["lost"] == 12
    assert any("12 frames were not answered" in words for words in report.missed(figures))


def test_each_aim_that_is_missed_is_named() -> None:
    good = {**report.figures(told()), "single_best_accuracy": 0.8, "fused_accuracy": 0.9}
    assert not report.missed(good)
    for change, word in (
        ({"rank1": 0.94}, "rank-1"), ({"idf1": 0.89}, "IDF1"), ({"fused_accuracy": 0.82}, "fusion"),
        ({"takeover_s": None}, "nobody"), ({"takeover_s": 3.5}, "took over"), ({"frames": 0}, "no frame"),
        ({"node_share": {"edge0": 0.4, "edge1": 0.3, "edge2": 0.3}}, "share"),
    ):  # fmt: skip
        (said,) = report.missed({**good, **change})
        assert word in said


def test_the_page_is_one_file_that_loads_nothing() -> None:
    made = told()
    text = page.page(made, report.figures(made))
    found = HtmlPage(text)
    assert (found.mistakes, found.external) == ([], [])
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.search(r"\$[a-z]", text), "a place of the template was left open"
    assert text.count("<canvas") == 3
    assert "&lt;b&gt;" in text, "what models say is no markup"
    assert all(list(line) in found.rows for line in report.table(report.figures(made)))


def test_a_camera_that_was_too_late_for_an_instant_is_shown_without_an_answer() -> None:
    made = told(late_camera="west")
    text = page.page(made, report.figures(made))
    assert (text.count('class="instant"'), text.count("too late to be fused")) == (3, 3)


def test_names_of_a_run_cannot_break_out_of_the_page() -> None:
    made = told(name="</script><script>alert(1)</script>")
    text = page.page(made, report.figures(made))
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data
    assert json.loads(data[1])["who"][0]["id"].startswith("</script>")
    assert "alert(1)</script>" not in text
