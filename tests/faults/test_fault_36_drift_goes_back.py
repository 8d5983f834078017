"""Fault 36: the drift goes back to what was, in the midst of the loop. There is no oscillation: the gate holds."""

from __future__ import annotations

import pytest

from halimede.api.learning_loop import LoopSettings, TriggerSettings
from tests.loop_world import LoopWorld, SimulatedModel, model

#: knows the stream as before and the drifted one
PRESENT = model("1", 0.95, 0.70)
STEPS_A_PHASE = ["Labelling", "Training", "Judging", "Canary"]


def learned(round_: int, kinds: list[str]) -> SimulatedModel:
    """Train as the loop does: on the recent stream and a share of the earlier one, so that neither is forgotten."""
    return model(str(round_ + 1), 0.945, 0.94 if "drifted" in kinds else 0.70)


def forgetful(round_: int, kinds: list[str]) -> SimulatedModel:
    """Train on the recent stream alone: good for that, bad for the other."""
    return model(str(round_ + 1), *((0.70, 0.94) if "drifted" in kinds else (0.95, 0.70)))


def drift(world: LoopWorld, kind: str) -> None:
    world.kind = kind
    # what the present version knows is no drift
    world.drifting = world.present.accuracy[kind] < 0.9


@pytest.mark.parametrize("state", STEPS_A_PHASE)
@pytest.mark.parametrize("seed", range(3))
def test_a_drift_that_goes_back_in_any_state_leads_to_at_most_one_roll_out(state: str, seed: int) -> None:
    world = LoopWorld(PRESENT, learned, LoopSettings(), seed=seed)
    world.run(40)
    drift(world, "drifted")
    world.until(state)
    drift(world, "as before")
    world.run(2000)
    assert world.loop.rolled_out <= 1
    assert world.present.accuracy["as before"] >= 0.93, "the service is as good as before on the stream that it has"


@pytest.mark.parametrize("train", [learned, forgetful])
@pytest.mark.parametrize("period", [15, 60, 250])
def test_a_drift_that_comes_and_goes_does_not_make_versions_alternate(train: object, period: int) -> None:
    settings = LoopSettings(triggers=TriggerSettings(pause_s=60.0))
    world = LoopWorld(PRESENT, train, settings, seed=period)  # type: ignore[arg-type]
    for turn in range(3000 // period):
        drift(world, ("as before", "drifted")[turn % 2])
        world.run(period)
    assert world.loop.rolled_out <= 2
    assert world.loop.round <= 20
    assert world.present.accuracy["as before"] >= 0.93
