"""The triggers: from which number and which second on a round begins, and which of them comes first."""

from __future__ import annotations

import pytest

from halimede.api.learning_loop import TriggerSettings
from halimede.learning_loop import triggers
from halimede.learning_loop.triggers import TriggerFacts, due_trigger, pause

FACTS = {"labelled": 1000, "since_s": 1e6}


@pytest.mark.parametrize(
    ("facts", "settings", "why"),
    [
        ({"command": 1}, {}, triggers.COMMAND),
        ({"command": 1, "served": 1}, {}, ""),
        ({"command": 1, "served": 2}, {}, ""),
        # a command waits for nothing
        ({"command": 1, "labelled": 0, "since_s": 0.0, "refusals": 3}, {}, triggers.COMMAND),
        ({}, {}, ""),
        ({"drifting": True}, {}, triggers.DRIFT),
        ({"drifting": True}, {"drift": False}, ""),
        ({"drifting": True, "labelled": 0}, {}, ""),
        ({"drifting": True, "labelled": 1}, {}, triggers.DRIFT),
        ({"drifting": True, "since_s": 299.9}, {}, ""),
        ({"drifting": True, "since_s": 300.0}, {}, triggers.DRIFT),
        ({"labelled": 500}, {"samples": 500}, triggers.SAMPLES),
        ({"labelled": 499}, {"samples": 500}, ""),
        ({"labelled": 500, "drifting": True}, {"samples": 500}, triggers.DRIFT),
        ({"since_s": 3600.0}, {"every_s": 3600.0}, triggers.SCHEDULE),
        ({"since_s": 3599.0}, {"every_s": 3600.0}, ""),
        ({"since_s": 3600.0, "labelled": 500}, {"every_s": 3600.0, "samples": 500}, triggers.SAMPLES),
    ],
)
def test_a_round_begins_from_its_limit_on(facts: dict[str, object], settings: dict[str, object], why: str) -> None:
    assert due_trigger(TriggerFacts(**FACTS | facts), TriggerSettings(**settings)) == why  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labelled", "refusals", "new_share", "why"),
    [
        (50, 1, 0.5, triggers.DRIFT),
        (49, 1, 0.5, ""),
        (49, 0, 0.5, triggers.DRIFT),
        (49, 2, 0.49, triggers.DRIFT),
        (199, 1, 2.0, ""),
        (200, 1, 2.0, triggers.DRIFT),
    ],
)
def test_a_round_after_a_refusal_needs_new_samples(labelled: int, refusals: int, new_share: float, why: str) -> None:
    facts = TriggerFacts(drifting=True, labelled=labelled, trained=100, refusals=refusals, since_s=1e6)
    assert due_trigger(facts, TriggerSettings(new_share=new_share)) == why


def test_the_pause_doubles_six_times() -> None:
    settings = TriggerSettings(pause_s=10.0)
    assert [pause(refusals, settings) for refusals in range(9)] == [10, 20, 40, 80, 160, 320, 640, 640, 640]
