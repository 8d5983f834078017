"""Makes a training set and a held-out set that resemble the whole stream, from hard and audited easy samples.

A model that learns from hard samples alone may lose what it answered well. So each stratum (hard or easy) gets the
weight (samples of the stream) / (stored samples), the inverse of the probability that a sample was stored (Horvitz and
Thompson 1952; as a ratio: Hájek 1971). The worker counts the stream, so that samples which the full store removed, or
which have no sure label, are accounted for.

Trainers take no weights: ``resample_indices`` repeats samples in proportion to their weights. Pure and deterministic.
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

#: whether the mining found a sample hard or easy
StratumName = Literal["hard", "easy"]
#: number of values of the hash that divides groups: the precision of a share
HASH_STEPS = 1_000_000


class LabelledSample(Struct, kw_only=True, frozen=True):
    """A stored sample with its label.

    Attributes:
        id: the frame's id, hexadecimal.
        label: the settled label.
        stratum: whether the mining found it hard or easy.
        period: names the time in which samples were stored by one rule: the version of the model that found them hard
            or easy, and the share of audits.
        group: what similar samples have in common, such as camera and ten seconds; empty: none are similar. All samples
            of a group are either trained or held out, because neighbouring frames show the same scene.
        by: the source of the label.

    """

    id: str
    label: str
    stratum: StratumName
    period: str = ""
    group: str = ""
    by: str = "cloud"


class SampleSets(Struct, kw_only=True, frozen=True):
    """The division of labelled samples into samples to train on and held-out samples."""

    #: ids of the samples to train on, repeated by their weights
    training: list[str]
    held_out: list[LabelledSample]
    #: number of different samples in ``training``
    distinct: int


def is_held_out(group: str, share: float) -> bool:
    """Whether a group is held out, for about ``share`` (0 to 1) of all groups.

    Its digest decides, so that the answer is the same in every round and on every node.
    """
    digest = hashlib.sha256(f"\n{group}".encode()).digest()
    return int.from_bytes(digest[:8]) % HASH_STEPS < share * HASH_STEPS


#: number of samples of the stream by period and stratum
Strata = Mapping[tuple[str, StratumName], int]


def weights(stream: Strata, samples: Sequence[LabelledSample]) -> list[float]:
    """Return each sample's weight: how many samples of the stream it stands for, at least 1."""
    counts = Counter((sample.period, sample.stratum) for sample in samples)
    stratum_weights = {stratum: max(1.0, stream.get(stratum, 0) / count) for stratum, count in counts.items()}
    return [stratum_weights[sample.period, sample.stratum] for sample in samples]


def resample_indices(sample_weights: Sequence[float], size: int, seed: int) -> list[int]:
    """Return ``size`` indices of samples, each as often as its share of all weights, give or take one.

    Systematic sampling (Madow 1949): equal steps along the summed weights from a random start. None without weights.
    """
    ends = list(accumulate(sample_weights))
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
    """Hold out about ``share`` of the groups, and resample the others to a training set of ``size`` like the stream."""
    judged = [sample for sample in samples if is_held_out(sample.group or sample.id, share)]
    training = [sample for sample in samples if not is_held_out(sample.group or sample.id, share)]
    chosen = resample_indices(weights(stream, training), size, seed)
    return SampleSets(
        training=[training[i].id for i in chosen],
        held_out=judged,
        distinct=len(set(chosen)),
    )
