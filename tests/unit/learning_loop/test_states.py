"""The state machine of the loop, in simulated time."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from halimede.api.learning_loop import LoopSettings, TriggerSettings
from halimede.learning_loop import states
from halimede.learning_loop.canary import VersionCounts
from halimede.learning_loop.gate import Evidence
from halimede.learning_loop.states import EvidenceReport, LoopFacts, LoopState, TrainingReport, desired_loop

SETTINGS = LoopSettings(training_s=200.0, judging_s=200.0, labelling_s=2000.0)


def test_reports_of_another_round_or_version_do_not_count() -> None:
    training = LoopState(state="Training", round=3)
    stale = LoopFacts(training=TrainingReport(round=2, version="9"))
    assert states.step(training, stale, SETTINGS, 1.0) == training
    judging = LoopState(state="Judging", round=3, version="4")
    stale = LoopFacts(evidence=EvidenceReport(version="3", evidence=Evidence()))
    assert states.step(judging, stale, SETTINGS, 1.0) == judging


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
