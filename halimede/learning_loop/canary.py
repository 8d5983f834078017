"""Judges a canary, the candidate that answers a share of the frames, by audits of both versions.

An audit asks the big model about an easy frame as well: the share of agreement measures the accuracy. The gate has
shown a gain on stored samples; the canary shows whether the gain holds for the present stream. Both versions answer
different frames, chosen at random, so that their shares of agreement are independent.

The audits are checked a fixed number of times, each after twice as many audits as before, and each check gets a part of
the allowed error: a check after every sample would sooner or later show a difference by chance. Pure.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from halimede.api.learning_loop import CanarySettings
from halimede.learning_loop.gate import difference_text
from halimede.stats.agreement import Estimate
from halimede.stats.differences import attempt_confidence, share, weighted_sum, z_of

#: reasons of a withdrawal: less agreement; more uploads; no clear result after all checks
AUDITS_WORSE = "CanaryAuditsWorse"
MORE_UPLOADS = "CanaryUploadsMore"
NOT_PROVEN = "CanaryNotProven"
#: reason of a roll-out
PROVEN = "CanaryAuditsHold"

#: a count
Number = Annotated[int, Meta(ge=0)]


class VersionCounts(Struct, rename="camel", kw_only=True, frozen=True):
    """Counts of the frames that one version of the small model answered.

    Attributes:
        answered: all frames.
        hard: frames that the mining found hard.
        audited: easy frames that the big model answered as well.
        agreed: audited frames to which both models gave the same answer.

    """

    answered: Number = 0
    hard: Number = 0
    audited: Number = 0
    agreed: Number = 0

    def since(self, before: VersionCounts) -> VersionCounts:
        """Return the counts since an earlier time.

        All are 0 if the counts are lower than before, because a node is gone or counts from 0 again.
        """
        if self.answered < before.answered or self.audited < before.audited:
            return VersionCounts()
        return VersionCounts(
            answered=self.answered - before.answered,
            hard=max(0, self.hard - before.hard),
            audited=self.audited - before.audited,
            agreed=max(0, self.agreed - before.agreed),
        )

    def agreement(self, z: float) -> Estimate:
        """Return the estimated share, 0 to 1, of final answers that agree with the big model's, with its interval.

        Hard frames agree, since the big model answers them; audits estimate the share of the easy ones. ``z`` is the
        width of the interval in standard deviations.
        """
        easy = 1 - self.hard / self.answered if self.answered else 1.0
        easy_agreement = weighted_sum([(easy, share(min(self.agreed, self.audited), self.audited, z))])
        return Estimate(1 - easy + easy_agreement.value, 1 - easy + easy_agreement.low, 1 - easy + easy_agreement.high)


class CanaryDecision(Struct, kw_only=True, frozen=True):
    """The decision about a canary: wait for more audits, roll the version out, or withdraw it.

    Attributes:
        step: the decision.
        checks: number of checks so far, this one included.
        reason: why, in one word; empty while it waits.
        message: why, with numbers; empty while it waits.

    """

    step: Literal["wait", "roll-out", "withdraw"]
    checks: int
    reason: str = ""
    message: str = ""


def judge(canary: VersionCounts, present: VersionCounts, settings: CanarySettings, *, checks: int) -> CanaryDecision:
    """Return the decision about a canary from the counts of both versions since it began.

    ``checks`` is the number of checks so far. Until there are enough audits for the next check, the decision is wait.
    """
    if canary.audited < settings.due_audits(checks):
        return CanaryDecision(step="wait", checks=checks)
    z = z_of(attempt_confidence(settings.confidence, checks + 1))
    more = weighted_sum(
        [(1.0, share(canary.hard, canary.answered, z)), (-1.0, share(present.hard, present.answered, z))]
    )
    gain = weighted_sum([(1.0, canary.agreement(z)), (-1.0, present.agreement(z)), (-settings.upload_worth, more)])
    text = f"agreement against the present version, with uploads at {settings.upload_worth:g}: {difference_text(gain)}"
    if gain.high < 0:
        return CanaryDecision(step="withdraw", checks=checks + 1, reason=AUDITS_WORSE, message=text)
    if more.low > settings.most_uploads:
        text = f"upload ratio against the present version: {difference_text(more)}"
        return CanaryDecision(step="withdraw", checks=checks + 1, reason=MORE_UPLOADS, message=text)
    if gain.low > -settings.most_loss:
        return CanaryDecision(step="roll-out", checks=checks + 1, reason=PROVEN, message=text)
    if checks + 1 >= settings.looks:
        return CanaryDecision(step="withdraw", checks=checks + 1, reason=NOT_PROVEN, message=text)
    return CanaryDecision(step="wait", checks=checks + 1)
