"""The interface of mining algorithms (``Miner``, ``Graded``), their bases, and functions that call them safely.

An error in an algorithm never prevents an answer: it makes its sample hard. Algorithms that judge a sample before
inference have the interface in ``pre_inference``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from msgspec import Struct

from halimede.errors import HalimedeError, describe_exception
from halimede.messages import Prediction

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: the largest number in a message
LARGEST_NUMBER = sys.float_info.max


class MiningError(HalimedeError):
    """An algorithm cannot judge this prediction. The sample then counts as hard."""


class Miner(Protocol):
    """Decides from the small model's predictions which samples are hard: the next tier should answer them."""

    def __call__(self, prediction: Prediction, /) -> bool:
        """Whether the sample of a prediction is hard. Raises MiningError for a prediction that it cannot judge."""


@runtime_checkable
class Graded(Miner, Protocol):
    """A ``Miner`` that compares a number, the hardness, with a cut, so that a budget can move the cut.

    The scale of the number depends on the algorithm: compare orders and quantiles, never means.
    """

    @property
    def cut(self) -> float:
        """The hardness from which a sample is hard."""

    def hardness(self, prediction: Prediction, /) -> float:
        """How hard the sample is: the higher, the sooner it is uploaded. Raises MiningError as ``__call__`` does."""


class ByHardness:
    """Base of ``Graded`` miners: hard when ``hardness`` is at or over ``cut``, both of which a subclass defines."""

    __slots__ = ()

    def __call__(self: Graded, prediction: Prediction, /) -> bool:
        """Whether the sample is hard. Raises what ``hardness`` raises."""
        return self.hardness(prediction) >= self.cut


class BelowThreshold(ByHardness):
    """Base of rules of the form "a number is below a threshold", whose ``hardness`` is minus that number.

    The cut is the next float above ``-threshold``, so that both forms agree to the last bit.
    """

    __slots__ = ()

    #: the name of the parameter that is the threshold
    threshold_field: ClassVar[str]
    #: the largest threshold; the least is 0
    largest_threshold: ClassVar[float] = 1.0

    @property
    def cut(self) -> float:
        """The hardness from which a sample is hard: just over ``-threshold``, as the rule is strict."""
        return just_over(-getattr(self, self.threshold_field))

    def parameters_at(self, cut: float) -> dict[str, str]:
        """Return the parameter of a spec for a cut, or for the nearest possible cut."""
        return {self.threshold_field: repr(min(max(just_over(-cut), 0.0), self.largest_threshold))}


class Verdict(Struct, frozen=True):
    """Mining's decision about one sample.

    Attributes:
        hard: the next tier should answer the sample; True also if the algorithm failed.
        error: why the algorithm failed; None: it judged.
        hardness, cut: the numbers that a miner with numbers compared, both finite; else None.

    """

    hard: bool
    error: str | None = None
    hardness: float | None = None
    cut: float | None = None


#: whether each class of miners is ``Graded``: needed for each sample, and slow to determine
_graded: dict[type, bool] = {}


def is_graded(miner: object) -> bool:
    """Whether a miner compares numbers (``Graded``). Determined once for each class, by its first object."""
    miner_class = type(miner)
    graded = _graded.get(miner_class)
    if graded is None:
        graded = _graded[miner_class] = isinstance(miner, Graded)
    return graded


def is_ours(miner: object) -> bool:
    """Whether a miner's class is part of halimede: such a miner only computes, and never blocks."""
    return str(getattr(miner, "__module__", "")).startswith("halimede.")


def judge(miner: Miner, prediction: Prediction) -> Verdict:
    """Return a miner's verdict on a prediction. Any error in the miner makes the sample hard."""
    try:
        if is_graded(miner):
            hardness = finite(miner.hardness(prediction))  # type: ignore[attr-defined]  # is_graded checked it
            cut = finite(miner.cut)  # type: ignore[attr-defined]  # likewise
            return Verdict(hardness >= cut, None, hardness, cut)
        return Verdict(bool(miner(prediction)))
    except Exception as error:  # noqa: BLE001 (an algorithm may be user code; inference continues without it)
        return failure_verdict(error)


def failure_verdict(error: Exception) -> Verdict:
    """Return the verdict on a sample for which an algorithm failed."""
    text = str(error) if isinstance(error, MiningError) else describe_exception(error)
    return Verdict(hard=True, error=text)


def finite(number: float) -> float:
    """Return a number of any kind as a finite float, as messages need it; infinities become the largest numbers.

    Raises MiningError for NaN, which has no order.
    """
    number = float(number)
    if -LARGEST_NUMBER <= number <= LARGEST_NUMBER:
        return number
    if math.isnan(number):
        raise MiningError("the algorithm gives NaN, which is neither hard nor easy")
    return math.copysign(LARGEST_NUMBER, number)


def just_over(number: float) -> float:
    """Return the next larger float: the cut of a rule with a strict comparison."""
    return math.nextafter(number, math.inf)


def hardness_of(miner: Miner, predictions: Sequence[Prediction] | NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the hardness of each prediction, ``(n,) float64``; NaN if the miner fails, which makes the sample hard.

    ``predictions`` may be an array ``(n, classes)`` of class probabilities; raises ValueError for another shape. A
    miner without numbers gives 1 for hard and 0 for easy. Every number equals that of ``judge`` to the last bit; a
    random miner is called once for each sample, in order.
    """
    import numpy as np  # noqa: PLC0415 (the algorithms do not need it)

    if isinstance(predictions, np.ndarray):
        if predictions.ndim != 2:
            raise ValueError(f"predictions are {list(predictions.shape)}, which is no [samples, classes]")
        predictions = [Prediction(probabilities=row) for row in predictions.tolist()]
    verdicts = [judge(miner, prediction) for prediction in predictions]
    numbers = [float(verdict.hard) if verdict.hardness is None else verdict.hardness for verdict in verdicts]
    has_error = [verdict.error is not None for verdict in verdicts]
    return np.where(has_error, np.nan, np.array(numbers, np.float64))
