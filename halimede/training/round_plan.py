"""Decides about the rounds of a job: whom to invite, which update counts, and when a round ends. Pure.

Times are seconds of the caller's monotonic clock. An update counts once, and only if it names the open round of the
present life of the aggregator, and its trainer was invited to it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from halimede.api.trainingmodel import MetricTarget
from halimede.messages import TrainerState, TrainingRound

#: an update weighs at most so many times the median number of samples: a trainer reports its number itself
TIMES_MEDIAN = 10


class UpdateVerdict(StrEnum):
    """What a trainer's state means for the open round. From ``NOT_INVITED`` on: why an update does not count."""

    NOTHING = ""
    FETCH = "Fetch"
    EVALUATED = "Evaluated"
    DECLINED = "Declined"
    NOT_INVITED = "NotInvited"
    LATE = "Late"
    UNKNOWN_ROUND = "UnknownRound"
    REPEATED = "Repeated"
    TOO_LARGE = "TooLarge"


@dataclass(slots=True)
class RoundPlan:
    """The open round of a job. ``received``, ``refused``: the invited trainers that are done with it."""

    job: str
    epoch: int
    number: int
    invited: tuple[str, ...]
    until: float
    most_bytes: int
    only_evaluate: bool = False
    #: whose updates made the weights of this round
    counted: frozenset[str] = frozenset()
    received: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    def judge(self, trainer: str, state: TrainerState) -> UpdateVerdict:
        """Return what a trainer's state means for this round. The caller judges each state once."""
        if state.job != self.job:
            return UpdateVerdict.NOTHING
        if not state.number:
            declines = state.reason and trainer in self.invited and not self._is_done(trainer)
            return UpdateVerdict.DECLINED if declines else UpdateVerdict.NOTHING
        if (state.number, state.epoch) != (self.number, self.epoch):
            return self._elsewhere(trainer, state)
        if trainer not in self.invited:
            return UpdateVerdict.NOT_INVITED
        if self._is_done(trainer):
            return UpdateVerdict.REPEATED
        if state.reason:
            return UpdateVerdict.DECLINED
        if self.only_evaluate:
            return UpdateVerdict.EVALUATED
        if state.update is None:
            return UpdateVerdict.NOTHING
        return UpdateVerdict.TOO_LARGE if state.update.size > self.most_bytes else UpdateVerdict.FETCH

    def _elsewhere(self, trainer: str, state: TrainerState) -> UpdateVerdict:
        """Return what a state of another round means. A trainer that counted in the last one may still show that."""
        if state.number > self.number or (state.number == self.number and state.epoch > self.epoch):
            return UpdateVerdict.UNKNOWN_ROUND
        if state.update is None or state.number == self.number:  # an earlier life's round: it is published again
            return UpdateVerdict.NOTHING
        is_counted = state.number == self.number - 1 and trainer in self.counted
        return UpdateVerdict.NOTHING if is_counted else UpdateVerdict.LATE

    def _is_done(self, trainer: str) -> bool:
        return trainer in self.received or trainer in self.refused

    def has_enough(self, least: int) -> bool:
        """Whether so many updates are there that the round counts."""
        return len(self.received) >= least

    def is_over(self, now: float) -> bool:
        """Whether all invited trainers are done, or the deadline has passed."""
        return now >= self.until or len(self.received) + len(self.refused) >= len(self.invited)


def candidates(states: Mapping[str, TrainerState], job: str, shape: Sequence[int]) -> list[str]:
    """Return the trainers that can take part in a round, in the order of their names. ``shape``: that of a sample.

    A trainer that failed in a round can take part in the next one. One that names no round reports why it cannot.
    """
    return sorted(
        name
        for name, state in states.items()
        if state.job == job
        and state.samples
        and list(state.shape) == list(shape)
        and not (state.reason and not state.number)
    )


def sample_shape(states: Mapping[str, TrainerState], job: str) -> list[int]:
    """Return the shape of samples that most trainers have; empty if none has any."""
    shapes = Counter(tuple(state.shape) for state in states.values() if state.job == job and state.samples)
    most = max(shapes.values(), default=0)
    return list(min((shape for shape, count in shapes.items() if count == most), default=()))


def invite(names: Sequence[str], number: int, seed: int) -> tuple[str, ...]:
    """Return the trainers of a round: ``number`` of the names, drawn by the seed; 0: all."""
    chosen = random.Random(seed).sample(sorted(names), number) if 0 < number < len(names) else names  # noqa: S311
    return tuple(sorted(chosen))


def round_seed(job_seed: int, number: int) -> int:
    """Return the seed of a round."""
    return (job_seed * 1_000_003 + number) % 2**32


def update_identity(state: TrainerState) -> tuple[int, int, str, str]:
    """Return what a retained state is known by: it is published again with each connection."""
    return state.epoch, state.number, state.update.digest if state.update else "", state.reason


def trainer_weights(samples: Mapping[str, int]) -> dict[str, int]:
    """Return the weight of each trainer: its samples, at most ``TIMES_MEDIAN`` times the median."""
    most = int(TIMES_MEDIAN * median(samples.values()))
    return {name: max(1, min(number, most)) for name, number in samples.items()}


def mean_metrics(states: Mapping[str, TrainerState]) -> dict[str, float]:
    """Return the metrics of a round's weights over trainers, each weighed by its held-out samples."""
    evaluated = {name: state for name, state in states.items() if state.evaluation and state.held_out}
    if not evaluated:
        return {}
    weights = trainer_weights({name: state.held_out for name, state in evaluated.items()})
    keys = set.intersection(*(set(state.evaluation) for state in evaluated.values()))
    total = sum(weights.values())
    return {
        key: sum(state.evaluation[key] * weights[n] for n, state in evaluated.items()) / total for key in sorted(keys)
    }


def is_target_reached(target: MetricTarget | None, metrics: Mapping[str, float]) -> bool:
    """Whether a round's metrics have the value at which a job ends; one that no trainer reports has none."""
    return target is not None and target.metric in metrics and metrics[target.metric] >= target.value


def is_superseded(body: TrainingRound, now: TrainingRound | None) -> bool:
    """Whether another round, or another state of this one, is published by now."""
    return now is not None and (now.epoch, now.number, now.state) != (body.epoch, body.number, body.state)


def is_same_round(one: TrainingRound, other: TrainingRound) -> bool:
    """Whether an update for one is an update for the other: a restarted aggregator repeats its round."""
    return _work(one) == _work(other)


def _work(body: TrainingRound) -> tuple[object, ...]:
    weights = body.weights.digest if body.weights else ""
    return body.job, body.number, weights, body.seed, body.parameters, body.compression, body.only_evaluate
