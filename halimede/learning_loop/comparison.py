"""Compares a candidate with the present model on a node: both answer the same held-out samples.

The result is the gate's evidence. An error of the candidate is part of the evidence, and does not end the comparison.
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
TIMED_RUNS, LOW_RANK, HIGH_RANK = 31, 9, 21


class AnsweringModel(Protocol):
    """An open model. ``halimede.inference.Model`` implements it."""

    def predict(self, samples: list[Array]) -> list[Prediction]:
        """Return an answer for each sample. May raise any error."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A held-out sample: ``sample`` has its label and stratum, ``pixels`` is the decoded frame."""

    sample: LabelledSample
    pixels: Array


@dataclass(frozen=True, slots=True)
class ReferenceSamples:
    """Samples of the stream as it was before the drift: decoded frames, and the label of each."""

    pixels: Sequence[Array] = ()
    labels: Sequence[str] = ()


def compare(
    open_candidate: Callable[[], AnsweringModel],
    present: AnsweringModel,
    held_out: Sequence[HeldOut],
    stream: Strata,
    reference: ReferenceSamples = ReferenceSamples(),
) -> Evidence:
    """Return the comparison of the model that ``open_candidate`` opens with the present model.

    ``stream`` has the number of samples of the stream by stratum and period; a period is a time in which one version
    divided the samples. Each pair is a stratum of the evidence, so that samples of earlier versions count as well. An
    error of the candidate is in the evidence; an error of the present model is raised.
    """
    pixels = [entry.pixels for entry in held_out]
    try:
        candidate = open_candidate()
        answers, reference_answers = candidate.predict(pixels), candidate.predict(list(reference.pixels))
    except Exception as error:  # noqa: BLE001 (a candidate may raise anything)
        return Evidence(error=shorten_middle(describe_exception(error), 1024))
    present_answers = present.predict(pixels)
    present_reference_answers = present.predict(list(reference.pixels))
    truth = [entry.sample.label for entry in held_out]
    total = sum(stream.values())
    groups: dict[str, list[int]] = {}
    rows: dict[tuple[str, str], list[int]] = {}
    for i, entry in enumerate(held_out):
        groups.setdefault(f"class {entry.sample.label}", []).append(i)
        groups.setdefault(f"label by {entry.sample.by}", []).append(i)
        rows.setdefault((entry.sample.period, entry.sample.stratum), []).append(i)
    times = measure_times([candidate, present], pixels[0]) if pixels else (None, None)
    return Evidence(
        failed=sum(
            not _is_usable(mine) and _is_usable(other) for mine, other in zip(answers, present_answers, strict=True)
        ),
        strata=[
            StratumCounts(
                name=name,
                share=count / total if total else 0.0,
                counts=paired_counts(answers, present_answers, truth, rows.get((period, name), [])),
            )
            for (period, name), count in stream.items()
        ],
        groups={name: paired_counts(answers, present_answers, truth, group) for name, group in groups.items()},
        reference=paired_counts(
            reference_answers, present_reference_answers, reference.labels, range(len(reference.labels))
        ),
        candidate_ms=times[0],
        present_ms=times[1],
    )


def paired_counts(
    answers: Sequence[Prediction], present_answers: Sequence[Prediction], truth: Sequence[str], rows: Sequence[int]
) -> PairedCounts:
    """Return on how many samples both models, one of them, or neither gave the label in ``truth``.

    ``rows`` are the indices of the samples to count.
    """
    right = [(answers[i].label == truth[i], present_answers[i].label == truth[i]) for i in rows]
    return PairedCounts(
        both=right.count((True, True)),
        candidate=right.count((True, False)),
        present=right.count((False, True)),
        neither=right.count((False, False)),
    )


def measure_times(models: Sequence[AnsweringModel], sample: Array) -> tuple[Estimate, ...]:
    """Return the median milliseconds of one answer of each model, measured in turns, with its interval.

    It is processor time: a trainer runs only while no other process needs the processor, so that a clock would measure
    the others as well.
    """
    durations: list[list[float]] = [[] for _ in models]
    for _ in range(TIMED_RUNS):
        for model, times in zip(models, durations, strict=True):
            began = time.thread_time()
            model.predict([sample])
            times.append((time.thread_time() - began) * 1000)
    return tuple(
        Estimate(statistics.median(times), sorted(times)[LOW_RANK], sorted(times)[HIGH_RANK]) for times in durations
    )


def _is_usable(prediction: Prediction) -> bool:
    """Whether an answer has a label, and its probabilities are finite."""
    return prediction.label is not None and bool(np.isfinite(prediction.probabilities or [0.0]).all())
