"""Replays a stream through a worker's upload policy, without a worker: calibration and evaluation measure by it.

The policy, its budget and its audits are those of a running worker. The next tier takes and answers each sample at
once, so only what the user configured decides. Samples come in a random order, again and again: the first round starts
as a new worker does, and its decisions do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halimede.mining import Verdict
from halimede.pipeline.upload_policy.audit import Audits
from halimede.pipeline.upload_policy.budget import Budget
from halimede.pipeline.upload_policy.policy import UploadPolicy

#: rounds that count, unless their samples are more than so many
ROUNDS, MOST_SAMPLES = 10, 20_000
#: samples of the rounds before them, at least: a new budget's cut has settled after so many
SETTLING = 300
SEED = 0
Decisions = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Replay:
    """The decisions of each counted round, ``[rounds, samples]``.

    ``up``: the next tier's answer counts. ``sent``: the sample is uploaded, also as an audit. ``cut``: the last one;
    None: the rule compares no numbers.
    """

    up: Decisions
    sent: Decisions
    cut: float | None

    def typical(self) -> Decisions:
        """Return the escalated samples of the round whose number of them is nearest to the mean of all rounds."""
        counts = self.up.sum(axis=1)
        typical: Decisions = self.up[np.abs(counts - counts.mean()).argmin()]
        return typical


def replay(
    verdicts: Sequence[Verdict],
    *,
    target: float | None,
    cut: float | None,
    audit_share: float = 0.0,
    seed: int = SEED,
) -> Replay:
    """Return a policy's decisions about a stream of samples with these verdicts of mining.

    ``target``: the share of uploads, None: mining alone decides. ``cut``: the rule's own, None: it gives no numbers.
    """
    chance = np.random.default_rng(seed)
    policy = UploadPolicy(
        budget=None if target is None else Budget(target, cut),
        audits=Audits(audit_share, chance.random) if audit_share else None,
    )
    rounds = max(1, min(ROUNDS, MOST_SAMPLES // max(1, len(verdicts))))
    settling = 0 if target is None or not verdicts else -(-SETTLING // len(verdicts))
    up, sent = (np.zeros((settling + rounds, len(verdicts)), bool) for _ in range(2))
    for number in range(settling + rounds):
        for i in chance.permutation(len(verdicts)).tolist():
            decision = policy.decide(verdicts[i], None, 0, np.inf, 0.0)
            policy.ended(decision, 0.0, 0.0, sent=True, answered=True)
            up[number, i], sent[number, i] = decision.up, decision.ask
    last = policy.budget.cut if policy.budget else cut
    return Replay(up[settling:], sent[settling:], last)
