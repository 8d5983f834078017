"""The report of the digits demo: its figures are those of the run, and its page shows these figures and no others."""

from __future__ import annotations

from typing import Any

import pytest

from examples.digits import page, report
from tests.html_page import HtmlPage
from tests.unit.digits_demo.runs import answer, run, status


def figures(**more: Any) -> dict[str, Any]:
    return report.figures(run(), 10, status(), **more)


def shown(found: dict[str, Any], answers: list[report.Answer]) -> HtmlPage:
    return HtmlPage(page.page(found, answers))


def test_messages_and_bytes_are_counted_by_link() -> None:
    links = {(e["from"], e["to"]): (e["messages"], e["bytes"]) for e in figures()["links"]}
    pictures = [len(a.png) for a in run()]
    # numbers 0, 1 | 4, 5 | 8, 9 on edge0, the others on edge1; even ones from cam0
    assert links["cam0", "edge0"] == (3, pictures[0] + pictures[4] + pictures[8])
    assert links["cam1", "edge1"] == (2, pictures[3] + pictures[7])
    assert links["edge0", "cloud"] == (2, 200)
    assert links["edge1", "cloud"] == (2, 100)
    assert links["edge0", "consumer"] == (6, 600)
    assert [e["what"] for e in figures()["links"]] == [*["frames"] * 4, *["hard samples"] * 2, *["results"] * 2]


def test_it_is_counted_what_the_uploads_were_worth() -> None:
    assert figures()["uploads"] == {"mended": 2, "spoiled": 1, "both_right": 1, "both_wrong": 0}


def test_answers_are_counted_over_time_with_the_share_that_went_up() -> None:
    over = figures()["over_time"]
    assert (over["step_s"], over["edge"], over["cloud"]) == (0.25, [1, 0, 3, 2], [2, 2, 0, 0])
    assert over["upload_ratio"] == [0.6667, 0.8, 0.5, 0.4]
    assert over["upload_ratio"][-1] == figures()["upload_ratio"]


def test_a_long_run_has_few_bars() -> None:
    long = [report.Answer(a.png, a.truth, a.result, "", at_s=a.at_s * 400) for a in run()]
    over = report.figures(long, 10, {})["over_time"]
    assert len(over["edge"]) <= report.BARS
    assert sum(over["edge"]) + sum(over["cloud"]) == 10


def test_the_budget_is_that_of_the_service_or_the_goal_of_the_demo() -> None:
    assert (figures()["upload_budget"], figures()["upload_budget_of"]) == (report.GOAL, "the demo's goal")
    budget = figures(target=0.45)
    assert (budget["upload_budget"], budget["upload_budget_of"]) == (0.45, "targetUploadRatio")
    (over,) = [met for _, name, _, met in shown(figures(), run()).tiles if "sent to the cloud" in name]
    (within,) = [met for _, name, _, met in shown(budget, run()).tiles if "sent to the cloud" in name]
    assert (over, within) == (False, True)


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    found = shown(figures(), run())
    assert (found.mistakes, found.external) == ([], [])
    assert "script" not in found.tags


def test_the_page_shows_the_figures_of_the_report() -> None:
    found = figures()
    made = shown(found, run())
    for line in report.table(found):
        assert list(line) in made.rows
    for link in found["links"]:
        name = f"{link['from']} → {link['to']}"
        each = f"{link['bytes'] / link['messages']:.0f} B"
        assert [name, link["what"], str(link["messages"]), page.size(link["bytes"]), each] in made.rows
    for key, name in report.TIMES.items():
        times = found["times_ms"][key]
        assert [name, f"{times['p50']:.2f} ms", f"{times['p99']:.2f} ms"] in made.rows
    ratios = f"{found['joint_accuracy']:.4f}", f"{found['upload_ratio']:.1%}"
    values = [value for value, *_ in made.tiles]
    assert (values[0], values[1], values[3]) == (str(found["lost"]), *ratios)


def test_the_hardest_samples_have_both_answers_the_hardest_first() -> None:
    found = figures()
    assert [one["id"][-1] for one in found["hardest"]] == ["1", "3", "2", "4"]
    cards = shown(found, run()).texts
    assert cards[f"sample-{1:032x}"] == "edge7 0.51cloud2 0.99truth 2cam1"
    text = page.page(found, run())
    assert text.count("data:image/png") == 4


def test_a_hard_sample_that_the_edge_answered_has_the_reason() -> None:
    answers = [*run(), answer(10, "4", "4", "4", score=0.5, hard=True, reason="circuit-open")]
    found = report.figures(answers, 11, status())
    assert (found["degraded"], found["hardest"][0]["cloud"]) == (1, None)
    assert shown(found, answers).texts[f"sample-{10:032x}"] == "edge4 0.50cloudnone: circuit-opentruth 4cam0"


def test_audits_are_shown_where_there_were_some() -> None:
    assert not any("audits" in row[0] for row in shown(figures(), run()).rows)
    answers = [*run()[:-1], answer(9, "0", "0", "0", audit=True)]
    found = report.figures(answers, 10, status(audited=1, auditAgreed=1))
    assert ["audits / agreed", "1 / 1"] in shown(found, answers).rows
    assert {(e["from"], e["to"]): e["messages"] for e in found["links"]}["edge0", "cloud"] == 3


@pytest.mark.parametrize("count", [0, 1])
def test_a_run_with_hardly_any_answer_has_a_page(count: int) -> None:
    answers = run()[:count]
    found = report.figures(answers, 10, {})
    made = shown(found, answers)
    assert made.mistakes == []
    assert made.tiles[0] == (str(10 - count), "of 10 samples lost", "none may be", False)


def test_what_models_say_is_no_markup() -> None:
    answers = [answer(0, "1", "<b>", "<script>alert(1)</script>", score=0.5, hard=True, reason="")]
    made = shown(report.figures(answers, 1, status()), answers)
    assert made.mistakes == []
    assert "<script>alert(1)</script>" in made.texts[f"sample-{0:032x}"]
    assert "script" not in made.tags
