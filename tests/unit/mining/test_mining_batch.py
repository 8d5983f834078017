from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede.api.mining import BUILT_IN
from halimede.messages import Box, Prediction
from halimede.mining import create, hardness_of, judge
from tests.programs import run_python

numbers = st.floats() | st.floats(0, 1)
rows = st.lists(numbers, max_size=5) | st.integers(2, 6).map(lambda k: [1 / k] * k)
predictions = (
    st.builds(Prediction, probabilities=rows, score=st.none() | numbers)
    | st.builds(Prediction, boxes=st.lists(numbers.map(lambda score: Box(0, 0, 9, 9, score)), max_size=4))
    | st.just(Prediction())
)
RULES = sorted(BUILT_IN.keys() - {"Agreement", "CloudOnly", "EdgeOnly", "Learned", "Sharpness", "TwoThresholds"})


@pytest.mark.parametrize("name", RULES)
@given(st.lists(predictions, max_size=6))
def test_many_at_once_are_judged_as_one_by_one_and_nan_is_never_easy(name, given):
    parameters = {"seed": "3"} if name == "Random" else {}
    single = create(name, parameters)
    verdicts = [judge(single, prediction) for prediction in given]
    hardness = hardness_of(create(name, parameters), given)
    assert hardness.dtype == np.float64
    assert len(hardness) == len(given)
    for verdict, number in zip(verdicts, hardness.tolist(), strict=True):
        assert (verdict.error is not None) is math.isnan(number)
        if math.isnan(number):
            assert verdict.hard
        else:
            assert number == verdict.hardness
            assert verdict.hard is (number >= verdict.cut)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=6))
def test_a_matrix_of_probabilities_is_read_row_by_row(pairs):
    matrix = np.array([[p, 1 - p] if q < 0.9 else [p, math.nan] for p, q in pairs]).reshape(-1, 2)
    one_by_one = hardness_of(create("Margin", {}), [Prediction(probabilities=row) for row in matrix])
    assert np.array_equal(hardness_of(create("Margin", {}), matrix), one_by_one, equal_nan=True)


def test_an_array_that_is_no_matrix_is_refused():
    with pytest.raises(ValueError, match=r"\[samples, classes\]"):
        hardness_of(create("Margin", {}), np.zeros(3))


def test_what_says_yes_or_no_is_one_or_zero():
    given = [Prediction(), Prediction(score=0.5)]
    assert hardness_of(create("CloudOnly", {}), given).tolist() == [1, 1]
    assert hardness_of(create("EdgeOnly", {}), given).tolist() == [0, 0]


def test_the_algorithms_are_there_without_numpy(tmp_path):
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from halimede.mining import create, judge, names\n"
        "from halimede.messages import Prediction\n"
        "names()\n"
        "assert judge(create('Margin', {}), Prediction(probabilities=[0.6, 0.4])).hard\n"
        "assert judge(create('Energy', {}), Prediction(probabilities=[1.0, 0.0])).hard is False\n"
    )
    run_python("-c", code, check=True)
