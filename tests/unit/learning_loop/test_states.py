"""The state machine of the loop, in simulated time."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.api.learning_loop import LoopSettings, TriggerSettings
from halimede.learning_loop import states, triggers
from halimede.learning_loop.canary import VersionCounts
from halimede.learning_loop.gate import Evidence
from halimede.learning_loop.states import EvidenceReport, LoopFacts, LoopState, TrainingReport, desired_loop
from tests.loop_world import STEP_S, LoopWorld, SimulatedModel, model

SETTINGS = LoopSettings(training_s=200.0, judging_s=200.0, labelling_s=2000.0)
PRESENT = model("1", 0.95, 0.70)
BETTER = model("2", 0.95, 0.94)


def world(candidate: SimulatedModel | str = BETTER, settings: LoopSettings = SETTINGS) -> LoopWorld:
    return LoopWorld(PRESENT, lambda *_: candidate, settings)


def drifted(candidate: SimulatedModel | str = BETTER, settings: LoopSettings = SETTINGS) -> LoopWorld:
    found = world(candidate, settings)
    found.run(40)
    found.kind, found.drifting = "drifted", True
    found.kinds = []
    return found


def test_without_a_trigger_nothing_is_trained() -> None:
    quiet = world()
    quiet.run(500)
    assert (quiet.passed, quiet.loop.candidates) == ([], 0)


def test_drift_leads_to_a_better_model_that_answers_all_frames_and_the_history_has_the_estimates() -> None:
    found = drifted()
    found.until("RolledOut")
    assert found.passed == ["Labelling", "Training", "Judging", "Canary", "RolledOut"]
    found.drifting = False
    found.until("Collecting")
    assert (found.present.version, found.loop.candidates, found.loop.rolled_out, found.loop.refused) == ("2", 1, 1, 0)
    (record,) = found.loop.history
    assert record.trigger == triggers.DRIFT
    assert record.before.value < 0.85 < record.after.value  # type: ignore[union-attr]
    assert record.gain is not None


def test_the_next_round_trains_and_judges_on_all_samples_since_the_drift() -> None:
    settings = msgspec.structs.replace(SETTINGS, triggers=TriggerSettings(samples=3000))
    found = drifted(settings=settings)
    found.until("Training")
    began = desired_loop(found.loop, settings).begins_s
    found.until("RolledOut")
    found.drifting = False
    for state in ("Training", "Judging"):
        found.until(state)
        assert found.loop.trigger == triggers.SAMPLES
        assert desired_loop(found.loop, settings).begins_s == began


def test_a_refused_candidate_never_gets_a_frame_and_the_next_round_waits_for_new_samples() -> None:
    found = drifted(model("2", 0.5, 0.5))
    found.until("Withdrawn")
    began, used = found.now_s, found.labelled
    assert set(found.canary_share) == {0.0}
    found.until("Labelling")
    assert found.now_s - began >= triggers.pause(1, SETTINGS.triggers) - STEP_S
    assert found.labelled > used
    assert found.loop.history[-1].reason == "CandidateWorse"


def test_pauses_after_refusals_grow_so_that_a_service_that_cannot_learn_does_not_train_all_day() -> None:
    found = drifted(model("2", 0.95, 0.70))
    found.run(4000)  # 22 hours
    assert found.loop.rolled_out == 0
    assert 3 <= found.loop.round <= 10


def test_a_command_starts_a_round_once() -> None:
    found = world()
    found.run(20)
    found.command = 1
    found.until("Withdrawn")  # on the stream as before it is no better
    assert found.loop.trigger == triggers.COMMAND
    found.run(200)
    assert found.loop.round == 1


def test_contested_labels_stop_the_loop_until_they_are_settled() -> None:
    found = drifted()
    found.until("Labelling")
    facts = msgspec.structs.replace(found.facts(), contested="30 of 60 have different labels")
    loop = states.step(found.loop, facts, SETTINGS, found.now_s)
    assert (loop.state, loop.reason) == ("Withdrawn", states.CONTESTED)
    loop = states.step(loop, facts, SETTINGS, found.now_s)
    held = states.step(loop, facts, SETTINGS, found.now_s + 1e6)
    assert (held.state, held.reason) == ("Collecting", states.CONTESTED)
    assert states.step(held, found.facts(), SETTINGS, found.now_s + 1e6).state == "Labelling"


def test_reports_of_another_round_or_version_do_not_count() -> None:
    training = LoopState(state="Training", round=3)
    stale = LoopFacts(training=TrainingReport(round=2, version="9"))
    assert states.step(training, stale, SETTINGS, 1.0) == training
    judging = LoopState(state="Judging", round=3, version="4")
    stale = LoopFacts(evidence=EvidenceReport(version="3", evidence=Evidence()))
    assert states.step(judging, stale, SETTINGS, 1.0) == judging


@pytest.mark.parametrize("state", ["Labelling", "Training", "Judging", "Canary", "RolledOut", "Withdrawn"])
def test_gm_restarts_in_any_state_with_the_status_alone(state: str) -> None:
    found = drifted(model("2", 0.3, 0.3)) if state == "Withdrawn" else drifted()
    found.until(state)
    # everything else that GM knew is gone
    found.loop = msgspec.json.decode(msgspec.json.encode(found.loop), type=LoopState)
    found.until("Collecting")
    assert (found.loop.round, found.loop.rolled_out) == (1, state != "Withdrawn")


counts = st.builds(VersionCounts, **dict.fromkeys(("answered", "hard", "audited", "agreed"), st.integers(0, 10_000)))
versions = st.sampled_from(["", "1", "2", "3"])
facts = st.builds(
    LoopFacts, drifting=st.booleans(), present=versions, canary=versions, counts=counts, canary_counts=counts,
    labelled=st.integers(0, 5000), contested=st.sampled_from(["", "", "", "contested"]), command=st.integers(0, 3),
    training=st.none() | st.builds(TrainingReport, round=st.integers(0, 4), version=versions),
    evidence=st.none() | st.builds(EvidenceReport, version=versions, evidence=st.builds(Evidence)),
    canary_error=st.sampled_from(["", "", "", "it failed"]),
)  # fmt: skip


@given(st.lists(st.tuples(facts, st.floats(-100, 5000)), max_size=40))
def test_whatever_nodes_report_no_version_gets_all_frames_without_gate_and_canary(
    reported: list[tuple[LoopFacts, float]],
) -> None:
    loop, now = LoopState(), 0.0
    trail = ["Collecting"]
    for seen, seconds in reported:
        now += seconds
        loop = states.step(loop, seen, SETTINGS, now)
        if loop.state != trail[-1]:
            trail.append(loop.state)
        wanted = desired_loop(loop, SETTINGS)
        if wanted.percent == 100:
            assert trail[-5:] == ["Labelling", "Training", "Judging", "Canary", "RolledOut"]
            assert wanted.canary == loop.version
        assert loop.rolled_out + loop.refused <= loop.candidates * 2
        assert len(loop.history) <= states.HISTORY
        msgspec.convert(msgspec.to_builtins(loop), LoopState)


def test_a_service_that_counts_from_0_again_gets_its_next_round() -> None:
    settings = LoopSettings(triggers=TriggerSettings(drift=False, samples=10))
    before = LoopState(used=50_000, begins=40_000, begins_easy=9000, since_s=1.0)
    now = LoopFacts(present="1", labelled=5, easy=3)
    loop = states.step(before, now, settings, 1e6)
    assert (loop.state, loop.used, loop.begins, loop.begins_easy) == ("Collecting", 5, 5, 3)
    assert states.step(loop, msgspec.structs.replace(now, labelled=15), settings, 1e6).state == "Labelling"
    # reports that are not there yet say nothing
    assert states.step(before, LoopFacts(present="1"), settings, 1e6).used == before.used
