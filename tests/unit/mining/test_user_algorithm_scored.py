from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from halimede.messages import Prediction
from halimede.mining import MiningError, Verdict, create, judge


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
    assert judge(lambda _: np.bool_(False), Prediction()).hard is False


@dataclass
class Own:
    """A user's own, with a number."""

    number: object
    cut: float = 0.5

    def hardness(self, prediction):
        return self.number

    def __call__(self, prediction):
        return False


class TestNumbers:
    @pytest.mark.parametrize("number", [0.5, np.float32(0.5), np.array(0.75), 1, True])
    def test_a_hardness_at_the_cut_or_over_it_is_hard(self, number):
        assert judge(Own(number), Prediction()) == Verdict(hard=True, hardness=float(number), cut=0.5)

    def test_a_hardness_under_it_is_easy(self):
        assert judge(Own(np.nextafter(0.5, 0)), Prediction()).hard is False

    @pytest.mark.parametrize("own", [Own(math.nan), Own(0.0, cut=math.nan), Own(None), Own("hard")])
    def test_what_is_no_number_is_never_easy(self, own):
        verdict = judge(own, Prediction())
        assert (verdict.hard, verdict.hardness) == (True, None)
        assert verdict.error

    @pytest.mark.parametrize(("number", "hard"), [(math.inf, True), (-math.inf, False)])
    def test_the_infinite_is_as_far_as_numbers_go(self, number, hard):
        verdict = judge(Own(number), Prediction())
        assert (verdict.hard, verdict.error) == (hard, None)
        assert math.isfinite(verdict.hardness)
