from __future__ import annotations

import math

import numpy as np
import pytest

from halimede.messages import Prediction
from halimede.mining import MiningError, Verdict, create, judge


@pytest.mark.parametrize("name", ["CloudOnly", "EdgeOnly"])
def test_a_verdict_is_what_the_miner_says(name):
    assert judge(create(name, {}), Prediction()) == Verdict(hard=name == "CloudOnly", error=None)


def test_a_sample_that_mining_refuses_is_hard_with_the_reason():
    verdict = judge(create("Margin", {}), Prediction(probabilities=[math.nan, 0.5]))
    assert verdict == Verdict(hard=True, error="the probability nan is not in 0..1")


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), MiningError("odd"), KeyError("x"), OSError()])
def test_no_exception_of_a_miner_gets_out(error):
    def fails(_):
        raise error

    verdict = judge(fails, Prediction())
    assert verdict.hard
    assert verdict.error


def test_an_interrupt_is_no_verdict():
    def stopped(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(stopped, Prediction())


def test_a_miner_may_answer_in_numpys_truth():
    verdict = judge(lambda _: np.bool_(False), Prediction())
    assert verdict.hard is False
