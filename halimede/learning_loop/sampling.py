"""Makes a training set and a held-out set that resemble the whole stream, from hard and audited easy samples.

Hard samples alone are a biased choice: a model that learns from them alone may lose what it answered well. Each stratum
gets the weight (samples of the stream) / (samples kept), the inverse of the probability that one was kept (Horvitz and
Thompson 1952; as a ratio: Hájek 1971). The counts of the service give the first number, so samples that the full store
removed, or that have no sure label, are accounted for.

Trainers take no weights: ``resampled`` repeats samples in proportion to theirs. Pure and deterministic.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from random import Random
from typing import Literal

from msgspec import Struct

StratumName = Literal["hard", "easy"]
#: steps of the hash that splits groups
STEPS = 1_000_000


class LabelledSample(Struct, kw_only=True, frozen=True):
    """A kept sample with its label.

    ``period`` is the time in which samples were kept by the same rule: the version of the model that found them hard or
    easy, and the share of audits. ``group`` is what similar samples have in common, such as camera and ten seconds:
    neighbouring frames show the same scene, so a group is never divided between training and judging.
    """

    id: str
    label: str
    stratum: StratumName
    period: str = ""
    group: str = ""
    by: str = "cloud"


class SampleSets(Struct, kw_only=True, frozen=True):
    """The result: identifiers to train on, repeated by weight, and held-out samples, each once."""

    training: list[str]
    held_out: list[LabelledSample]
    #: different samples in ``training``
    distinct: int


def held_out(group: str, share: float) -> bool:
    """Whether a group is for judging: decided by its digest, so that it stays so in every round and on every node."""
    digest = hashlib.sha256(f"\n{group}".encode()).digest()
    return int.from_bytes(digest[:8]) % STEPS < share * STEPS


Strata = Mapping[tuple[str, StratumName], int]


def weights(stream: Strata, samples: Sequence[LabelledSample]) -> list[float]:
    """Return each sample's weight: how many samples of the stream it stands for, at least 1.

    ``stream`` counts the samples of each stratum in each period in which ``samples`` were kept.
    """
    counts = Counter((sample.period, sample.stratum) for sample in samples)
    of = {stratum: max(1.0, stream.get(stratum, 0) / count) for stratum, count in counts.items()}
    return [of[sample.period, sample.stratum] for sample in samples]


def resampled(of: Sequence[float], size: int, seed: int) -> list[int]:
    """Return ``size`` indices in proportion to their weights, each within one of its exact share.

    Systematic sampling (Madow 1949): equal steps along the summed weights from a random start.
    """
    ends = list(accumulate(of))
    if not ends or ends[-1] <= 0 or size <= 0:
        return []
    step = ends[-1] / size
    start = Random(seed).random() * step  # noqa: S311 (no secret)
    return [min(bisect_right(ends, start + i * step), len(ends) - 1) for i in range(size)]


def split(
    samples: Sequence[LabelledSample],
    stream: Strata,
    *,
    size: int,
    seed: int,
    share: float = 0.3,
) -> SampleSets:
    """Divide samples by their groups, and weight those of the training set to resemble the stream."""
    judged = [sample for sample in samples if held_out(sample.group or sample.id, share)]
    training = [sample for sample in samples if not held_out(sample.group or sample.id, share)]
    of = weights(stream, training)
    chosen = resampled(of, size, seed)
    return SampleSets(
        training=[training[i].id for i in chosen],
        held_out=judged,
        distinct=len(set(chosen)),
    )
