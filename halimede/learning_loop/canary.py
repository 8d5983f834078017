"""The trial of a canary: compares audits of both versions while the canary answers a share of the frames.

The gate has shown a gain on stored samples. The canary shows that the gain holds for the present stream: if the drift
went back in the meantime, the audits decide. Both versions answer different frames at random, so their shares of
agreement with the big model are two independent ones.

The audits are looked at a fixed number of times, each after twice as many audits as before. Each look gets its part of
the allowed error: who looks at every sample finds a difference sooner or later. Pure.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from halimede.api.learning_loop import CanarySettings
from halimede.learning_loop.gate import shown
from halimede.stats.agreement import Estimate
from halimede.stats.differences import share, spent, weighted_sum, z_of

#: reasons of a withdrawal, and of a roll-out
AUDITS_WORSE = "CanaryAuditsWorse"
MORE_UPLOADS = "CanaryUploadsMore"
NOT_PROVEN = "CanaryNotProven"
PROVEN = "CanaryAuditsHold"

Number = Annotated[int, Meta(ge=0)]


class VersionCounts(Struct, rename="camel", kw_only=True, frozen=True):
    """Counts of the frames that one version of the small model answered.

    ``hard`` of the ``answered`` frames were hard by the mining. ``audited`` of the others were audited, and the big
    model agreed with ``agreed`` of these.
    """

    answered: Number = 0
    hard: Number = 0
    audited: Number = 0
    agreed: Number = 0

    def since(self, before: VersionCounts) -> VersionCounts:
        """Return the counts since an earlier time; none if they fell, since a node is gone or counts from 0 again."""
        if self.answered < before.answered or self.audited < before.audited:
            return VersionCounts()
        return VersionCounts(
            answered=self.answered - before.answered,
            hard=max(0, self.hard - before.hard),
            audited=self.audited - before.audited,
            agreed=max(0, self.agreed - before.agreed),
        )

    def agreement(self, z: float) -> Estimate:
        """Estimate the share of answers that agree with the big model's: all hard ones, and easy ones by audits."""
        easy = 1 - self.hard / self.answered if self.answered else 1.0
        easy_agreement = weighted_sum([(easy, share(min(self.agreed, self.audited), self.audited, z))])
        return Estimate(1 - easy + easy_agreement.value, 1 - easy + easy_agreement.low, 1 - easy + easy_agreement.high)


class CanaryDecision(Struct, kw_only=True, frozen=True):
    """The decision of a check, its reason, and the number of checks so far."""

    step: Literal["wait", "roll-out", "withdraw"]
    checks: int
    reason: str = ""
    message: str = ""


def judge(canary: VersionCounts, present: VersionCounts, settings: CanarySettings, *, checks: int) -> CanaryDecision:
    """Judge the counts since the canary began. ``checks`` were made before; before the next is due, it waits."""
    if canary.audited < settings.due(checks):
        return CanaryDecision(step="wait", checks=checks)
    z = z_of(spent(settings.confidence, checks + 1))
    more = weighted_sum(
        [(1.0, share(canary.hard, canary.answered, z)), (-1.0, share(present.hard, present.answered, z))]
    )
    gain = weighted_sum([(1.0, canary.agreement(z)), (-1.0, present.agreement(z)), (-settings.upload_worth, more)])
    text = f"agreement against the present version, with uploads at {settings.upload_worth:g}: {shown(gain)}"
    if gain.high < 0:
        return CanaryDecision(step="withdraw", checks=checks + 1, reason=AUDITS_WORSE, message=text)
    if more.low > settings.most_uploads:
        text = f"upload ratio against the present version: {shown(more)}"
        return CanaryDecision(step="withdraw", checks=checks + 1, reason=MORE_UPLOADS, message=text)
    if gain.low > -settings.most_loss:
        return CanaryDecision(step="roll-out", checks=checks + 1, reason=PROVEN, message=text)
    if checks + 1 >= settings.looks:
        return CanaryDecision(step="withdraw", checks=checks + 1, reason=NOT_PROVEN, message=text)
    return CanaryDecision(step="wait", checks=checks + 1)
