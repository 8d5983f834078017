"""The picture of a run for the README is an SVG of its own, with its figures in words."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from examples.real_pairs import picture, report
from tests.unit.real_pairs_demo.runs import run_of_faces, run_of_words


def test_a_run_is_drawn_with_both_charts_and_nothing_is_loaded() -> None:
    for run, _ in (run_of_faces(), run_of_words()):
        text = picture.draw(report.figures(run))
        drawn = Xml.fromstring(text)
        assert len([element for element in drawn.iter() if element.tag.endswith("}polyline")]) == 2
        assert drawn.get("aria-label", "").count("0.") + drawn.get("aria-label", "").count("1.") >= 3
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "var(--card)" in text
        assert "--card:" in text
