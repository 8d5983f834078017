"""Charts of reports: what is drawn has the size of what it stands for, and a name for those who cannot see it."""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.html_report import charts
from halimede.html_report.charts import ChartAxis, Stop

STOPS = [
    [Stop("cam<0>", ["10"], "grey")],
    [Stop("a", ["6"], "blue"), Stop("b", ["4"], "blue")],
    [Stop("c", ["3"], "red")],
]
LINKS = [("cam<0>", "a", 6), ("cam<0>", "b", 4), ("b", "c", 3)]


def drawn(svg: str) -> Xml.Element:
    return Xml.fromstring(svg)


def test_bands_are_as_thick_as_there_are_samples_and_fill_their_stops() -> None:
    chart = drawn(charts.flow(STOPS, LINKS, "a & b"))
    thick = [float(path.get("stroke-width", "")) for path in chart.iter("path")]
    assert thick[0] / thick[1] == pytest.approx(6 / 4, rel=0.01)
    assert thick[0] / thick[2] == pytest.approx(6 / 3, rel=0.01)
    blocks = list(chart.iter("rect"))
    starts = []
    for path, source, target in zip(chart.iter("path"), (0, 0, 2), (1, 2, 3), strict=True):
        numbers = [float(n) for n in re.findall(r"[\d.]+", path.get("d", ""))]
        half = float(path.get("stroke-width", "")) / 2
        starts.append(numbers[1] - half)
        for block, y in ((blocks[source], numbers[1]), (blocks[target], numbers[-1])):
            top, high = float(block.get("y", "")), float(block.get("height", ""))
            assert top - 0.2 <= y - half
            assert y + half <= top + high + 0.2
    assert starts[1] - starts[0] == pytest.approx(thick[0], abs=0.2), "one below the other"
    assert next(title.text for title in chart.iter("title")) == "cam<0> to a: 6 samples"
    assert chart.get("aria-label") == "a & b"


def test_a_flow_of_nothing_is_drawn() -> None:
    drawn(charts.flow([[Stop("a", [], "red")], [Stop("b", [], "red")]], [], "nothing"))
    drawn(charts.flow([[], [Stop("b", [], "red")]], [], "nothing"))


def test_a_line_goes_through_its_points_and_its_level_is_where_the_value_is() -> None:
    axes, levels = (ChartAxis(0, 1), ChartAxis(0, 0.4)), {"most": (0.2, "b")}
    chart = drawn(charts.curve([(0, 0), (0.5, 0.2), (1, 0.1)], "red", *axes, levels=levels))
    (line,) = chart.iter("polyline")
    points = [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]
    (level,) = [each for each in chart.iter("line") if each.get("stroke") == "b"]
    assert float(level.get("y1", "")) == points[1][1] < points[2][1] < points[0][1]
    assert points[1][0] - points[0][0] == pytest.approx(points[2][0] - points[1][0], abs=0.2)


def test_a_baseline_is_a_second_line_under_the_first() -> None:
    chart = drawn(charts.curve([(0, 0), (1, 1)], "red", ChartAxis(0, 1), ChartAxis(0, 1), levels={}, baseline=[(0, 1)]))
    assert [line.get("stroke") for line in chart.iter("polyline")] == ["var(--soft)", "red"]


def test_the_ends_of_an_interval_are_where_a_bar_of_that_value_would_end() -> None:
    chart = drawn(charts.bars({"a": 0.5, "b": 0.8}, {"a": "red", "b": "blue"}, ends={"a": (0.25, 0.8)}))
    bars = {bar.get("fill"): bar for bar in chart.iter("rect")}
    left, wide = (float(bars["red"].get(name, "")) for name in ("x", "width"))
    first, last = (float(next(chart.iter("line")).get(name, "")) for name in ("x1", "x2"))
    assert first == pytest.approx(left + wide / 2, abs=0.2)
    assert last == pytest.approx(left + float(bars["blue"].get("width", "")), abs=0.2)
    assert len(list(chart.iter("line"))) == 3


@pytest.mark.parametrize(("low", "high"), [(0.91, 0.99), (0.0, 1.0), (0.9899, 0.99), (-0.02, 0.02)])
def test_a_range_has_several_ticks(low: float, high: float) -> None:
    assert len(charts.ticks(low, high)) >= 2


@given(low=st.floats(-1e6, 1e6), span=st.floats(1e-6, 1e6))
def test_ticks_are_few_and_within_their_range(low: float, span: float) -> None:
    high = low + span
    if high - low < 1e-6:
        return
    found = charts.ticks(low, high)
    assert len(found) <= 6
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)


def test_waits_are_drawn_in_the_colour_of_who_answered() -> None:
    waits = [(0.1, 4.0, "edge"), (0.2, 9.0, "cloud")]
    chart = drawn(charts.waits(waits, [(0.1, "killed")], 1.0, {"edge": "x", "cloud": "y"}))
    edge, cloud = chart.iter("circle")
    assert (edge.get("fill"), cloud.get("fill")) == ("x", "y")
    foot = 250
    assert (foot - float(cloud.get("cy", ""))) / (foot - float(edge.get("cy", ""))) == pytest.approx(1.5, rel=0.01)


def test_a_rate_is_as_high_as_its_axis_says() -> None:
    heights = {"a": [10.0, 20.0], "b": [10.0, 0.0]}
    chart = drawn(charts.stacked_bars(heights, {"a": "x", "b": "y"}, step=0.5, unit="a second"))
    first, second, upper, _ = (float(bar.get("height", "")) for bar in chart.iter("rect"))
    assert second == pytest.approx(2 * first, rel=0.01)
    assert first == upper
    lines = {round(float(line.get("y1", "")), 1) for line in chart.iter("line")}
    top = min(float(bar.get("y", "")) for bar in chart.iter("rect"))
    assert any(abs(top - y) < 0.2 for y in lines), "20 is a line of the axis"
