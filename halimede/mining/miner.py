"""What every mining algorithm looks like from outside, and how it is asked without being able to harm inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from halimede.errors import HalimedeError
from halimede.messages import Prediction


class MiningError(HalimedeError):
    """An algorithm cannot judge this prediction. The sample then counts as hard."""


class Miner(Protocol):
    """Decides which samples go to the cloud."""

    def __call__(self, prediction: Prediction, /) -> bool:
        """Whether the sample is hard (True: ask the cloud). Raises MiningError when it cannot tell."""


@runtime_checkable
class Graded(Miner, Protocol):
    """A miner that compares a number with a cut, so that a budget can move the cut and a curve can be drawn."""

    @property
    def cut(self) -> float:
        """The hardness from which a sample is hard."""

    def hardness(self, prediction: Prediction, /) -> float:
        """How hard the sample is: the higher, the more it should go up. Raises MiningError when it cannot tell."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What mining says of one sample. ``error`` is set when the algorithm failed; ``hard`` is then True.

    ``hardness`` and the ``cut`` that it was compared with are those of a miner that compares numbers.
    """

    hard: bool
    error: str | None = None
    hardness: float | None = None
    cut: float | None = None


def judge(miner: Miner, prediction: Prediction) -> Verdict:
    """Ask a miner. Whatever goes wrong in it makes the sample hard: an unsure answer is the cloud's to give."""
    try:
        if isinstance(miner, Graded):
            hardness, cut = miner.hardness(prediction), miner.cut
            return Verdict(hard=hardness >= cut, hardness=hardness, cut=cut)
        return Verdict(hard=bool(miner(prediction)))
    except MiningError as error:
        return Verdict(hard=True, error=str(error))
    except Exception as error:  # noqa: BLE001 (an algorithm may be a user's own; inference goes on without it)
        return Verdict(hard=True, error=f"{type(error).__name__}: {error}")
