"""The state machine of the loop of one service, from collected samples to a rolled-out model.

    Collecting -> Labelling -> Training -> Judging -> Canary -> RolledOut -> Collecting
                      |           |           |          |
                      +-----------+-----------+----------+--> Withdrawn -> Collecting

GM calls ``step`` with the state that the resource's status has, and with what nodes report. The new state goes to the
status, and ``desired`` gives what should run for it: a training of this round, a comparison, or a canary. Both are
level-triggered. If GM, a node or a worker restarts, nothing is lost and nothing is done twice, because reports carry
the round that they belong to, and those of another round do not count.

Each state has a deadline, after which the round ends with a reason. The audits' estimate of the service's agreement
before and after each round is in ``history``. Pure: the time is an argument.
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

State = Literal["Collecting", "Labelling", "Training", "Judging", "Canary", "RolledOut", "Withdrawn"]

#: reasons of a round's end, in addition to those of the gate, the canary and the triggers
CONTESTED = "LabelsContested"
TRAINING_FAILED = "TrainingFailed"
TIMED_OUT = "TimedOut"
SUPERSEDED = "Superseded"
CANARY_FAILED = "CanaryFailed"
#: rounds in the status
HISTORY = 20
CONFIDENCE = 0.95
#: refusals in a row after which a round needs no more samples than before
MOST_GROWTH = 3

Number = Annotated[int, Meta(ge=0)]
Short = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=4096)]


class RoundRecord(Struct, rename="camel", kw_only=True, frozen=True):
    """What a round did. ``before`` and ``after``: the audits' estimate of the service's agreement.

    ``after`` is None for a round without a roll-out, and until there are enough audits.
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
        since_s: when this state began.
        round: number of the present or last round.
        trigger: why it began; ``base``: the version of the model that it set out to better.
        version: the candidate; ``tried``: it has been the Model's version in force in this round.
        model: name of the Model that the loop edits; empty: it has left the last one.
        service: name of the service whose samples all counts here are of; empty: none yet.
        restore: the Model's settings of the roll-out when the round began, until it has them again.
        begins_s: when the present kind of stream began, with the last drift: the samples to train and to judge on are
            those since. ``begins`` and ``begins_easy``: labelled samples before that.
        drifted: this drift has not ended since: a round after a refusal adds samples to those of the round before.
        used: labelled samples when the last training began.
        refusals: rounds in a row without a roll-out; ``attempts``: candidates judged since the last roll-out.
        served: the last command that a round began for.
        window: counts of the service when this round began: the estimate before it is of the frames since. ``start``
            and ``canary_start``: counts when the canary began, or the roll-out ended.

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


def serving(loop: LoopState, service: str) -> LoopState:
    """Return the state for a service: if it had another one, only its rounds and its commands count on."""
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
    """The end of a training: the new version of the model, or an error."""

    round: Number
    version: Short = ""
    error: Text = ""


class EvidenceReport(Struct, kw_only=True, frozen=True):
    """The comparison of a version with the present one."""

    version: Short
    evidence: Evidence


class LoopFacts(Struct, kw_only=True, frozen=True):
    """What nodes report about a service.

    Attributes:
        drifting: at least one edge worker reports drift.
        present: the version that answers all frames but the canary's; ``canary``: the canary's, if there is one.
        counts: of the frames that present versions answered, since the service began; ``canary_counts``: of those that
            canaries answered.
        labelled: labelled samples that the service ever had, and ``easy`` audited ones among them.
        contested: why the labels cannot be trusted.
        command: number of the last command to start a round.
        canary_error: why the nodes refused or withdrew the canary.
        in_force: the candidate is the Model's version in force; ``undone``: why it no longer is, or cannot become it.
        rollout: the Model's settings of the roll-out; None: the loop does not change them.
        replaces: workers are pods, so a candidate answers all samples. Then ``counts`` are those of both versions, and
            the samples that are answered while both are in use count for neither.

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
    """What should run: a training of ``train`` (a round; 0: none), a comparison of ``judge``, and a canary.

    ``begins_s``: the training, or the comparison, uses the samples since then. ``audit_share``: at least this share of
    the easy frames is audited; 0: as the service has it.
    """

    train: Number = 0
    begins_s: float = 0.0
    audit_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    judge: Short = ""
    canary: Short = ""
    percent: Annotated[int, Meta(ge=0, le=100)] = 0


def desired(loop: LoopState, settings: LoopSettings) -> DesiredLoop:
    """Return what should run in a state. The version that was rolled out is the Model's own business from then on."""
    share = settings.audit_share
    if loop.state == "Labelling":
        return DesiredLoop(audit_share=share)
    if loop.state == "Training":
        return DesiredLoop(train=loop.round, begins_s=loop.begins_s, audit_share=share)
    if loop.state == "Judging":
        return DesiredLoop(judge=loop.version, begins_s=loop.begins_s, audit_share=share)
    if loop.state == "Canary":
        return DesiredLoop(canary=loop.version, percent=settings.canary.percent, audit_share=share)
    if loop.state == "RolledOut":
        return DesiredLoop(canary=loop.version, percent=100, audit_share=share)
    return DesiredLoop()


def step(loop: LoopState, facts: LoopFacts, settings: LoopSettings, now_s: float) -> LoopState:
    """Return the next state; the same one if nothing has changed. A clock that went back only delays."""
    if loop.state in {"Labelling", "Training", "Judging", "Canary"}:
        failed = _interrupted(loop, facts)
        if failed:
            return _withdraw(loop, facts, *failed, now_s)
    if loop.state == "RolledOut" and facts.undone:
        return _enter(loop, "Collecting", SUPERSEDED, facts.undone, now_s)
    if loop.state == "Canary" and facts.in_force:
        loop = replace(loop, tried=True)
    following = _STEPS[loop.state](loop, facts, settings, now_s)
    limit = _limit(loop.state, settings)
    if following.state == loop.state and limit and now_s - loop.since_s >= limit:
        text = f"{loop.state} has taken longer than {limit:g} s"
        if loop.state in {"RolledOut", "Withdrawn"}:
            return _enter(loop, "Collecting", TIMED_OUT, text, now_s)
        return _withdraw(loop, facts, TIMED_OUT if loop.state != "Canary" else canary.NOT_PROVEN, text, now_s)
    return following


def _interrupted(loop: LoopState, facts: LoopFacts) -> tuple[str, str] | None:
    """Return why a round cannot go on, whatever its state is."""
    if facts.contested and loop.state != "Canary":
        return CONTESTED, facts.contested
    if facts.undone:
        return SUPERSEDED, facts.undone
    tried = {loop.version} if facts.replaces and loop.state == "Canary" else set()
    if facts.present and loop.base and facts.present not in {loop.base, *tried}:
        return SUPERSEDED, f"version {facts.present} took the place of {loop.base}, which the round set out to better"
    return None


def _limit(state: State, settings: LoopSettings) -> float:
    limits = {
        "Labelling": settings.labelling_s,
        "Training": settings.training_s,
        "Judging": settings.judging_s,
        "Canary": settings.canary_s,
        "RolledOut": settings.settling_s,
        "Withdrawn": settings.settling_s,
    }
    return limits.get(state, 0.0)


def _collecting(loop: LoopState, facts: LoopFacts, settings: LoopSettings, now_s: float) -> LoopState:
    if loop.restore is not None:
        return loop if facts.rollout not in (None, loop.restore) else replace(loop, restore=None)
    if facts.contested:
        return replace(loop, reason=CONTESTED, message=facts.contested)
    if 0 < facts.labelled < max(loop.used, loop.begins):  # a node is gone, or the service was created again
        used, begins = (min(count, facts.labelled) for count in (loop.used, loop.begins))
        loop = replace(loop, used=used, begins=begins, begins_easy=min(loop.begins_easy, facts.easy))
    why = triggers.due(
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
    if not why:
        if loop.reason != CONTESTED:
            return loop
        return replace(loop, reason="", message="")
    if why == triggers.DRIFT and not loop.drifted:
        loop = replace(loop, drifted=True, begins_s=now_s, begins=facts.labelled, begins_easy=facts.easy)
    return replace(
        _enter(loop, "Labelling", why, "", now_s),
        round=loop.round + 1,
        trigger=why,
        base=facts.present,
        version="",
        tried=False,
        restore=facts.rollout,
        served=facts.command,
        gain=None,
        window=facts.counts,
    )


def _labelling(loop: LoopState, facts: LoopFacts, settings: LoopSettings, now_s: float) -> LoopState:
    # a store that was lost counts from 0 again
    new, easy = max(0, facts.labelled - loop.begins), max(0, facts.easy - loop.begins_easy)
    recent = facts.counts.since(loop.window)
    share = 1 - recent.hard / recent.answered if recent.answered else 1.0
    # after a refusal the same number would show no more
    growth = 2 ** min(loop.refusals, MOST_GROWTH)
    needed = growth * min(settings.easy, max(settings.least_stratum, round(settings.easy * share)))
    if share < gate.SMALL:
        needed = 0
    hard = settings.least_stratum if 1 - share >= gate.SMALL else 0
    if new < settings.labelled * growth or easy < needed or new - easy < hard:
        text = f"{new} of {settings.labelled * growth} labelled samples, {easy} of {needed} audited easy ones"
        return replace(loop, message=text)
    return replace(
        _enter(loop, "Training", loop.trigger, f"{new} new labelled samples, {easy} of them easy", now_s),
        used=facts.labelled,
    )


def _training(loop: LoopState, facts: LoopFacts, _settings: LoopSettings, now_s: float) -> LoopState:
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


def _judging(loop: LoopState, facts: LoopFacts, settings: LoopSettings, now_s: float) -> LoopState:
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


def _canary(loop: LoopState, facts: LoopFacts, settings: LoopSettings, now_s: float) -> LoopState:
    if facts.canary_error:
        return _withdraw(loop, facts, CANARY_FAILED, facts.canary_error, now_s)
    if facts.replaces and facts.present != loop.version:
        return replace(loop, canary_start=facts.counts)
    decision = canary.judge(*_compared(loop, facts), settings.canary, checks=loop.checks)
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
        history=[*loop.history, _record(ended, _before(loop, facts), "RolledOut")][-HISTORY:],
        start=VersionCounts(),
    )


def _compared(loop: LoopState, facts: LoopFacts) -> tuple[VersionCounts, VersionCounts]:
    """Return the counts of the candidate and of the present version: side by side, or one after the other."""
    if facts.replaces:
        return facts.counts.since(loop.canary_start), _before(loop, facts)
    return facts.canary_counts.since(loop.canary_start), facts.counts.since(loop.start)


def _rolled_out(loop: LoopState, facts: LoopFacts, settings: LoopSettings, now_s: float) -> LoopState:
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


def _withdrawn(loop: LoopState, facts: LoopFacts, _settings: LoopSettings, now_s: float) -> LoopState:
    """Collect again once no node uses the candidate any more."""
    if loop.version and facts.canary == loop.version:
        return loop
    return _enter(loop, "Collecting", loop.reason, loop.message, now_s)


def _withdraw(loop: LoopState, facts: LoopFacts, reason: str, message: str, now_s: float) -> LoopState:
    ended = _enter(loop, "Withdrawn", reason, message, now_s)
    return replace(
        ended,
        refused=loop.refused + bool(loop.version),
        refusals=loop.refusals + 1,
        history=[*loop.history, _record(ended, _before(loop, facts), "Withdrawn")][-HISTORY:],
    )


def _before(loop: LoopState, facts: LoopFacts) -> VersionCounts:
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
    return replace(loop, state=state, reason=reason, message=shorten_middle(message, 4096), since_s=now_s)


_STEPS = {
    "Collecting": _collecting,
    "Labelling": _labelling,
    "Training": _training,
    "Judging": _judging,
    "Canary": _canary,
    "RolledOut": _rolled_out,
    "Withdrawn": _withdrawn,
}
