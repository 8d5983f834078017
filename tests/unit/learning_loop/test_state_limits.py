"""Each limit of the loop's state machine: the last number that waits, and the first one that goes on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from halimede.api.learning_loop import GateSettings, LoopSettings, TriggerSettings
from halimede.api.model import RolloutSpec
from halimede.learning_loop import canary, gate, states, triggers
from halimede.learning_loop.canary import VersionCounts
from halimede.learning_loop.states import (
    DesiredLoop,
    EvidenceReport,
    LoopFacts,
    LoopState,
    RoundRecord,
    TrainingReport,
    desired_loop,
    step,
    with_service,
)
from halimede.stats.differences import PairedCounts
from tests.unit.learning_loop.test_gate import FAST, evidence

SETTINGS = LoopSettings(labelled=800, easy=500, least_stratum=100, triggers=TriggerSettings(pause_s=10.0))
#: half of the frames since the round began are hard
HALF = VersionCounts(answered=200, hard=100)


@pytest.mark.parametrize(
    ("labelled", "easy", "counts", "refusals", "state"),
    [
        (800, 250, HALF, 0, "Training"),
        (799, 250, HALF, 0, "Labelling"),
        (800, 249, HALF, 0, "Labelling"),
        # the hard ones have a least number, too
        (800, 700, HALF, 0, "Training"),
        (800, 701, HALF, 0, "Labelling"),
        # twice as many after a refusal, up to eight times
        (1600, 500, HALF, 1, "Training"),
        (1599, 500, HALF, 1, "Labelling"),
        (1600, 499, HALF, 1, "Labelling"),
        (6400, 2000, HALF, 3, "Training"),
        (6400, 2000, HALF, 4, "Training"),
        (6399, 2000, HALF, 4, "Labelling"),
        # a stream without easy samples needs none, from a tenth on it needs the least number
        (800, 0, VersionCounts(answered=1000, hard=901), 0, "Training"),
        (800, 99, VersionCounts(answered=1000, hard=899), 0, "Labelling"),
        (800, 100, VersionCounts(answered=1000, hard=899), 0, "Training"),
        # and one without hard samples needs none of these
        (800, 800, VersionCounts(answered=1000, hard=99), 0, "Training"),
        (800, 701, VersionCounts(answered=1000, hard=101), 0, "Labelling"),
        (800, 700, VersionCounts(answered=1000, hard=101), 0, "Training"),
        # without any count all samples may be easy
        (800, 499, VersionCounts(), 0, "Labelling"),
        (800, 500, VersionCounts(), 0, "Training"),
    ],
)
def test_a_training_begins_with_enough_samples_of_each_kind(
    labelled: int, easy: int, counts: VersionCounts, refusals: int, state: str
) -> None:
    window = VersionCounts(answered=5000, hard=20)
    loop = LoopState(state="Labelling", begins=40, begins_easy=7, refusals=refusals, window=window, trigger="Drift")
    since = VersionCounts(answered=5000 + counts.answered, hard=20 + counts.hard)
    facts = LoopFacts(labelled=40 + labelled, easy=7 + easy, counts=since)
    found = step(loop, facts, SETTINGS, 5.0)
    assert (found.state, found.used) == (state, 40 + labelled if state == "Training" else 0)
    if state == "Labelling":
        assert f"{labelled} of {800 * 2 ** min(refusals, 3)} labelled samples, {easy} of " in found.message


def test_a_store_that_was_lost_counts_from_0_and_not_below() -> None:
    loop = LoopState(state="Labelling", begins=40, begins_easy=7)
    found = step(loop, LoopFacts(labelled=5, easy=3), SETTINGS, 5.0)
    assert found.message.startswith("0 of 800 labelled samples, 0 of ")


@pytest.mark.parametrize(
    ("state", "limit", "reason", "following"),
    [
        ("Labelling", 11.0, states.TIMED_OUT, "Withdrawn"),
        ("Training", 12.0, states.TIMED_OUT, "Withdrawn"),
        ("Judging", 13.0, states.TIMED_OUT, "Withdrawn"),
        ("Canary", 14.0, canary.NOT_PROVEN, "Withdrawn"),
        ("RolledOut", 15.0, states.TIMED_OUT, "Collecting"),
        ("Withdrawn", 15.0, states.TIMED_OUT, "Collecting"),
    ],
)
def test_each_state_ends_at_its_own_limit(state: str, limit: float, reason: str, following: str) -> None:
    settings = LoopSettings(labelling_s=11.0, training_s=12.0, judging_s=13.0, canary_s=14.0, settling_s=15.0)
    loop = LoopState(state=state, since_s=100.0, version="2", base="1")  # type: ignore[arg-type]
    facts = LoopFacts(present="1", canary="2")
    assert step(loop, facts, settings, 100.0 + limit - 0.1).state == state
    found = step(loop, facts, settings, 100.0 + limit)
    assert (found.state, found.reason, found.since_s) == (following, reason, 100.0 + limit)
    assert f"{state} has taken longer than {limit:g} s" in found.message
    assert step(loop, facts, settings, 0.0).state == state, "a clock that went back only delays"


def test_collecting_has_no_limit() -> None:
    loop = LoopState()
    assert step(loop, LoopFacts(), SETTINGS, 1e9) == loop


@pytest.mark.parametrize("state", ["Labelling", "Training", "Judging"])
def test_what_interrupts_a_round(state: str) -> None:
    loop = LoopState(state=state, version="2", base="1", round=4)  # type: ignore[arg-type]
    for facts, reason in (
        (LoopFacts(contested="30 of 60"), states.CONTESTED),
        (LoopFacts(undone="a person set another one"), states.SUPERSEDED),
        (LoopFacts(present="9"), states.SUPERSEDED),
        (LoopFacts(present="2", replaces=True), states.SUPERSEDED),
    ):
        found = step(loop, facts, SETTINGS, 1.0)
        assert (found.state, found.reason) == ("Withdrawn", reason)
    for facts in (LoopFacts(present="1"), LoopFacts()):
        assert step(loop, facts, SETTINGS, 1.0).state == state
    assert step(replace(loop, base=""), LoopFacts(present="9"), SETTINGS, 1.0).state == state


def test_contested_labels_do_not_end_a_canary_and_its_own_version_may_answer_where_it_replaces() -> None:
    loop = LoopState(state="Canary", version="2", base="1")
    for stays in (LoopFacts(present="1", contested="30 of 60"), LoopFacts(present="2", replaces=True)):
        assert step(loop, stays, SETTINGS, 1.0).state == "Canary"
    ends = LoopFacts(present="2"), LoopFacts(present="9", replaces=True), LoopFacts(present="1", undone="gone")
    assert {step(loop, facts, SETTINGS, 1.0).reason for facts in ends} == {states.SUPERSEDED}
    found = step(loop, LoopFacts(present="1", canary_error="no memory"), SETTINGS, 1.0)
    assert (found.reason, found.message) == (states.CANARY_FAILED, "no memory")


def test_a_canary_is_tried_once_it_is_in_force() -> None:
    loop = LoopState(state="Canary", version="2", base="1")
    assert not step(loop, LoopFacts(present="1"), SETTINGS, 1.0).tried
    assert step(loop, LoopFacts(present="1", in_force=True), SETTINGS, 1.0).tried
    assert not step(replace(loop, state="Judging"), LoopFacts(present="1", in_force=True), SETTINGS, 1.0).tried


def test_a_version_that_is_undone_after_its_roll_out_leaves_the_loop_to_collect() -> None:
    loop = LoopState(state="RolledOut", version="2", base="1", refusals=0)
    found = step(loop, LoopFacts(present="2", undone="rolled back"), SETTINGS, 1.0)
    assert (found.state, found.reason, found.message) == ("Collecting", states.SUPERSEDED, "rolled back")
    assert not found.history


def test_what_runs_in_each_state() -> None:
    loop = LoopState(version="2", round=4, begins_s=7.0)
    settings = LoopSettings(audit_share=0.3)
    assert {state: desired_loop(replace(loop, state=state), settings) for state in states._STEPS} == {
        "Collecting": DesiredLoop(),
        "Labelling": DesiredLoop(audit_share=0.3),
        "Training": DesiredLoop(round=4, begins_s=7.0, audit_share=0.3),
        "Judging": DesiredLoop(round=4, judge="2", begins_s=7.0, audit_share=0.3),
        "Canary": DesiredLoop(canary="2", percent=20, audit_share=0.3),
        "RolledOut": DesiredLoop(canary="2", percent=100, audit_share=0.3),
        "Withdrawn": DesiredLoop(withdrawn="2"),
    }


def test_a_round_begins_with_what_is_true_then() -> None:
    rollout = RolloutSpec()
    loop = LoopState(round=3, served=1, version="2", tried=True, gain=FAST, used=60, begins=40, begins_easy=4)
    facts = LoopFacts(present="1", command=2, labelled=90, easy=9, counts=HALF, rollout=rollout)
    found = step(loop, facts, SETTINGS, 50.0)
    assert found == replace(
        loop, state="Labelling", reason=triggers.COMMAND, trigger=triggers.COMMAND, since_s=50.0, round=4, base="1",
        version="", tried=False, restore=rollout, served=2, gain=None, window=HALF,
    )  # fmt: skip
    drift = step(loop, replace(facts, command=1, drifting=True), SETTINGS, 50.0)
    assert (drift.trigger, drift.drifted) == (triggers.DRIFT, True)
    assert (drift.begins_s, drift.begins, drift.begins_easy) == (50.0, 90, 9)
    again = step(replace(loop, drifted=True), replace(facts, command=1, drifting=True), SETTINGS, 50.0)
    assert (again.trigger, again.begins_s, again.begins, again.begins_easy) == (triggers.DRIFT, 0.0, 40, 4)
    assert not step(replace(loop, drifted=True), replace(facts, command=1), SETTINGS, 50.0).drifted


def test_new_samples_are_those_since_the_last_training_and_its_share_is_of_the_stream_since_the_drift() -> None:
    loop = LoopState(used=300, begins=100, refusals=1, drifted=True, since_s=0.0)
    for labelled, state in ((399, "Collecting"), (400, "Labelling")):
        assert step(loop, LoopFacts(drifting=True, labelled=labelled), SETTINGS, 1e6).state == state
    assert step(loop, LoopFacts(drifting=True, labelled=400), SETTINGS, 19.9).state == "Collecting"
    assert step(loop, LoopFacts(drifting=True, labelled=400), SETTINGS, 20.0).state == "Labelling"


def test_counts_that_fell_are_taken_over_only_if_they_are_below_what_was_used() -> None:
    loop = LoopState(used=300, begins=100, begins_easy=30)
    assert step(loop, LoopFacts(labelled=300, easy=20), SETTINGS, 1.0) == loop
    assert step(loop, LoopFacts(labelled=301, easy=20), SETTINGS, 1.0) == loop
    found = step(loop, LoopFacts(labelled=299, easy=20), SETTINGS, 1.0)
    assert (found.used, found.begins, found.begins_easy) == (299, 100, 20)
    found = step(replace(loop, used=0), LoopFacts(labelled=99, easy=50), SETTINGS, 1.0)
    assert (found.used, found.begins, found.begins_easy) == (0, 99, 30)


def test_the_settings_of_the_roll_out_are_back_before_the_next_round() -> None:
    rollout, changed = RolloutSpec(), RolloutSpec(canary_percent=20)
    loop = LoopState(restore=rollout)
    facts = LoopFacts(command=1, rollout=changed)
    assert step(loop, facts, SETTINGS, 1.0) == loop
    for now in (rollout, None):
        found = step(loop, replace(facts, rollout=now), SETTINGS, 1.0)
        assert (found.state, found.restore) == ("Collecting", None)


def test_contested_labels_are_the_reason_only_while_they_are() -> None:
    loop = step(LoopState(), LoopFacts(contested="30 of 60", command=1), SETTINGS, 1.0)
    assert (loop.state, loop.reason, loop.message) == ("Collecting", states.CONTESTED, "30 of 60")
    loop = step(loop, LoopFacts(), SETTINGS, 1.0)
    assert (loop.reason, loop.message) == ("", "")
    kept = LoopState(reason=canary.PROVEN, message="gain")
    assert step(kept, LoopFacts(), SETTINGS, 1.0) == kept


def test_a_training_ends_in_a_candidate_or_in_its_error() -> None:
    loop = LoopState(state="Training", round=3, trigger="Drift", candidates=5, refused=2, refusals=1)
    found = step(loop, LoopFacts(training=TrainingReport(round=3, version="7")), SETTINGS, 9.0)
    assert (found.state, found.version, found.candidates, found.reason) == ("Judging", "7", 6, "Drift")
    for report in (TrainingReport(round=3, version="7", error="killed"), TrainingReport(round=3)):
        found = step(loop, LoopFacts(training=report), SETTINGS, 9.0)
        assert (found.state, found.reason, found.candidates) == ("Withdrawn", states.TRAINING_FAILED, 5)
        assert (found.refused, found.refusals) == (2, 2), "there was no candidate"
        assert found.message == (report.error or "the training reported no version")


def test_each_candidate_that_is_judged_is_an_attempt() -> None:
    loop = LoopState(state="Judging", version="2", base="1", attempts=11, checks=3, refused=2)
    close = PairedCounts(both=150, candidate=22, present=8, neither=20)
    report = EvidenceReport(version="2", evidence=evidence(close, close))
    facts = LoopFacts(present="1", counts=HALF, canary_counts=VersionCounts(answered=3), evidence=report)
    found = step(loop, facts, SETTINGS, 9.0)
    assert (found.state, found.reason, found.attempts, found.refused) == ("Withdrawn", gate.NOT_BETTER, 12, 3)
    assert found.gain is not None
    first = step(replace(loop, attempts=0), facts, SETTINGS, 9.0)
    assert (first.state, first.attempts, first.checks, first.refused) == ("Canary", 1, 0, 2)
    assert (first.start, first.canary_start) == (HALF, VersionCounts(answered=3))
    assert step(replace(loop, attempts=0), replace(facts, replaces=True), SETTINGS, 9.0).canary_start == HALF
    strict = replace(SETTINGS, gate=GateSettings(least=10_000))
    assert step(replace(loop, attempts=0), facts, strict, 9.0).reason == gate.TOO_FEW


def test_a_canary_that_holds_is_rolled_out_and_one_that_does_not_is_withdrawn() -> None:
    record = RoundRecord(round=1, trigger="Drift", outcome="Withdrawn", reason="x")
    loop = LoopState(
        state="Canary", version="2", base="1", round=2, attempts=3, refusals=2, rolled_out=4, refused=5,
        history=[record] * states.HISTORY, window=VersionCounts(answered=1000, hard=100),
        start=VersionCounts(answered=4000, hard=400, audited=100, agreed=80), canary_start=VersionCounts(answered=50),
    )  # fmt: skip
    present = VersionCounts(answered=8000, hard=800, audited=400, agreed=290)
    good = VersionCounts(answered=1050, hard=100, audited=30, agreed=30)
    found = step(loop, LoopFacts(present="1", counts=present, canary_counts=good), SETTINGS, 9.0)
    assert (found.state, found.reason, found.rolled_out, found.refused) == ("RolledOut", canary.PROVEN, 5, 5)
    assert (found.attempts, found.refusals, found.start) == (0, 0, VersionCounts())
    assert len(found.history) == states.HISTORY
    last = found.history[-1]
    assert (last.round, last.version, last.outcome, last.ended_s) == (2, "2", "RolledOut", 9.0)
    assert last.before == VersionCounts(answered=7000, hard=700, audited=400, agreed=290).agreement(1.959963984540054)
    bad = replace(good, agreed=3)
    found = step(loop, LoopFacts(present="1", counts=present, canary_counts=bad), SETTINGS, 9.0)
    assert (found.state, found.reason, found.rolled_out, found.refused) == ("Withdrawn", canary.AUDITS_WORSE, 4, 6)
    assert (found.attempts, found.refusals, found.history[-1].outcome) == (3, 3, "Withdrawn")
    some = replace(good, agreed=24)
    found = step(loop, LoopFacts(present="1", counts=present, canary_counts=some), SETTINGS, 9.0)
    assert (found.state, found.checks) == ("Canary", 1)
    few = replace(good, audited=29)
    assert step(loop, LoopFacts(present="1", counts=present, canary_counts=few), SETTINGS, 9.0) == loop


def test_where_a_candidate_replaces_the_version_before_their_counts_follow_one_another() -> None:
    loop = LoopState(
        state="Canary", version="2", base="1", window=VersionCounts(answered=1000),
        start=VersionCounts(answered=8000, hard=800, audited=400, agreed=290),
        canary_start=VersionCounts(answered=8000),
    )  # fmt: skip
    both = VersionCounts(answered=8500, hard=850, audited=420, agreed=300)
    facts = LoopFacts(present="1", counts=both, replaces=True)
    waiting = step(loop, facts, SETTINGS, 9.0)
    assert waiting == replace(loop, canary_start=both), "samples that both versions answered count for neither"
    later = VersionCounts(answered=9500, hard=950, audited=450, agreed=330)
    found = step(waiting, replace(facts, present="2", counts=later), SETTINGS, 9.0)
    assert (found.state, found.reason) == ("RolledOut", canary.PROVEN)
    before = VersionCounts(answered=7000, hard=800, audited=400, agreed=290).agreement(1.0)
    assert found.history[-1].before.value == before.value  # type: ignore[union-attr]


def test_a_rolled_out_version_is_counted_from_when_it_answers_all_until_it_has_enough_audits() -> None:
    settings = LoopSettings(after_audits=100)
    record = RoundRecord(round=2, trigger="Drift", outcome="RolledOut", reason="x")
    loop = LoopState(state="RolledOut", version="2", base="1", reason="x", drifted=True, history=[record, record])
    counts = VersionCounts(answered=500, hard=50, audited=40, agreed=30)
    assert step(loop, LoopFacts(present="1", counts=counts), settings, 1.0) == loop
    assert step(loop, LoopFacts(counts=counts), settings, 1.0) == loop
    found = step(loop, LoopFacts(present="9", counts=counts), settings, 1.0)
    assert (found.state, found.reason) == ("Collecting", states.SUPERSEDED)
    found = step(loop, LoopFacts(present="1", canary_error="no memory"), settings, 1.0)
    assert (found.state, found.reason, found.message) == ("Withdrawn", states.CANARY_FAILED, "no memory")
    began = step(loop, LoopFacts(present="2", counts=counts), settings, 1.0)
    assert began == replace(loop, start=counts, drifted=False)
    few = VersionCounts(answered=1500, hard=150, audited=139, agreed=120)
    assert step(began, LoopFacts(present="2", counts=few), settings, 1.0) == began
    enough = replace(few, audited=140)
    found = step(began, LoopFacts(present="2", counts=enough), settings, 1.0)
    after = VersionCounts(answered=1000, hard=100, audited=100, agreed=90).agreement(1.959963984540054)
    assert (found.state, found.reason, found.history) == ("Collecting", "x", [record, replace(record, after=after)])
    assert found.message == f"agreement {after.value:.3f} ({after.low:.3f} to {after.high:.3f})"


def test_a_withdrawn_candidate_is_waited_for_while_a_node_uses_it() -> None:
    loop = LoopState(state="Withdrawn", version="2", reason="x", message="y")
    assert step(loop, LoopFacts(canary="2"), SETTINGS, 1.0) == loop
    for facts, there in ((LoopFacts(canary="3"), loop), (LoopFacts(), loop), (LoopFacts(), replace(loop, version=""))):
        found = step(there, facts, SETTINGS, 1.0)
        assert (found.state, found.reason, found.message) == ("Collecting", "x", "y")


def test_a_round_without_an_audit_has_no_estimate() -> None:
    loop = LoopState(state="Training", version="")
    for audited in (0, 1):
        facts = LoopFacts(undone="gone", counts=VersionCounts(answered=10, audited=audited))
        assert (step(loop, facts, SETTINGS, 1.0).history[-1].before is not None) == audited


def test_another_service_keeps_only_the_rounds_and_the_commands() -> None:
    loop = LoopState(
        service="a", state="Canary", round=4, served=2, since_s=7.0, used=9, begins=8, refusals=3, attempts=2,
        candidates=6, rolled_out=2, refused=3, version="2", window=HALF,
        history=[RoundRecord(round=1, trigger="Drift", outcome="Withdrawn", reason="x")],
    )  # fmt: skip
    assert with_service(loop, "a") == loop
    assert with_service(replace(loop, service=""), "b") == replace(loop, service="b")
    kept = {"round": 4, "served": 2, "candidates": 6, "rolled_out": 2, "refused": 3, "history": loop.history}
    assert with_service(loop, "b") == LoopState(service="b", since_s=7.0, **kept)
