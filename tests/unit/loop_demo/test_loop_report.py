"""The report of `make demo-loop` names each promise that a run broke, and its page shows the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from examples.learning_loop import page, report
from examples.learning_loop.report import FinishedRun
from examples.learning_loop.stream import Mark, SentFrame

#: seconds at which the parts of the run begin: drift, canary, after the roll-out, bad trainer
PARTS = {"drift_s": 10.0, "canary_s": 20.0, "after_s": 30.0, "worse_s": 40.0}
MARKS = [Mark(10.0, "drift"), Mark(15.0, "Training Drift", "Training"), Mark(20.0, "Canary", "Canary", "v2")]
LOST = SentFrame("1", 35.0)


def frame(at_s: float, *, right: bool, hard: bool, wait_s: float = 0.002) -> SentFrame:
    by = "cloud" if hard else "edge"
    return SentFrame("1", at_s, at_s + wait_s, "1" if right else "2", by, hard)


def finished(**changes: Any) -> FinishedRun:
    shares = {"before": (0.9, 0.2), "drifted": (0.5, 0.6), "after": (0.85, 0.25), "slow": 0.002, **changes}
    frames = []
    for name, begin in (("before", 0.0), ("drifted", 10.0), ("after", 30.0)):
        right, hard = shares[name]
        for i in range(100):
            wait = shares["slow"] if name == "drifted" and i >= 50 else 0.002
            frames.append(frame(begin + i / 10, right=i < 100 * right, hard=i % 10 < 10 * hard, wait_s=wait))
    history = [
        {"round": 1, "trigger": "Drift", "version": "v2", "outcome": "RolledOut", "reason": "CanaryAuditsHold"},
        {"round": 2, "trigger": "Command", "version": "v3", "outcome": "Withdrawn", "reason": "CandidateWorse"},
    ]
    loop = {"history": history[: shares.get("rounds", 2)]}
    return FinishedRun(frames + shares.get("more", []), MARKS, loop, warm_s=0.0, **PARTS)


def test_a_good_run_has_the_figures_that_were_promised_and_breaks_nothing() -> None:
    found = report.figures(finished())
    assert report.missed(found) == []
    promised = {
        "accuracy_before_drift", "accuracy_drifted", "accuracy_after", "upload_ratio_before", "upload_ratio_drifted",
        "upload_ratio_after", "candidates", "rolled_out", "refused", "lost",
    }  # fmt: skip
    assert promised <= found.keys()
    assert (found["accuracy_before_drift"], found["accuracy_drifted"], found["accuracy_after"]) == (0.9, 0.5, 0.85)
    assert (found["candidates"], found["rolled_out"], found["refused"], found["lost"]) == (2, 1, 1, 0)
    assert (found["frames_drifted_before_training"], found["frames_while_training"]) == (50, 50)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"after": (0.6, 0.25)}, "accuracy 0.6 is not half of the way from 0.5 to 0.9"),
        ({"after": (0.85, 0.5)}, "uploads 0.5 are not half of the way"),
        ({"drifted": (0.95, 0.6)}, "the drift costs no accuracy"),
        ({"slow": 0.02}, "p99 at the edge is 10.00 times as long while training"),
        ({"drifted": (0.5, 1.0)}, "the edge answered nothing before or while the node trained"),
        ({"rounds": 1}, "the bad candidate was not refused"),
        ({"rounds": 0}, "no candidate was rolled out"),
        ({"more": [LOST]}, "1 frames have no answer"),
    ],
)
def test_a_broken_promise_is_named(changes: dict[str, Any], text: str) -> None:
    assert any(text in line for line in report.missed(report.figures(finished(**changes))))


def test_a_few_slow_frames_among_many_prove_nothing() -> None:
    quick = np.full(400, 2.0)
    ratio, low, high = report.p99_ratio(quick, np.concatenate([quick, [6.0] * 5]))
    assert (ratio, low) == (3.0, 1.0)
    assert high >= 3.0
    ratio, low, _ = report.p99_ratio(quick, np.concatenate([quick, [6.0] * 20]))
    assert (ratio, low) == (3.0, 3.0)


def test_without_a_training_there_is_no_ratio() -> None:
    assert report.p99_ratio(np.array([2.0]), np.array([])) == (0.0, 0.0, 0.0)


def test_the_page_shows_the_run_and_loads_nothing() -> None:
    run = finished()
    shown = page.page(report.figures(run), run)
    for text in ("0.850", "CandidateWorse", "drift", "canary v2", "while the node trains"):
        assert text in shown
    assert "http://" not in shown.replace("http://www.w3.org/2000/svg", "")
