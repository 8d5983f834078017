"""Compares a candidate with the present model on a node: both answer the same held-out samples, in turns.

The result is the gate's evidence. Whatever the candidate does, the comparison ends with evidence: an error of a model
is part of it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from halimede.errors import describe_exception, shorten_middle
from halimede.inference import Array
from halimede.learning_loop.gate import Evidence, StratumCounts
from halimede.learning_loop.sampling import LabelledSample, Strata
from halimede.messages import Prediction
from halimede.stats.agreement import Estimate
from halimede.stats.differences import PairedCounts

#: timed answers of each model, and the ranks (from 0) between which their median lies with 97 % (binomial)
RUNS, LOW, HIGH = 31, 9, 21


class AnsweringModel(Protocol):
    """A model that is open."""

    def predict(self, samples: list[Array]) -> list[Prediction]:
        """Return an answer for each sample. May raise any error."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A held-out sample: its label and stratum, and its pixels."""

    sample: LabelledSample
    pixels: Array


@dataclass(frozen=True, slots=True)
class ReferenceSamples:
    """Samples of the stream as it was, with their labels."""

    pixels: Sequence[Array] = ()
    labels: Sequence[str] = ()


def compare(
    open_candidate: Callable[[], AnsweringModel],
    present: AnsweringModel,
    held_out: Sequence[HeldOut],
    stream: Strata,
    reference: ReferenceSamples = ReferenceSamples(),
) -> Evidence:
    """Compare the model that ``open_candidate`` opens with the present one.

    ``stream`` counts the samples of each stratum and period in which ``held_out`` were kept: each is a stratum of the
    evidence, so that samples of earlier versions count, too. Errors of the present model are raised.
    """
    pixels = [entry.pixels for entry in held_out]
    try:
        candidate = open_candidate()
        new, again = candidate.predict(pixels), candidate.predict(list(reference.pixels))
    except Exception as error:  # noqa: BLE001 (a candidate may raise anything)
        return Evidence(error=shorten_middle(describe_exception(error), 1024))
    old, before = present.predict(pixels), present.predict(list(reference.pixels))
    truth = [entry.sample.label for entry in held_out]
    total = sum(stream.values())
    groups: dict[str, list[int]] = {}
    for i, entry in enumerate(held_out):
        groups.setdefault(f"class {entry.sample.label}", []).append(i)
        groups.setdefault(f"label by {entry.sample.by}", []).append(i)
    rows: dict[tuple[str, str], list[int]] = {}
    for i, entry in enumerate(held_out):
        rows.setdefault((entry.sample.period, entry.sample.stratum), []).append(i)
    times = timed([candidate, present], pixels[0]) if pixels else (None, None)
    return Evidence(
        failed=sum(not _usable(mine) and _usable(other) for mine, other in zip(new, old, strict=True)),
        strata=[
            StratumCounts(
                name=name,
                share=count / total if total else 0.0,
                counts=paired_counts(new, old, truth, rows.get((period, name), [])),
            )
            for (period, name), count in stream.items()
        ],
        groups={name: paired_counts(new, old, truth, of) for name, of in groups.items()},
        reference=paired_counts(again, before, reference.labels, range(len(reference.labels))),
        candidate_ms=times[0],
        present_ms=times[1],
    )


def paired_counts(
    new: Sequence[Prediction], old: Sequence[Prediction], truth: Sequence[str], rows: Sequence[int]
) -> PairedCounts:
    """Count on which samples both models, one of them, or neither were right."""
    right = [(new[i].label == truth[i], old[i].label == truth[i]) for i in rows]
    return PairedCounts(
        both=right.count((True, True)),
        candidate=right.count((True, False)),
        present=right.count((False, True)),
        neither=right.count((False, False)),
    )


def timed(models: Sequence[AnsweringModel], sample: Array) -> tuple[Estimate, ...]:
    """Measure the median time of one answer of each model, in turns, with its interval by order statistics (ms).

    It is processor time: a trainer computes while no other process needs the processor, so the clock shows the others.
    """
    durations: list[list[float]] = [[] for _ in models]
    for _ in range(RUNS):
        for model, times in zip(models, durations, strict=True):
            began = time.thread_time()
            model.predict([sample])
            times.append((time.thread_time() - began) * 1000)
    return tuple(Estimate(statistics.median(times), sorted(times)[LOW], sorted(times)[HIGH]) for times in durations)


def _usable(prediction: Prediction) -> bool:
    """Whether an answer has a label, and its numbers are finite."""
    return prediction.label is not None and bool(np.isfinite(prediction.probabilities or [0.0]).all())
