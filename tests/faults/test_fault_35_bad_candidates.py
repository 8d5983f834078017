"""Fault 35: a candidate that is worse, broken, slow, or trained on wrong labels.

It never serves beyond its canary, and the status has the reason.
"""

from __future__ import annotations

import pytest

from halimede.api.learning_loop import LoopSettings
from halimede.learning_loop import canary, gate, states
from tests.loop_world import LoopWorld, SimulatedModel, model

PRESENT = model("1", 0.95, 0.70)
#: candidates that the gate refuses, and the reasons for it
REFUSED = {
    "worse": (model("2", 0.6, 0.5), gate.WORSE),
    "no better": (model("2", 0.95, 0.70), gate.NOT_BETTER),
    "broken file": (model("2", 0.9, 0.9, error="model.onnx: no ONNX file"), gate.NOT_LOADED),
    "slow": (model("2", 0.95, 0.94, milliseconds=40.0), gate.TOO_SLOW),
    "trained on wrong labels": (model("2", 0.02, 0.02), gate.WORSE),
    "forgets what was": (model("2", 0.6, 0.94), gate.FORGETS),
}


def drifted(candidate: SimulatedModel, seed: int = 0) -> LoopWorld:
    world = LoopWorld(PRESENT, lambda *_: candidate, LoopSettings(), seed=seed)
    world.run(40)
    world.kind, world.drifting, world.kinds = "drifted", True, []
    return world


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("seed", range(5))
def test_a_bad_candidate_gets_no_frame_and_the_status_has_the_reason(kind: str, seed: int) -> None:
    candidate, reason = REFUSED[kind]
    world = drifted(candidate, seed)
    world.until("Withdrawn")
    record = world.loop.history[-1]
    assert (record.outcome, record.reason) == ("Withdrawn", reason)
    assert record.message
    world.run(1000)
    assert world.loop.rolled_out == 0
    assert max(world.canary_share) == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_a_candidate_that_the_gate_was_deceived_about_is_withdrawn_by_its_audits(seed: int) -> None:
    """The held-out labels are wrong as well: only the audits of the live stream show what the candidate is."""
    world = drifted(model("2", 0.95, 0.94), seed)
    world.until("Canary")
    world.known["2"] = model("2", 0.4, 0.4)
    world.until("Withdrawn")
    assert world.loop.reason == canary.AUDITS_WORSE
    assert world.loop.rolled_out == 0
    assert max(world.canary_share) <= 0.2


def test_a_canary_that_fails_on_frames_is_withdrawn() -> None:
    world = drifted(model("2", 0.95, 0.94, fails=True))
    world.until("Canary")
    world.until("Withdrawn")
    assert world.loop.reason == states.CANARY_FAILED
