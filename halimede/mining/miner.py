"""What every mining algorithm looks like from outside, and how it is asked without being able to harm inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from halimede.errors import HalimedeError
from halimede.messages import Prediction


class MiningError(HalimedeError):
    """An algorithm cannot judge this prediction. The sample then counts as hard."""


class Miner(Protocol):
    """Decides which samples go to the cloud."""

    def __call__(self, prediction: Prediction, /) -> bool:
        """Whether the sample is hard (True: ask the cloud). Raises MiningError when it cannot tell."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What mining says of one sample. ``error`` is set when the algorithm failed; ``hard`` is then True."""

    hard: bool
    error: str | None = None


def judge(miner: Miner, prediction: Prediction) -> Verdict:
    """Ask a miner. Whatever goes wrong in it makes the sample hard: an unsure answer is the cloud's to give."""
    try:
        return Verdict(hard=bool(miner(prediction)))
    except MiningError as error:
        return Verdict(hard=True, error=str(error))
    except Exception as error:  # noqa: BLE001 (an algorithm may be a user's own; inference goes on without it)
        return Verdict(hard=True, error=f"{type(error).__name__}: {error}")
