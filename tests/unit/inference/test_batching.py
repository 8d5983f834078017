from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.inference import SampleError, group, isolate, signature
from halimede.inference.batching import CALLS_TO_RETRY, BatchGain

KINDS = [np.zeros(2, np.float32), np.zeros(3, np.float32), np.zeros(2, np.float64), np.zeros((1, 2), np.float32)]
waiting_items = st.lists(st.integers(0, len(KINDS) - 1), max_size=40).map(lambda kinds: list(enumerate(kinds)))


def array_of(item: tuple[int, int]) -> np.ndarray:
    return KINDS[item[1]]


@given(waiting_items, st.integers(1, 9))
def test_every_sample_is_in_one_batch_of_its_like_within_the_limit_and_there_are_no_more_than_needed(waiting, limit):
    batches = group(waiting, limit, array_of)
    assert sorted(item for batch in batches for item in batch) == waiting
    for batch in batches:
        assert 1 <= len(batch) <= limit
        assert len({signature(array_of(item)) for item in batch}) == 1
        assert batch == sorted(batch)
    assert [batch[0] for batch in batches] == sorted(batch[0] for batch in batches)
    counts = [sum(item[1] == kind for item in waiting) for kind in range(len(KINDS))]
    assert len(batches) == sum(math.ceil(count / limit) for count in counts)


def test_byte_order_tells_samples_apart():
    assert signature(np.zeros(2, ">f4")) != signature(np.zeros(2, "<f4"))


@given(st.lists(st.booleans(), max_size=64))
def test_the_culprits_get_an_error_and_all_others_their_answer(bad):
    def run(items):
        if any(bad[i] for i in items):
            raise ValueError("poison")
        return [i * i for i in items]

    answers = isolate(range(len(bad)), run)
    assert len(answers) == len(bad)
    for i, answer in enumerate(answers):
        if bad[i]:
            assert isinstance(answer, SampleError)
            assert isinstance(answer.__cause__, ValueError)
        else:
            assert answer == i * i


def test_a_batch_without_culprit_runs_once_and_no_samples_need_no_run():
    runs = []
    isolate([1, 2, 3], lambda items: runs.append(items) or items)
    assert runs == [[1, 2, 3]]
    assert isolate([], pytest.fail) == []


@given(st.integers(1, 256), st.data())
def test_one_culprit_costs_two_runs_a_halving(count, data):
    culprit = data.draw(st.integers(0, count - 1))
    runs = []

    def run(items):
        runs.append(items)
        if culprit in items:
            raise SampleError("poison")
        return items

    answers = isolate(range(count), run)
    assert str(answers[culprit]) == "poison"
    assert len(runs) <= 1 + 2 * math.ceil(math.log2(count))


def test_an_answer_too_few_is_never_given_to_the_wrong_sample():
    answers = isolate(["a", "b", "c"], lambda items: items if len(items) == 1 else items[1:])
    assert answers == ["a", "b", "c"]


def test_an_interrupt_is_no_fault_of_a_sample():
    def run(items):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        isolate([1, 2], run)


@pytest.mark.parametrize(("together_ms", "alone_ms"), [(1.0, 25.0), (2.0, 1.0), (1.0, 1.0)])
def test_samples_run_in_the_way_that_costs_less_and_the_other_is_tried_again_at_little_cost(together_ms, alone_ms):
    ways, chosen = BatchGain(), []
    for _ in range(100 * CALLS_TO_RETRY):
        together = ways.must_batch()
        chosen.append(together)
        ways.learn(4, 4 * (together_ms if together else alone_ms), together=together)
    worse = chosen.count(alone_ms < together_ms)
    assert 2 <= worse <= len(chosen) / CALLS_TO_RETRY + 2
    spent = sum(together_ms if together else alone_ms for together in chosen)
    assert spent <= 1.1 * len(chosen) * min(together_ms, alone_ms)


def test_a_way_that_becomes_the_cheaper_one_is_found():
    ways, alone_ms = BatchGain(), 2.0
    for turn in range(40 * CALLS_TO_RETRY):
        alone_ms = 2.0 if turn < 20 * CALLS_TO_RETRY else 0.5
        together = ways.must_batch()
        ways.learn(1, 1.0 if together else alone_ms, together=together)
    assert not any(ways.must_batch() for _ in range(CALLS_TO_RETRY - 1))
