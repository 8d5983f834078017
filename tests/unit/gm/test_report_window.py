"""The counts of the last minute, and clocks of nodes, from samples of reports."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from halimede.names import Key
from services.gm import report_window
from services.gm.report_window import SAMPLES, STEP_S, CountSample, ReportWindow

KEY = Key("jointinferenceservices", "default", "helmet")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY_S = 86_400.0


def sample(step: int, answered: int, degraded: int, node: str = "edge0", offset_s: float = 0.0) -> CountSample:
    counted_at = NOW + timedelta(seconds=step * STEP_S + offset_s)
    return CountSample(KEY, node, answered, degraded, counted_at.isoformat())


def totals(window: ReportWindow) -> tuple[int, int]:
    total = window.totals()[KEY]
    return total.answered, total.degraded


def record(window: ReportWindow, step: int, *samples: CountSample) -> None:
    window.record(samples, NOW + timedelta(seconds=step * STEP_S))


@pytest.fixture
def window() -> ReportWindow:
    return ReportWindow()


def test_only_the_answers_of_the_last_minute_count(window: ReportWindow) -> None:
    for step in range(100):
        record(window, step, sample(step, 1000 + 10 * step, max(0, step - 90) * 10))
    assert totals(window) == (10 * (SAMPLES - 1), 90)


def test_the_first_sample_of_a_node_has_no_recent_answers(window: ReportWindow) -> None:
    record(window, 0, sample(0, 10, 0))
    record(window, 1, sample(1, 20, 1), sample(1, 5000, 4000, "edge1"))
    assert totals(window) == (10, 1)


def test_counts_that_fall_and_counts_of_an_hour_are_not_recent(window: ReportWindow) -> None:
    record(window, 0, sample(0, 100, 50))
    record(window, 1, sample(1, 7, 7))
    record(window, 2, sample(2, 9007, 9007, offset_s=3600))
    assert totals(window) == (0, 0)


def test_a_node_that_no_longer_reports_is_dropped(window: ReportWindow) -> None:
    record(window, 0, sample(0, 0, 0))
    record(window, 1, sample(1, 100, 100))
    record(window, 2)
    assert window.totals() == {}
    record(window, 3, sample(3, 200, 200))
    assert totals(window) == (0, 0)


def test_a_clock_is_off_only_by_reports_that_come_now(window: ReportWindow) -> None:
    for step in range(3):
        record(window, step, sample(step, step, 0, offset_s=-3 * DAY_S), sample(0, 5, 0, "edge1", -9 * DAY_S))
    assert window.clock_offsets == {"edge0": -3 * DAY_S}
    # a report of the clock that was set since, and an old one that is sent again after an outage
    record(window, 3, sample(3, 3, 0), sample(1, 5, 0, "edge1", -8 * DAY_S))
    assert window.clock_offsets == {}
    record(window, 4, sample(4, 4, 0), sample(4, 5, 0, "edge1"))
    assert window.clock_offsets == {"edge0": 0.0}


@pytest.mark.parametrize("steps", [2, 6])
def test_a_clock_of_rare_reports_is_off_until_none_came_for_a_minute(window: ReportWindow, steps: int) -> None:
    for step in range(4 * steps):
        record(window, step, sample(step - step % steps, step, 0, offset_s=DAY_S))
        assert window.clock_offsets == ({"edge0": DAY_S} if step >= steps else {})
    for step in range(4 * steps, 4 * steps + SAMPLES):
        record(window, step, sample(3 * steps, 0, 0, offset_s=DAY_S))
    assert window.clock_offsets == {}


def test_a_time_is_read_once_and_the_sums_until_the_next_sample(
    window: ReportWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, seconds = [], report_window._seconds

    def counted(text: str) -> float:
        read.append(text)
        return seconds(text)

    monkeypatch.setattr(report_window, "_seconds", counted)
    for step in range(SAMPLES):
        record(window, step, sample(step // 2, step, 0))
        assert window.totals() is window.totals()
    assert len(read) == len(set(read))


def test_counts_of_a_report_that_names_no_time_are_recent(window: ReportWindow) -> None:
    for step in range(3):
        record(window, step, CountSample(KEY, "edge0", 10 * step, step, "soon"))
    assert (totals(window), window.clock_offsets) == ((20, 2), {})
