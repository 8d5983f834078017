"""The interface of mining algorithms, and functions that call them without affecting inference."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec import Struct

from halimede.errors import HalimedeError, describe_exception
from halimede.messages import Prediction

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: the largest number in a message
MOST = sys.float_info.max


class MiningError(HalimedeError):
    """An algorithm cannot judge this prediction. The sample then counts as hard."""


class Miner(Protocol):
    """Decides which samples to upload."""

    def __call__(self, prediction: Prediction, /) -> bool:
        """Whether the sample is hard (True: request the cloud). Raises MiningError if it cannot judge."""


@runtime_checkable
class Graded(Miner, Protocol):
    """A miner that compares a number with a cut, so that a budget can move the cut and a curve can be drawn.

    The scale of the number depends on the algorithm: compare orders and quantiles, never means.
    """

    @property
    def cut(self) -> float:
        """The hardness from which a sample is hard."""

    def hardness(self, prediction: Prediction, /) -> float:
        """How hard the sample is: the higher, the sooner it is uploaded. Raises MiningError if it cannot judge."""


class ByHardness:
    """Base of graded miners: hard when ``hardness`` is at or over ``cut``.

    A rule of the form "below a threshold" has the negative number as its hardness, and ``just_over`` the negative
    threshold as its cut, so that both agree to the last bit.
    """

    __slots__ = ()

    def __call__(self: Graded, prediction: Prediction, /) -> bool:
        """Whether the sample is hard. Raises MiningError if it cannot judge."""
        return self.hardness(prediction) >= self.cut


class Verdict(Struct, frozen=True):
    """Mining's decision about one sample. If the algorithm failed, ``error`` is set and ``hard`` is True.

    ``hardness`` and its ``cut`` are set if the miner compares numbers: both finite.
    """

    hard: bool
    error: str | None = None
    hardness: float | None = None
    cut: float | None = None


#: whether a class of miners is Graded: needed for each sample, and slow to determine
_graded: dict[type, bool] = {}


def is_graded(miner: object) -> bool:
    """Whether a miner compares numbers. Determined once for each class, by its first object."""
    kind = type(miner)
    known = _graded.get(kind)
    if known is None:
        known = _graded[kind] = isinstance(miner, Graded)
    return known


def is_ours(miner: object) -> bool:
    """Whether a miner is part of this package: such a miner only computes, and never blocks."""
    return str(getattr(miner, "__module__", "")).startswith("halimede.")


def judge(miner: Miner, prediction: Prediction) -> Verdict:
    """Call a miner. Any error in it makes the sample hard: the cloud should give an uncertain answer."""
    try:
        if is_graded(miner):
            hardness = finite(miner.hardness(prediction))  # type: ignore[attr-defined]  # is_graded checked it
            cut = finite(miner.cut)  # type: ignore[attr-defined]  # likewise
            return Verdict(hardness >= cut, None, hardness, cut)
        return Verdict(bool(miner(prediction)))
    except Exception as error:  # noqa: BLE001 (an algorithm may be user code; inference continues without it)
        return failed(error)


def failed(error: Exception) -> Verdict:
    """Return the verdict on a sample for which an algorithm failed."""
    text = str(error) if isinstance(error, MiningError) else describe_exception(error)
    return Verdict(hard=True, error=text)


def finite(number: float) -> float:
    """Return a hardness as a float for messages. Raises MiningError for NaN, which has no order."""
    number = float(number)
    if -MOST <= number <= MOST:
        return number
    if math.isnan(number):
        raise MiningError("the algorithm gives NaN, which is neither hard nor easy")
    return math.copysign(MOST, number)


def just_over(number: float) -> float:
    """Return the next larger number: the cut of a rule with a strict comparison."""
    return math.nextafter(number, math.inf)


def hardness_of(miner: Miner, predictions: Sequence[Prediction] | NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the hardness of each prediction, NaN if the miner cannot judge: that sample is always uploaded.

    ``predictions`` may be an array ``[samples, classes]`` of class probabilities. A miner without numbers gives 1 for
    hard and 0 for easy. Every number equals that of ``judge`` to the last bit; a random miner is called once for each
    sample, in order.
    """
    import numpy as np  # noqa: PLC0415 (the algorithms do not need it)

    if isinstance(predictions, np.ndarray):
        if predictions.ndim != 2:
            raise ValueError(f"predictions are {list(predictions.shape)}, which is no [samples, classes]")
        predictions = [Prediction(probabilities=row) for row in predictions.tolist()]
    verdicts = [judge(miner, prediction) for prediction in predictions]
    numbers = [float(verdict.hard) if verdict.hardness is None else verdict.hardness for verdict in verdicts]
    broken = [verdict.error is not None for verdict in verdicts]
    return np.where(broken, np.nan, np.array(numbers, np.float64))
