"""What every mining algorithm looks like from outside, and how it is asked without being able to harm inference."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec import Struct

from halimede.errors import HalimedeError
from halimede.messages import Prediction

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: what a message can hold
MOST = sys.float_info.max


class MiningError(HalimedeError):
    """An algorithm cannot judge this prediction. The sample then counts as hard."""


class Miner(Protocol):
    """Decides which samples go to the cloud."""

    def __call__(self, prediction: Prediction, /) -> bool:
        """Whether the sample is hard (True: ask the cloud). Raises MiningError when it cannot tell."""


@runtime_checkable
class Graded(Miner, Protocol):
    """A miner that compares a number with a cut, so that a budget can move the cut and a curve can be drawn.

    The number's scale is the algorithm's own: compare orders and quantiles, never means.
    """

    @property
    def cut(self) -> float:
        """The hardness from which a sample is hard."""

    def hardness(self, prediction: Prediction, /) -> float:
        """How hard the sample is: the higher, the more it should go up. Raises MiningError when it cannot tell."""


class ByHardness:
    """Base of graded miners: hard when ``hardness`` is at or over ``cut``.

    A formula that says "below a threshold" has the negative number as its hardness, and ``just_over`` the negative
    threshold as its cut, so that both mean the same to the last bit.
    """

    __slots__ = ()

    def __call__(self: Graded, prediction: Prediction, /) -> bool:
        """Whether the sample is hard. Raises MiningError when it cannot tell."""
        return self.hardness(prediction) >= self.cut


class Verdict(Struct, frozen=True):
    """Mining's decision about one sample. If the algorithm failed, ``error`` is set and ``hard`` is True.

    ``hardness`` and the ``cut`` that it was compared with are those of a miner that compares numbers: both finite.
    """

    hard: bool
    error: str | None = None
    hardness: float | None = None
    cut: float | None = None


#: whether a class of miners is Graded: looked up for each sample, and slow to find out
_graded: dict[type, bool] = {}


def is_graded(miner: object) -> bool:
    """Whether a miner compares numbers. Decided once for each class, by its first object."""
    kind = type(miner)
    known = _graded.get(kind)
    if known is None:
        known = _graded[kind] = isinstance(miner, Graded)
    return known


def is_ours(miner: object) -> bool:
    """Whether a miner is one of those that come with this package: it computes, and waits for nothing."""
    return str(getattr(miner, "__module__", "")).startswith("halimede.")


def judge(miner: Miner, prediction: Prediction) -> Verdict:
    """Ask a miner. Whatever goes wrong in it makes the sample hard: an unsure answer is the cloud's to give."""
    try:
        if is_graded(miner):
            hardness = finite(miner.hardness(prediction))  # type: ignore[attr-defined]  # is_graded saw it
            cut = finite(miner.cut)  # type: ignore[attr-defined]  # likewise
            return Verdict(hardness >= cut, None, hardness, cut)
        return Verdict(bool(miner(prediction)))
    except Exception as error:  # noqa: BLE001 (an algorithm may be a user's own; inference goes on without it)
        return failed(error)


def failed(error: Exception) -> Verdict:
    """Return what is said of a sample that an algorithm failed at."""
    text = str(error) if isinstance(error, MiningError) else f"{type(error).__name__}: {error}"
    return Verdict(hard=True, error=text)


def finite(number: float) -> float:
    """Return a hardness as a float that a message can hold. Raises MiningError for NaN, which is in no order."""
    number = float(number)
    if -MOST <= number <= MOST:
        return number
    if math.isnan(number):
        raise MiningError("the algorithm gives NaN, which is neither hard nor easy")
    return math.copysign(MOST, number)


def just_over(number: float) -> float:
    """Return the next larger number: the cut of a rule that is strict."""
    return math.nextafter(number, math.inf)


def hardness_of(miner: Miner, predictions: Sequence[Prediction] | NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the hardness of each prediction, NaN where the miner cannot tell: such a sample goes up whatever the cut.

    ``predictions`` may be an array ``[samples, classes]`` of class probabilities. Of a miner that compares no numbers
    hard is 1 and easy 0. Every number is the one that ``judge`` gives, to the last bit; a miner that draws lots is
    asked once for each sample, in order.
    """
    import numpy as np  # noqa: PLC0415 (the algorithms do without it)

    if isinstance(predictions, np.ndarray):
        if predictions.ndim != 2:
            raise ValueError(f"predictions are {list(predictions.shape)}, which is no [samples, classes]")
        predictions = [Prediction(probabilities=row) for row in predictions.tolist()]
    verdicts = [judge(miner, prediction) for prediction in predictions]
    numbers = [float(verdict.hard) if verdict.hardness is None else verdict.hardness for verdict in verdicts]
    broken = [verdict.error is not None for verdict in verdicts]
    return np.where(broken, np.nan, np.array(numbers, np.float64))
