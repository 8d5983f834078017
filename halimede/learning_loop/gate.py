"""The gate: decides from held-out samples whether a candidate may become the canary.

Both models answer the same held-out samples, which the training never saw. A candidate passes only if the whole 95 %
interval of its gain is above 0: of two equal models, the candidate is better by chance in half of all comparisons.

The samples are of two strata of the stream: hard samples, and audited easy ones. The weight of a stratum is its share
of the stream (Cochran, "Sampling techniques", 1977, chapter 5), so that the gain is that of all frames. Every attempt
on one service gets a smaller part of the allowed error, so that many attempts do not pass a candidate by chance.

Pure. Each refusal has a reason and a message with its numbers.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from halimede.api.learning_loop import GateSettings, Share
from halimede.errors import shorten_middle
from halimede.stats.agreement import Estimate
from halimede.stats.differences import PairedCounts, attempt_confidence, paired_gain, weighted_sum, z_of

#: reasons of a refusal: it cannot be opened; it fails on samples; it is too slow; there are too few samples; its gain
#: is surely below 0; its gain is not surely above 0; it is worse for a class or a source of labels; it is worse on the
#: stream as it was before
NOT_LOADED = "CandidateNotLoaded"
FAILS = "CandidateFails"
TOO_SLOW = "CandidateTooSlow"
TOO_FEW = "TooFewHeldOut"
WORSE = "CandidateWorse"
NOT_BETTER = "CandidateNotBetter"
GROUP_WORSE = "CandidateWorseInGroup"
FORGETS = "CandidateForgets"
#: the reason of a candidate that passed
ACCEPTED = "CandidateBetter"

#: share of the stream below which a stratum needs no samples
SMALL_SHARE = 0.1


class StratumCounts(Struct, kw_only=True, frozen=True):
    """A stratum, ``hard`` or ``easy``: its share of the stream, and both models' answers to its held-out samples."""

    name: str
    share: Share
    counts: PairedCounts


class Evidence(Struct, kw_only=True, frozen=True):
    """The comparison of a candidate with the present model, as measured on a node.

    Attributes:
        error: why the candidate could not be loaded or tried; empty: it answered.
        failed: held-out samples that only the candidate failed on: an error, no answer, or a number that is not finite.
        strata: the held-out samples since the drift, by stratum. A name stands once for each period, that is, for each
            version that divided the samples.
        groups: the same samples by another division, such as ``class 3`` or ``label by person``. A candidate may not
            be surely worse in any.
        reference: held-out samples of the stream as it was before, or of the first training set. A candidate may not
            forget them.
        candidate_ms, present_ms: the median time of an answer with its interval, both measured in turns on one machine.

    """

    error: str = ""
    failed: int = 0
    strata: list[StratumCounts] = []
    groups: dict[str, PairedCounts] = {}
    reference: PairedCounts = PairedCounts()
    candidate_ms: Estimate | None = None
    present_ms: Estimate | None = None


#: reason and message
Refusal: TypeAlias = tuple[str, str]


class GateDecision(Struct, kw_only=True, frozen=True):
    """Whether a candidate passed the gate.

    Attributes:
        accepted: it passed.
        reason: why, in one word.
        message: why, with numbers.
        gain: its gain in accuracy with the interval; None: it was refused before a comparison.

    """

    accepted: bool
    reason: str
    message: str
    gain: Estimate | None = None


def decide(evidence: Evidence, settings: GateSettings, *, attempt: int = 1) -> GateDecision:
    """Return the decision about a candidate; ``attempt`` counts the candidates of a service, from 1 on."""
    refusal = _refuse_unusable(evidence, settings) or _refuse_too_few(evidence.strata, settings)
    if refusal:
        return GateDecision(accepted=False, reason=refusal[0], message=refusal[1])
    z = z_of(attempt_confidence(settings.confidence, attempt))
    gain = gain_of(evidence.strata, z)
    refusal = (
        _refuse_not_better(gain)
        or _refuse_worse_group(evidence.groups, settings)
        or _refuse_forgetting(evidence.reference, settings, z)
    )
    if refusal:
        return GateDecision(accepted=False, reason=refusal[0], message=refusal[1], gain=gain)
    return GateDecision(accepted=True, reason=ACCEPTED, message=f"gain {difference_text(gain)}", gain=gain)


def gain_of(strata: list[StratumCounts], z: float) -> Estimate:
    """Return the candidate's gain in accuracy on the whole stream, -1 to 1, with its interval.

    ``z`` is the width of the interval in standard deviations. At least one stratum must have a share of the stream.
    """
    total = sum(stratum.share for stratum in strata)
    return weighted_sum((stratum.share / total, paired_gain(stratum.counts, z)) for stratum in strata if stratum.share)


def difference_text(gain: Estimate) -> str:
    """Return a difference with its interval as text, for messages."""
    return f"{gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"


def _refuse_unusable(evidence: Evidence, settings: GateSettings) -> Refusal | None:
    """Return why a candidate cannot serve, whatever its accuracy is: it failed or is too slow. None: it can."""
    if evidence.error:
        return NOT_LOADED, shorten_middle(evidence.error, 1024)
    if evidence.failed:
        return FAILS, f"it failed on {evidence.failed} held-out samples that the present model answered"
    candidate, present = evidence.candidate_ms, evidence.present_ms
    if candidate is None or present is None:
        # a missing measurement never counts as a pass
        return TOO_SLOW, "its latency was not measured"
    if settings.most_ms and candidate.high > settings.most_ms:
        return TOO_SLOW, f"its median takes up to {candidate.high:.1f} ms, allowed are {settings.most_ms:g} ms"
    if settings.most_slowdown and candidate.low > max(settings.floor_ms, settings.most_slowdown * present.high):
        text = f"its median takes {candidate.value:.1f} ms, the present model's {present.value:.1f} ms"
        return TOO_SLOW, f"{text}: more than {settings.most_slowdown:g} times as long"
    return None


def _refuse_too_few(strata: list[StratumCounts], settings: GateSettings) -> Refusal | None:
    """Return why a comparison has too few held-out samples, in all or of a stratum. None: it has enough."""
    samples = sum(stratum.counts.samples for stratum in strata)
    if samples < settings.least:
        return TOO_FEW, f"{samples} held-out samples are too few, {settings.least} are needed"
    if not any(stratum.share for stratum in strata):
        return TOO_FEW, "no stratum of the held-out samples has a share of the stream"
    for name in sorted({stratum.name for stratum in strata}):
        periods = [stratum for stratum in strata if stratum.name == name]
        samples = sum(stratum.counts.samples for stratum in periods)
        if sum(stratum.share for stratum in periods) >= SMALL_SHARE and samples < settings.least_stratum:
            return TOO_FEW, f"{samples} held-out {name} samples are too few, {settings.least_stratum} are needed"
    return None


def _refuse_not_better(gain: Estimate) -> Refusal | None:
    """Return why a gain is not proven: its interval reaches 0 or below. None: it is."""
    if gain.low > 0:
        return None
    return (WORSE if gain.high < 0 else NOT_BETTER), f"gain {difference_text(gain)}: its whole interval must be above 0"


def _refuse_worse_group(groups: dict[str, PairedCounts], settings: GateSettings) -> Refusal | None:
    """Return the group in which a candidate is surely worse, with a loss above the limit. None: there is none."""
    z = z_of(1 - (1 - settings.confidence) / max(1, len(groups)))
    for name, counts in sorted(groups.items()):
        gain = paired_gain(counts, z)
        if gain.high < 0 and gain.value < -settings.most_group_loss:
            return GROUP_WORSE, f"{name}: gain {difference_text(gain)} of {counts.samples} held-out samples"
    return None


def _refuse_forgetting(reference: PairedCounts, settings: GateSettings, z: float) -> Refusal | None:
    """Return why a candidate may have lost too much on the stream as it was before. None: it has not."""
    if not reference.samples:
        return None
    gain = paired_gain(reference, z)
    if gain.low > -settings.most_forgotten:
        return None
    text = f"on {reference.samples} samples from before its gain is {difference_text(gain)}"
    return FORGETS, f"{text}: a loss of {settings.most_forgotten:g} must lie below the interval"
