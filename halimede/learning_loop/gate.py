"""The gate: decides from held-out samples whether a candidate may become the canary.

Both models answer the same held-out samples, which the training never saw. A candidate passes only if the whole 95 %
interval of its gain is above 0. A number alone does not pass: of two equal models, one is the better one by chance in
half of all comparisons.

The samples are strata of the stream: hard samples, and audited easy ones. Each stratum has its share of the stream as
its weight (Cochran, "Sampling techniques", 1977, chapter 5), so that the gain is that of all frames and not that of the
hard ones. Every attempt on one service gets a smaller part of the allowed error, so that patience does not pass a
candidate.

Pure. Each refusal has a reason and a message with its numbers.
"""

from __future__ import annotations

from msgspec import Struct

from halimede.api.learning_loop import GateSettings, Share
from halimede.errors import shorten_middle
from halimede.stats.agreement import Estimate
from halimede.stats.differences import PairedCounts, paired, spent, weighted_sum, z_of

#: reasons of a refusal
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
SMALL = 0.1


class StratumCounts(Struct, kw_only=True, frozen=True):
    """Both models' answers to the held-out samples of a stratum, and the stratum's share of the stream."""

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


class GateDecision(Struct, kw_only=True, frozen=True):
    """Whether a candidate passed, with the reason, a message with numbers, and its gain if it was measured."""

    accepted: bool
    reason: str
    message: str
    gain: Estimate | None = None


def decide(evidence: Evidence, settings: GateSettings, *, attempt: int = 1) -> GateDecision:
    """Decide about the candidate of attempt number ``attempt`` (from 1) on a service."""
    refusal = _unusable(evidence, settings) or _too_few(evidence.strata, settings)
    if refusal:
        return GateDecision(accepted=False, reason=refusal[0], message=refusal[1])
    z = z_of(spent(settings.confidence, attempt))
    gain = gain_of(evidence.strata, z)
    refusal = _not_better(gain) or _group_worse(evidence.groups, settings) or _forgets(evidence.reference, settings, z)
    if refusal:
        return GateDecision(accepted=False, reason=refusal[0], message=refusal[1], gain=gain)
    return GateDecision(accepted=True, reason=ACCEPTED, message=f"gain {shown(gain)}", gain=gain)


def gain_of(strata: list[StratumCounts], z: float) -> Estimate:
    """Return the candidate's gain in accuracy on the whole stream, from strata with their shares."""
    total = sum(stratum.share for stratum in strata)
    return weighted_sum((stratum.share / total, paired(stratum.counts, z)) for stratum in strata if stratum.share)


def shown(gain: Estimate) -> str:
    """Return a difference for messages."""
    return f"{gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"


def _unusable(evidence: Evidence, settings: GateSettings) -> tuple[str, str] | None:
    """Return why a candidate cannot serve, whatever its accuracy is."""
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


def _too_few(strata: list[StratumCounts], settings: GateSettings) -> tuple[str, str] | None:
    samples = sum(stratum.counts.samples for stratum in strata)
    if samples < settings.least:
        return TOO_FEW, f"{samples} held-out samples are too few, {settings.least} are needed"
    if not any(stratum.share for stratum in strata):
        return TOO_FEW, "no stratum of the held-out samples has a share of the stream"
    for name in sorted({stratum.name for stratum in strata}):
        of = [stratum for stratum in strata if stratum.name == name]
        samples = sum(stratum.counts.samples for stratum in of)
        if sum(stratum.share for stratum in of) >= SMALL and samples < settings.least_stratum:
            return TOO_FEW, f"{samples} held-out {name} samples are too few, {settings.least_stratum} are needed"
    return None


def _not_better(gain: Estimate) -> tuple[str, str] | None:
    if gain.low > 0:
        return None
    return (WORSE if gain.high < 0 else NOT_BETTER), f"gain {shown(gain)}: its whole interval must be above 0"


def _group_worse(groups: dict[str, PairedCounts], settings: GateSettings) -> tuple[str, str] | None:
    """Return the first group in which the candidate is surely worse, with a loss above the limit."""
    z = z_of(1 - (1 - settings.confidence) / max(1, len(groups)))
    for name, counts in sorted(groups.items()):
        gain = paired(counts, z)
        if gain.high < 0 and gain.value < -settings.most_group_loss:
            return GROUP_WORSE, f"{name}: gain {shown(gain)} of {counts.samples} held-out samples"
    return None


def _forgets(reference: PairedCounts, settings: GateSettings, z: float) -> tuple[str, str] | None:
    """Return whether the candidate may have lost more than the limit on the stream as it was before."""
    if not reference.samples:
        return None
    gain = paired(reference, z)
    if gain.low > -settings.most_forgotten:
        return None
    text = f"on {reference.samples} samples from before its gain is {shown(gain)}"
    return FORGETS, f"{text}: a loss of {settings.most_forgotten:g} must lie below the interval"
