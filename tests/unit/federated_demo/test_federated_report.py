"""The report names each target that a run missed, and its page shows the figures of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.federated import page, report
from examples.federated.live import LiveJob
from examples.federated.report import FinishedJob
from halimede.messages import TrainingRound

NAMES = ["a", "b", "c", "d", "e"]


def finished(accuracy: float, updates: int, counted: int = 5) -> FinishedJob:
    job = LiveJob("job", Path(), "", {"rounds": 2}, {})
    for number in (1, 2, 3):
        job.rounds.append(
            TrainingRound(
                job="u", epoch=1, number=number, source="s", invited=NAMES, evaluated=number - 1,
                counted=NAMES[:counted] if number > 1 else [], metrics={"accuracy": 0.5} if number > 1 else {},
            )
        )  # fmt: skip
        job.opened_at.append(float(number))
    job.traffic.updates, job.traffic.all = updates, 2 * updates
    return FinishedJob(job, accuracy)


def figures(**changes: float):
    told = {"federated": 0.96, "dropouts": 0.94, "compressed": 0.955, "alone": 0.2, "smaller": 200, **changes}
    return report.figures(
        finished(told["federated"], 1000),
        finished(told["dropouts"], 600, 3),
        finished(told["compressed"], int(told["smaller"])),
        0.97,
        [told["alone"]] * 5,
    )


def test_a_good_run_has_the_figures_that_were_promised_and_misses_nothing() -> None:
    found = figures()
    assert report.missed(found) == []
    assert (found["dropped_updates"], found["bytes_per_round"]) == (4, 1000)
    assert {"centralised_accuracy", "federated_accuracy", "best_single_accuracy", "rounds"} <= found.keys()


def test_a_round_that_was_repeated_counts_nobodys_update() -> None:
    job = finished(0.9, 1000)
    job.job.rounds.insert(1, job.job.rounds[0])
    assert job.dropped == 5


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"federated": 0.94}, "federated 0.94 is more than"),
        ({"alone": 0.9}, "above a node alone"),
        ({"dropouts": 0.9}, "with drop-outs 0.9"),
        ({"compressed": 0.94}, "compressed 0.94"),
        ({"smaller": 300}, "only 3.3 times"),
    ],
)
def test_a_missed_target_is_named(changes: dict[str, float], text: str) -> None:
    assert any(text in line for line in report.missed(figures(**changes)))


def test_the_page_has_the_figures_and_loads_nothing() -> None:
    jobs = {name: finished(0.96, 1000) for name in ("All five nodes", "Two of five drop out")}
    shown = page.page(figures(), jobs)
    assert "0.960" in shown
    assert "Two of five drop out" in shown
    assert "http://" not in shown.replace("http://www.w3.org/2000/svg", "")
