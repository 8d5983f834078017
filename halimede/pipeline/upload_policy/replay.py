"""Replays a stream through a worker's upload policy, without a worker: ``replay``. Calibration and evaluation use it.

The policy, its budget and its audits are those of a running worker. The next tier takes and answers each sample at
once, so only what the user configured decides. All samples come in a random order, once in each round. The first
rounds, in which the policy starts as that of a new worker, do not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halimede.mining import Verdict
from halimede.pipeline.upload_policy.audit import Audits
from halimede.pipeline.upload_policy.budget import Budget
from halimede.pipeline.upload_policy.policy import UploadPolicy

#: rounds that count, but at most so many that they have this many samples
ROUNDS, MOST_SAMPLES = 10, 20_000
#: least samples in the rounds before, after which the cut of a new budget has become stable
SETTLING = 300
#: the seed of the random order and of the audits
SEED = 0
#: True for each sample with a certain decision: ``[samples]``, or ``[rounds, samples]``
Decisions = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Replay:
    """The decisions of the rounds that count, ``[rounds, samples]`` with the samples in the order of the verdicts.

    Attributes:
        up: the sample is escalated, so the next tier's answer counts.
        sent: the sample is uploaded, as an escalation or as an audit.
        cut: the hardness above which samples were hard at the end; None: the rule compares no numbers.

    """

    up: Decisions
    sent: Decisions
    cut: float | None

    def typical(self) -> Decisions:
        """Return which samples, ``[samples]``, are escalated in the typical round.

        Its number of escalations is the closest to the mean of all rounds.
        """
        counts = self.up.sum(axis=1)
        typical: Decisions = self.up[np.abs(counts - counts.mean()).argmin()]
        return typical


def replay(verdicts: Sequence[Verdict], *, target: float | None, cut: float | None, audit_share: float = 0.0) -> Replay:
    """Return a policy's decisions about a stream of samples with these verdicts of mining.

    ``target``: the fraction of samples to upload; None: mining alone decides. ``cut``: the mining rule's own; None: it
    compares no numbers. ``audit_share``: the fraction of easy samples to audit. Equal arguments give equal decisions.
    """
    chance = np.random.default_rng(SEED)
    policy = UploadPolicy(
        budget=None if target is None else Budget(target, cut),
        audits=Audits(audit_share, chance.random) if audit_share else None,
    )
    samples = len(verdicts) or 1
    rounds = max(1, min(ROUNDS, MOST_SAMPLES // samples))
    settling = 0 if target is None else math.ceil(SETTLING / samples)
    up, sent = (np.zeros((settling + rounds, len(verdicts)), bool) for _ in range(2))
    for number in range(settling + rounds):
        for i in chance.permutation(len(verdicts)).tolist():
            # only drift and adapted thresholds, which this policy does not have, read the prediction; the sample's size
            # and the times are for the latency estimator, which withholds no sample while the time left is infinite
            decision = policy.decide(verdicts[i], None, 0, np.inf, 0.0)
            policy.ended(decision, 0.0, 0.0, sent=True, answered=True)
            up[number, i], sent[number, i] = decision.up, decision.ask
    return Replay(up[settling:], sent[settling:], policy.budget.cut if policy.budget else cut)
