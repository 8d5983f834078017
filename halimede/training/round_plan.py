"""Decides about the rounds of a training job: whom to invite, which update counts, and when a round ends.

An update counts once, and only if its trainer was invited, and it names the open round with the present epoch (the
number of the aggregator's process). Times are seconds of the caller's monotonic clock.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Literal, TypeAlias

from halimede.api.trainingmodel import MetricTarget
from halimede.messages import TrainerState, TrainingRound
from halimede.training.weights import Weights

#: an update weighs at most so many times the median number of samples: a trainer reports its number itself
SAMPLES_TIMES_MEDIAN = 10

#: what distinguishes two states of a trainer: epoch and number of its round, the digest of its update, its reason
StateIdentity: TypeAlias = tuple[int, int, str, str]


class UpdateVerdict(StrEnum):
    """What a trainer's state means for the open round. From ``NOT_INVITED`` on: why an update does not count."""

    #: there is nothing to do
    NOTHING = ""
    #: it offers an update, which is to be fetched
    FETCH = "Fetch"
    #: it has evaluated the weights, and that was the round's whole work
    EVALUATED = "Evaluated"
    #: the trainer cannot take part, for a reason in the state
    DECLINED = "Declined"
    #: its trainer was not invited
    NOT_INVITED = "NotInvited"
    #: its update is for an earlier round
    LATE = "Late"
    #: it names a round that has not been opened
    UNKNOWN_ROUND = "UnknownRound"
    #: the trainer was accepted or refused before
    REPEATED = "Repeated"
    #: its update has more bytes than the weights can need
    TOO_LARGE = "TooLarge"


@dataclass(frozen=True, slots=True)
class AcceptedUpdate:
    """What a trainer has given to a round: its state, and its update (empty if the round only evaluates)."""

    state: TrainerState
    delta: Weights


@dataclass(slots=True)
class Round:
    """A round of a job in the aggregator's process. What survives the process is in the checkpoint.

    Attributes:
        job: identity of the training.
        epoch: the aggregator's epoch when it opened the round.
        number: the round's number; 0: none was opened yet.
        invited: the trainers of the round.
        until: the deadline for updates, in monotonic seconds.
        most_bytes: most bytes of an update.
        only_evaluate: trainers evaluate the final weights, and train no more.
        counted: trainers whose updates made the weights of this round.
        phase: ``open`` for updates; before and after that ``waiting``, for trainers or the next weights; ``done``: the
            job has its model.
        shortage: why there are too few trainers for the next round; empty: there are enough.
        accepted: invited trainers whose update counts, with the update.
        refused: invited trainers whose update does not count, with the reason.
        judged: identity of the last state of each trainer that was judged.

    """

    job: str
    epoch: int = 0
    number: int = 0
    invited: tuple[str, ...] = ()
    until: float = 0.0
    most_bytes: int = 0
    only_evaluate: bool = False
    counted: frozenset[str] = frozenset()
    phase: Literal["waiting", "open", "done"] = "waiting"
    shortage: str = ""
    accepted: dict[str, AcceptedUpdate] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    judged: dict[str, StateIdentity] = field(default_factory=dict)

    def unjudged_states(self, states: Mapping[str, TrainerState]) -> Iterator[tuple[str, TrainerState]]:
        """Yield each trainer's state that was not judged yet, with its name, and record it as judged."""
        for trainer, state in list(states.items()):
            identity = update_identity(state)
            if self.judged.get(trainer) != identity:
                self.judged[trainer] = identity
                yield trainer, state

    def judge(self, trainer: str, state: TrainerState) -> UpdateVerdict:
        """Return what a trainer's state means for this round; call it once for each of ``unjudged_states``."""
        if state.job != self.job:
            return UpdateVerdict.NOTHING
        if not state.number:
            declines = state.reason and trainer in self.invited and not self._is_settled(trainer)
            return UpdateVerdict.DECLINED if declines else UpdateVerdict.NOTHING
        if (state.number, state.epoch) != (self.number, self.epoch):
            return self._judge_other_round(trainer, state)
        if trainer not in self.invited:
            return UpdateVerdict.NOT_INVITED
        if self._is_settled(trainer):
            return UpdateVerdict.REPEATED
        if state.reason:
            return UpdateVerdict.DECLINED
        if self.only_evaluate:
            return UpdateVerdict.EVALUATED
        if state.update is None:
            return UpdateVerdict.NOTHING
        return UpdateVerdict.TOO_LARGE if state.update.size > self.most_bytes else UpdateVerdict.FETCH

    def _judge_other_round(self, trainer: str, state: TrainerState) -> UpdateVerdict:
        """Return what a state of another round means.

        A trainer whose update counted in the last round may still have the state of that round.
        """
        if state.number > self.number or (state.number == self.number and state.epoch > self.epoch):
            return UpdateVerdict.UNKNOWN_ROUND
        if state.update is None or state.number == self.number:  # an earlier life's round: it is published again
            return UpdateVerdict.NOTHING
        is_counted = state.number == self.number - 1 and trainer in self.counted
        return UpdateVerdict.NOTHING if is_counted else UpdateVerdict.LATE

    def _is_settled(self, trainer: str) -> bool:
        """Whether a trainer was accepted or refused in this round."""
        return trainer in self.accepted or trainer in self.refused

    def has_enough(self, least: int) -> bool:
        """Whether at least ``least`` updates were accepted."""
        return len(self.accepted) >= least

    def is_over(self, now: float) -> bool:
        """Whether all invited trainers were accepted or refused, or the deadline has passed."""
        return now >= self.until or len(self.accepted) + len(self.refused) >= len(self.invited)


def candidates(states: Mapping[str, TrainerState], job: str, shape: Sequence[int]) -> list[str]:
    """Return the names, sorted, of the trainers that can take part in a round of a job: they have samples of ``shape``.

    A trainer whose state has a reason cannot take part, unless the state also names a round: then it failed only in
    that round.
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
    """Return the shape of a sample that most trainers of a job have; empty if none has samples."""
    shapes = Counter(tuple(state.shape) for state in states.values() if state.job == job and state.samples)
    most = max(shapes.values(), default=0)
    return list(min((shape for shape, count in shapes.items() if count == most), default=()))


def invite(names: Sequence[str], number: int, seed: int) -> tuple[str, ...]:
    """Return the trainers of a round, sorted: ``number`` of the names, drawn by the seed; all if ``number`` is 0."""
    chosen = random.Random(seed).sample(sorted(names), number) if 0 < number < len(names) else names  # noqa: S311
    return tuple(sorted(chosen))


def round_seed(job_seed: int, number: int) -> int:
    """Return the seed of round ``number``: the same in each process."""
    return (job_seed * 1_000_003 + number) % 2**32  # the factor exceeds any number of rounds: jobs hardly share seeds


def update_identity(state: TrainerState) -> StateIdentity:
    """Return what distinguishes a state from others: a trainer publishes the same state again with each connection."""
    return state.epoch, state.number, state.update.digest if state.update else "", state.reason


def trainer_weights(samples: Mapping[str, int]) -> dict[str, int]:
    """Return the weight of each trainer: its samples, at most ``SAMPLES_TIMES_MEDIAN`` times the median; at least 1.

    ``samples``: by trainer, at least one.
    """
    most = int(SAMPLES_TIMES_MEDIAN * median(samples.values()))
    return {name: max(1, min(number, most)) for name, number in samples.items()}


def mean_metrics(states: Mapping[str, TrainerState]) -> dict[str, float]:
    """Return the means of the trainers' evaluations of a round's weights, each weighed by its held-out samples.

    Only metrics that all trainers report are in it; it is empty if no trainer has held-out samples.
    """
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
    """Whether a round's metrics have reached the target of a job, if it has one."""
    return target is not None and target.metric in metrics and metrics[target.metric] >= target.value


def is_superseded(body: TrainingRound, latest: TrainingRound | None) -> bool:
    """Whether the work for a published round ``body`` is in vain, because the latest published one differs.

    It differs in round, epoch or state; if the job was done, in its model.
    """
    if latest is None:
        return False
    if body.state == "done":
        return latest.model != body.model
    return (latest.epoch, latest.number, latest.state) != (body.epoch, body.number, body.state)


def is_same_round(body: TrainingRound, other: TrainingRound) -> bool:
    """Whether an update for one round is also an update for the other: a restarted aggregator repeats its round."""
    return _work(body) == _work(other)


def _work(body: TrainingRound) -> tuple[object, ...]:
    """Return all that an update depends on."""
    weights = body.weights.digest if body.weights else ""
    return body.job, body.number, weights, body.seed, body.parameters, body.compression, body.only_evaluate
