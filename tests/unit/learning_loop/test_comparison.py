"""The comparison of two models: its evidence, whatever a candidate does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from halimede.api.learning_loop import GateSettings
from halimede.inference import Array
from halimede.learning_loop import comparison, gate
from halimede.learning_loop.comparison import AnsweringModel, HeldOut, ReferenceSamples, measure_times, paired_counts
from halimede.learning_loop.gate import decide
from halimede.learning_loop.sampling import LabelledSample
from halimede.messages import Prediction

STREAM = {("", "hard"): 300, ("", "easy"): 700}
PIXELS = [np.array([i % 5, i], np.float32) for i in range(200)]
HELD = [
    HeldOut(LabelledSample(id=str(i), label=str(i % 5), stratum="hard" if i % 2 else "easy"), pixels)
    for i, pixels in enumerate(PIXELS)
]


class Answers:
    """A model that is a function of the pixels."""

    def __init__(self, answer: Callable[[Array], Prediction], seconds: float = 0.0) -> None:
        self._answer, self._seconds = answer, seconds

    def predict(self, samples: list[Array]) -> list[Prediction]:
        until = time.thread_time() + self._seconds * len(samples)
        while self._seconds and time.thread_time() < until:
            pass
        return [self._answer(sample) for sample in samples]


def right(sample: Array) -> Prediction:
    return Prediction(label=str(int(sample[0])))


def half_right(sample: Array) -> Prediction:
    return right(sample) if sample[1] < 100 else Prediction(label="x")


def compare(candidate: object, present: object, held: list[HeldOut] = HELD, stream: object = STREAM) -> gate.Evidence:
    return comparison.compare(lambda: candidate, present, held, stream)  # type: ignore[arg-type, return-value]


def evidence(candidate: AnsweringModel) -> gate.Evidence:
    reference = ReferenceSamples(PIXELS, ["0", "1", "2", "3", "4"] * 40)
    return comparison.compare(lambda: candidate, Answers(half_right), HELD, STREAM, reference)  # type: ignore[arg-type]


def test_both_models_are_counted_by_stratum_and_group() -> None:
    found = evidence(Answers(right))
    strata = [(stratum.name, stratum.share, stratum.counts.both, stratum.counts.candidate) for stratum in found.strata]
    assert strata == [("hard", 0.3, 50, 50), ("easy", 0.7, 50, 50)]
    assert [found.groups[name].samples for name in ("class 3", "label by cloud")] == [40, 200]
    assert (found.reference.both, found.reference.samples) == (100, 200)
    assert decide(found, GateSettings(most_slowdown=0)).accepted


def test_samples_of_each_period_are_weighted_by_their_part_of_the_stream() -> None:
    earlier = [HeldOut(msgspec.structs.replace(each.sample, period="1"), each.pixels) for each in HELD[:100]]
    later = [HeldOut(msgspec.structs.replace(each.sample, period="2"), each.pixels) for each in HELD[100:]]
    stream = {("1", "hard"): 100, ("1", "easy"): 100, ("2", "hard"): 200, ("2", "easy"): 600}
    found = compare(Answers(right), Answers(half_right), [*earlier, *later], stream)
    # both models are right in the first period, the candidate alone in the second
    strata = [(stratum.name, stratum.share, stratum.counts.candidate) for stratum in found.strata]
    assert strata == [("hard", 0.1, 0), ("easy", 0.1, 0), ("hard", 0.2, 50), ("easy", 0.6, 50)]
    assert gate.gain_of(found.strata, 1.96).value == pytest.approx(0.8)


def test_a_candidate_that_raises_is_evidence_and_no_error() -> None:
    def broken(_: Array) -> Prediction:
        raise RuntimeError("shape [7] is not [10]")

    assert "shape [7]" in evidence(Answers(broken)).error

    def missing() -> AnsweringModel:
        raise OSError("no such file")

    assert "no such file" in comparison.compare(missing, Answers(right), HELD, STREAM).error  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [Prediction(), Prediction(label="1", probabilities=[math.nan, 1.0])])
def test_answers_without_a_label_or_a_number_are_failures(bad: Prediction) -> None:
    found = evidence(Answers(lambda _: bad))
    assert found.failed == 200
    assert decide(found, GateSettings()).reason == gate.FAILS


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("index", [0, 4, 9])
def test_one_number_of_one_answer_that_is_none_is_a_failure(bad: float, index: int) -> None:
    def answer(sample: Array) -> Prediction:
        numbers = [0.1] * 10
        if sample[1] == 77:
            numbers[index] = bad
        return Prediction(label=str(int(sample[0])), probabilities=numbers)

    found = evidence(Answers(answer))
    assert found.failed == 1
    assert decide(found, GateSettings()).reason == gate.FAILS


def test_an_answer_that_both_models_fail_on_is_no_failure_of_the_candidate() -> None:
    silent = Answers(lambda _: Prediction())
    assert compare(silent, silent).failed == 0
    assert compare(Answers(right), silent).failed == 0


def test_who_was_right_is_counted_by_pairs() -> None:
    new, old = ([Prediction(label=label) for label in labels] for labels in ("aaabbb", "aabbab"))
    found = paired_counts(new, old, "aaaaab", [0, 1, 2, 3, 4, 5])
    assert (found.both, found.candidate, found.present, found.neither) == (3, 1, 1, 1)
    assert paired_counts(new, old, "aaaaab", [2, 4]).samples == 2


def test_the_median_and_its_interval_are_ranks_of_processor_times_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, calls = [0.0], []

    class Timed:
        def __init__(self, name: str, milliseconds: list[int]) -> None:
            self._name, self._left = name, milliseconds

        def predict(self, samples: list[Array]) -> list[Prediction]:
            calls.append((self._name, len(samples)))
            clock[0] += self._left.pop() / 1000
            return [Prediction() for _ in samples]

    monkeypatch.setattr(comparison.time, "thread_time", lambda: clock[0])  # type: ignore[attr-defined]
    order = [(7 * i) % 31 for i in range(31)]
    found = measure_times([Timed("new", order), Timed("old", [100] * 31)], PIXELS[0])
    assert [(round(each.value), round(each.low), round(each.high)) for each in found] == [(15, 9, 21), (100,) * 3]
    assert calls == [("new", 1), ("old", 1)] * 31


def test_a_stratum_without_held_out_samples_keeps_its_share() -> None:
    stream = {("", "hard"): 10, ("", "easy"): 20, ("1", "easy"): 70}
    found = compare(Answers(right), Answers(half_right), stream=stream)
    strata = [(stratum.name, stratum.share, stratum.counts.samples) for stratum in found.strata]
    assert strata == [("hard", 0.1, 100), ("easy", 0.2, 100), ("easy", 0.7, 0)]
    empty = compare(Answers(right), Answers(right), stream={("", "hard"): 0})
    assert [stratum.share for stratum in empty.strata] == [0.0]


def test_a_slow_candidate_is_measured_as_slow() -> None:
    assert decide(evidence(Answers(right, seconds=0.004)), GateSettings()).reason == gate.TOO_SLOW


def test_without_held_out_samples_nothing_is_accepted() -> None:
    assert not decide(compare(Answers(right), Answers(right), []), GateSettings()).accepted
