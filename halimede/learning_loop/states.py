"""The state machine of the loop of one service, from collected samples to a rolled-out model.

    Collecting -> Labelling -> Training -> Judging -> Canary -> RolledOut -> Collecting
                      |           |           |          |          |
                      +-----------+-----------+----------+----------+--> Withdrawn -> Collecting

Nothing runs here and nothing waits: a state is a wait. Collecting waits for a trigger, Labelling for enough labels,
Training for the aggregator's model, Judging for the trainers' comparison, Canary for audits of the live stream,
RolledOut and Withdrawn for the nodes to follow. Whenever GM reconciles the resource, it calls ``step`` with the state
that its status has and with what nodes have reported, and writes the new state to the status. ``desired_loop``
alone decides what runs in a state: the training of this round, a comparison, or a canary. There is one round at a time.
Each state but Collecting has a deadline, after which the round ends with a reason; after a refusal the next round waits
longer.

Both functions are level-triggered. If GM, a node or a worker restarts, nothing is lost and nothing is done twice: each
report names its round or version, and a report of another one does not count. The audits' estimate of the service's
agreement before and after each round is in ``history``. Pure: the time is an argument.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from halimede.api.learning_loop import LoopSettings
from halimede.api.model import RolloutSpec
from halimede.errors import shorten_middle
from halimede.learning_loop import canary, gate, triggers
from halimede.learning_loop.canary import VersionCounts
from halimede.learning_loop.gate import Evidence
from halimede.learning_loop.triggers import TriggerFacts
from halimede.stats.agreement import Estimate
from halimede.stats.differences import z_of

#: the states of a loop; the phase of its TrainingModel
State = Literal["Collecting", "Labelling", "Training", "Judging", "Canary", "RolledOut", "Withdrawn"]

#: reasons of a round's end, in addition to those of the gate and the canary: labels cannot be trusted; the training
#: failed; a state took longer than its limit; another version is in use; nodes refused or withdrew the canary
CONTESTED = "LabelsContested"
TRAINING_FAILED = "TrainingFailed"
TIMED_OUT = "TimedOut"
SUPERSEDED = "Superseded"
CANARY_FAILED = "CanaryFailed"
#: most rounds in the status
HISTORY = 20
#: confidence of the intervals in the status
CONFIDENCE = 0.95
#: refusals in a row after which a round needs no more samples than before
MOST_GROWTH = 3

#: a count; texts of limited length
Number = Annotated[int, Meta(ge=0)]
Short = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=4096)]


class RoundRecord(Struct, rename="camel", kw_only=True, frozen=True):
    """What a round did, in the history of the loop.

    Attributes:
        round: the number of the round.
        trigger: why it began.
        version: the candidate; empty: it had none.
        outcome: its end.
        reason, message: why it ended so, in one word and with numbers.
        gain: the candidate's gain in accuracy on held-out samples; None: not measured.
        before, after: the service's agreement with the big model by audits, before the round and after the roll-out;
            None: too few audits, or no roll-out.
        ended_s: when it ended, in seconds since 1970.

    """

    round: Number
    trigger: Short
    version: Short = ""
    outcome: Literal["RolledOut", "Withdrawn"]
    reason: Short
    message: Text = ""
    gain: Estimate | None = None
    before: Estimate | None = None
    after: Estimate | None = None
    ended_s: float = 0.0


class LoopState(Struct, rename="camel", kw_only=True, frozen=True):
    """The state of a loop, as the status has it. Times are in seconds since 1970 by GM's clock.

    Attributes:
        state: the present state.
        reason, message: why it was entered, or what it waits for.
        since_s: when this state began.
        round: number of the present or last round.
        trigger: why the round began.
        base: the version of the model when the round began; the candidate is to replace it.
        version: the candidate; empty: there is none yet.
        model: name of the Model that the loop edits; empty: none at present.
        service: name of the service of which all counts here are; empty: none yet.
        tried: the candidate was the Model's version in force in this round.
        restore: the roll-out settings of the Model when the round began; None: the Model has them again.
        drifted: the last drift has not ended: a round after a refusal adds samples to those of the round before.
        begins_s: when the last drift began: only samples since then are trained and judged on.
        begins, begins_easy: number of labelled samples of the service at that time, and of its labelled easy samples.
        used: labelled samples when the last training began.
        refusals: rounds in a row without a roll-out.
        attempts: candidates that the gate has judged since the last roll-out.
        checks: judgements of the present canary (in the status ``looks``).
        served: number of the last command for which a round began.
        gain: the candidate's gain in accuracy on held-out samples; None: not measured.
        window: counts of the service when this round began.
        start, canary_start: counts of the present version and of the canary when the canary began; after a roll-out,
            ``start`` is when the version answered all frames.
        candidates, rolled_out, refused: number of candidates of all rounds, by their end.
        history: the last rounds, the latest last.

    """

    state: State = "Collecting"
    reason: Short = ""
    message: Text = ""
    since_s: float = 0.0
    round: Number = 0
    trigger: Short = ""
    base: Short = ""
    version: Short = ""
    model: Short = ""
    service: Short = ""
    tried: bool = False
    restore: RolloutSpec | None = None
    drifted: bool = False
    begins_s: float = 0.0
    begins: Number = 0
    begins_easy: Number = 0
    used: Number = 0
    refusals: Number = 0
    attempts: Number = 0
    checks: Number = field(default=0, name="looks")
    served: Number = 0
    gain: Estimate | None = None
    window: VersionCounts = VersionCounts()
    start: VersionCounts = VersionCounts()
    canary_start: VersionCounts = VersionCounts()
    candidates: Number = 0
    rolled_out: Number = 0
    refused: Number = 0
    history: Annotated[list[RoundRecord], Meta(max_length=HISTORY)] = []


def with_service(loop: LoopState, service: str) -> LoopState:
    """Return the state for a service. If it is another service than before, only totals and history are kept."""
    if loop.service in {"", service}:
        return replace(loop, service=service)
    return LoopState(
        service=service,
        since_s=loop.since_s,
        round=loop.round,
        served=loop.served,
        candidates=loop.candidates,
        rolled_out=loop.rolled_out,
        refused=loop.refused,
        history=loop.history,
    )


class TrainingReport(Struct, kw_only=True, frozen=True):
    """The end of the training of a round: the new version of the model, or an error."""

    round: Number
    version: Short = ""
    error: Text = ""


class EvidenceReport(Struct, kw_only=True, frozen=True):
    """A node's comparison of a candidate (``version``) with the present version."""

    version: Short
    evidence: Evidence


class LoopFacts(Struct, kw_only=True, frozen=True):
    """What nodes report about a service, and what its Model has. Empty texts and None: there is none.

    Attributes:
        drifting: at least one edge worker reports that its samples differ from those of its calibration.
        present: the version that answers the frames, except for those of a canary.
        canary: the version of the canary.
        counts: of the frames that present versions answered, since the service began.
        canary_counts: of the frames that canaries answered, since the service began.
        labelled: number of labelled samples since the service began.
        easy: number of audited easy samples among the labelled ones.
        contested: why the labels cannot be trusted.
        command: number of the last command to begin a round.
        training: the end of the last training.
        evidence: the last comparison of a candidate.
        canary_error: why the nodes refused or withdrew the canary.
        in_force: the candidate is the Model's version in force.
        undone: why the candidate is no longer the version in force, or cannot become it.
        rollout: the Model's settings of the roll-out; None: the loop does not change them.
        replaces: workers are pods, so that a candidate answers all samples in place of the present version. ``counts``
            are then those of both versions; samples answered while both are in use count for neither.

    """

    drifting: bool = False
    present: Short = ""
    canary: Short = ""
    counts: VersionCounts = VersionCounts()
    canary_counts: VersionCounts = VersionCounts()
    labelled: Number = 0
    easy: Number = 0
    contested: Text = ""
    command: Number = 0
    training: TrainingReport | None = None
    evidence: EvidenceReport | None = None
    canary_error: Text = ""
    in_force: bool = False
    undone: Text = ""
    rollout: RolloutSpec | None = None
    replaces: bool = False


class DesiredLoop(Struct, kw_only=True, frozen=True):
    """What should run for a loop in its present state.

    Attributes:
        round: number of the round for which the workers of the training run: they train a model, then compare it; 0:
            they do not run.
        begins_s: the training and the comparison use the samples since then, in seconds since 1970.
        audit_share: least share of the easy frames that is audited, 0 to 1; 0: as the service has it.
        judge: the version to compare with the present one, which the Model must list; empty: none.
        canary: the version that the Model has in force; empty: none of the loop's.
        percent: share of the frames that the canary answers, 0 to 100; 100: it is rolled out.
        withdrawn: the version that is no longer in force, and then no longer in the Model's list; empty: none.

    """

    round: Number = 0
    begins_s: float = 0.0
    audit_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    judge: Short = ""
    canary: Short = ""
    percent: Annotated[int, Meta(ge=0, le=100)] = 0
    withdrawn: Short = ""


def desired_loop(loop: LoopState, settings: LoopSettings) -> DesiredLoop:
    """Return what should run in the present state."""
    share = settings.audit_share
    if loop.state == "Labelling":
        return DesiredLoop(audit_share=share)
    if loop.state == "Training":
        return DesiredLoop(round=loop.round, begins_s=loop.begins_s, audit_share=share)
    if loop.state == "Judging":
        return DesiredLoop(round=loop.round, begins_s=loop.begins_s, audit_share=share, judge=loop.version)
    if loop.state == "Canary":
        return DesiredLoop(canary=loop.version, percent=settings.canary.percent, audit_share=share)
    if loop.state == "RolledOut":
        return DesiredLoop(canary=loop.version, percent=100, audit_share=share)
    return DesiredLoop(withdrawn=loop.version if loop.state == "Withdrawn" else "")


def step(loop: LoopState, facts: LoopFacts, settings: LoopSettings, now_s: float) -> LoopState:
    """Return the next state; an equal one if nothing has changed.

    ``now_s`` is the time of GM's clock in seconds since 1970. If the clock is set back, deadlines are only later.
    """
    if loop.state in {"Labelling", "Training", "Judging", "Canary"}:
        interruption = _interruption(loop, facts)
        if interruption:
            return _withdraw(loop, facts, *interruption, now_s)
    if loop.state == "RolledOut" and facts.undone:
        return _enter(loop, "Collecting", SUPERSEDED, facts.undone, now_s)
    if loop.state == "Canary" and facts.in_force:
        loop = replace(loop, tried=True)
    following = _STEPS[loop.state](loop, facts, settings, now_s)
    limit = _longest_s(loop.state, settings)
    if following.state == loop.state and limit and now_s - loop.since_s >= limit:
        text = f"{loop.state} has taken longer than {limit:g} s"
        if loop.state in {"RolledOut", "Withdrawn"}:
            return _enter(loop, "Collecting", TIMED_OUT, text, now_s)
        return _withdraw(loop, facts, TIMED_OUT if loop.state != "Canary" else canary.NOT_PROVEN, text, now_s)
    return following


def _interruption(loop: LoopState, facts: LoopFacts) -> tuple[str, str] | None:
    """Return the reason and the message with which a round ends, whatever its state is; None: it goes on."""
    if facts.contested and loop.state != "Canary":
        return CONTESTED, facts.contested
    if facts.undone:
        return SUPERSEDED, facts.undone
    tried = {loop.version} if facts.replaces and loop.state == "Canary" else set()
    if facts.present and loop.base and facts.present not in {loop.base, *tried}:
        return SUPERSEDED, f"version {facts.present} took the place of {loop.base}, which the round set out to better"
    return None


def _longest_s(state: State, settings: LoopSettings) -> float:
    """Return the most seconds of a state; 0: no limit."""
    limits = {
        "Labelling": settings.labelling_s,
        "Training": settings.training_s,
        "Judging": settings.judging_s,
        "Canary": settings.canary_s,
        "RolledOut": settings.settling_s,
        "Withdrawn": settings.settling_s,
    }
    return limits.get(state, 0.0)


def _step_collecting(loop: LoopState, facts: LoopFacts, settings: LoopSettings, now_s: float) -> LoopState:
    """Wait until the Model has its settings of before the round, then for a trigger, and begin the next round."""
    if loop.restore is not None:
        return loop if facts.rollout not in (None, loop.restore) else replace(loop, restore=None)
    if facts.contested:
        return replace(loop, reason=CONTESTED, message=facts.contested)
    if 0 < facts.labelled < max(loop.used, loop.begins):  # a node is gone, or the service was created again
        used, begins = (min(count, facts.labelled) for count in (loop.used, loop.begins))
        loop = replace(loop, used=used, begins=begins, begins_easy=min(loop.begins_easy, facts.easy))
    trigger = triggers.due_trigger(
        TriggerFacts(
            drifting=facts.drifting,
            labelled=max(0, facts.labelled - loop.used),
            trained=max(0, loop.used - loop.begins),
            refusals=loop.refusals,
            since_s=max(0.0, now_s - loop.since_s),
            command=facts.command,
            served=loop.served,
        ),
        settings.triggers,
    )
    if loop.drifted and not facts.drifting:
        loop = replace(loop, drifted=False)
    if not trigger:
        return replace(loop, reason="", message="") if loop.reason == CONTESTED else loop
    if trigger == triggers.DRIFT and not loop.drifted:
        loop = replace(loop, drifted=True, begins_s=now_s, begins=facts.labelled, begins_easy=facts.easy)
    return replace(
        _enter(loop, "Labelling", trigger, "", now_s),
        round=loop.round + 1,
        trigger=trigger,
        base=facts.present,
        version="",
        tried=False,
        restore=facts.rollout,
        served=facts.command,
        gain=None,
        window=facts.counts,
    )


def _step_labelling(loop: LoopState, facts: LoopFacts, settings: LoopSettings, now_s: float) -> LoopState:
    """Wait for enough labelled samples of the present stream, hard and easy ones."""
    # a store that was lost counts from 0 again
    new, easy = max(0, facts.labelled - loop.begins), max(0, facts.easy - loop.begins_easy)
    recent = facts.counts.since(loop.window)
    share = 1 - recent.hard / recent.answered if recent.answered else 1.0
    # after a refusal the same number would show no more
    growth = 2 ** min(loop.refusals, MOST_GROWTH)
    needed = growth * min(settings.easy, max(settings.least_stratum, round(settings.easy * share)))
    if share < gate.SMALL_SHARE:
        needed = 0
    hard = settings.least_stratum if 1 - share >= gate.SMALL_SHARE else 0
    if new < settings.labelled * growth or easy < needed or new - easy < hard:
        text = f"{new} of {settings.labelled * growth} labelled samples, {easy} of {needed} audited easy ones"
        return replace(loop, message=text)
    return replace(
        _enter(loop, "Training", loop.trigger, f"{new} new labelled samples, {easy} of them easy", now_s),
        used=facts.labelled,
    )


def _step_training(loop: LoopState, facts: LoopFacts, _settings: LoopSettings, now_s: float) -> LoopState:
    """Wait for the version that this round's training makes."""
    report = facts.training
    if report is None or report.round != loop.round:
        return loop
    if report.error or not report.version:
        return _withdraw(loop, facts, TRAINING_FAILED, report.error or "the training reported no version", now_s)
    return replace(
        _enter(loop, "Judging", loop.trigger, f"version {report.version} is trained", now_s),
        version=report.version,
        candidates=loop.candidates + 1,
    )


def _step_judging(loop: LoopState, facts: LoopFacts, settings: LoopSettings, now_s: float) -> LoopState:
    """Wait for the evidence on the candidate; the gate decides whether it becomes the canary."""
    report = facts.evidence
    if report is None or report.version != loop.version:
        return loop
    attempts = loop.attempts + 1
    decision = gate.decide(report.evidence, settings.gate, attempt=attempts)
    judged = replace(loop, attempts=attempts, gain=decision.gain)
    if not decision.accepted:
        return _withdraw(judged, facts, decision.reason, decision.message, now_s)
    return replace(
        _enter(judged, "Canary", decision.reason, decision.message, now_s),
        checks=0,
        start=facts.counts,
        canary_start=facts.counts if facts.replaces else facts.canary_counts,
    )


def _step_canary(loop: LoopState, facts: LoopFacts, settings: LoopSettings, now_s: float) -> LoopState:
    """Wait for audits of the canary; they decide whether it is rolled out or withdrawn."""
    if facts.canary_error:
        return _withdraw(loop, facts, CANARY_FAILED, facts.canary_error, now_s)
    if facts.replaces and facts.present != loop.version:
        return replace(loop, canary_start=facts.counts)
    decision = canary.judge(*_compared_counts(loop, facts), settings.canary, checks=loop.checks)
    if decision.step == "withdraw":
        return _withdraw(loop, facts, decision.reason, decision.message, now_s)
    if decision.step == "wait":
        return loop if decision.checks == loop.checks else replace(loop, checks=decision.checks)
    ended = _enter(loop, "RolledOut", decision.reason, decision.message, now_s)
    return replace(
        ended,
        rolled_out=loop.rolled_out + 1,
        refusals=0,
        attempts=0,
        history=[*loop.history, _record(ended, _present_counts(loop, facts), "RolledOut")][-HISTORY:],
        start=VersionCounts(),
    )


def _compared_counts(loop: LoopState, facts: LoopFacts) -> tuple[VersionCounts, VersionCounts]:
    """Return the counts of the candidate and of the present version.

    They are of the same time; if pods replace the present version, the candidate's are of the time after.
    """
    if facts.replaces:
        return facts.counts.since(loop.canary_start), _present_counts(loop, facts)
    return facts.canary_counts.since(loop.canary_start), facts.counts.since(loop.start)


def _step_rolled_out(loop: LoopState, facts: LoopFacts, settings: LoopSettings, now_s: float) -> LoopState:
    """Wait until the version answers all frames, then until its audits give the estimate after the round."""
    if facts.present != loop.version:
        if facts.canary_error:
            return _withdraw(loop, facts, CANARY_FAILED, facts.canary_error, now_s)
        if facts.present and facts.present != loop.base:  # somebody has set another version
            return _enter(loop, "Collecting", SUPERSEDED, f"version {facts.present} is in use", now_s)
        return loop
    if not loop.start.answered:
        return replace(loop, start=facts.counts, drifted=False)
    recent = facts.counts.since(loop.start)
    if recent.audited < settings.after_audits:
        return loop
    after = recent.agreement(z_of(CONFIDENCE))
    last = replace(loop.history[-1], after=after)
    changed = replace(loop, history=[*loop.history[:-1], last])
    text = f"agreement {after.value:.3f} ({after.low:.3f} to {after.high:.3f})"
    return _enter(changed, "Collecting", loop.reason, text, now_s)


def _step_withdrawn(loop: LoopState, facts: LoopFacts, _settings: LoopSettings, now_s: float) -> LoopState:
    """Collect again once no node uses the candidate any more."""
    if loop.version and facts.canary == loop.version:
        return loop
    return _enter(loop, "Collecting", loop.reason, loop.message, now_s)


def _withdraw(loop: LoopState, facts: LoopFacts, reason: str, message: str, now_s: float) -> LoopState:
    """End a round without a roll-out."""
    ended = _enter(loop, "Withdrawn", reason, message, now_s)
    return replace(
        ended,
        refused=loop.refused + bool(loop.version),
        refusals=loop.refusals + 1,
        history=[*loop.history, _record(ended, _present_counts(loop, facts), "Withdrawn")][-HISTORY:],
    )


def _present_counts(loop: LoopState, facts: LoopFacts) -> VersionCounts:
    """Return the counts of the present version since the round began."""
    return (loop.start if facts.replaces and loop.state == "Canary" else facts.counts).since(loop.window)


def _record(ended: LoopState, recent: VersionCounts, outcome: Literal["RolledOut", "Withdrawn"]) -> RoundRecord:
    """Return the record of a round that has just ended. ``recent``: counts of the version before."""
    return RoundRecord(
        round=ended.round,
        trigger=ended.trigger,
        version=ended.version,
        outcome=outcome,
        reason=ended.reason,
        message=ended.message,
        gain=ended.gain,
        before=recent.agreement(z_of(CONFIDENCE)) if recent.audited else None,
        ended_s=ended.since_s,
    )


def _enter(loop: LoopState, state: State, reason: str, message: str, now_s: float) -> LoopState:
    """Return the loop in a new state that begins now."""
    return replace(loop, state=state, reason=reason, message=shorten_middle(message, 4096), since_s=now_s)


_STEPS = {
    "Collecting": _step_collecting,
    "Labelling": _step_labelling,
    "Training": _step_training,
    "Judging": _step_judging,
    "Canary": _step_canary,
    "RolledOut": _step_rolled_out,
    "Withdrawn": _step_withdrawn,
}
