"""Mining-then-inference: a ``PreInferenceMiner`` decides from the sample itself whether it is hard.

A hard sample goes to the cloud at once, and the small model does not run. Few algorithms support this mode:
``check_mode`` refuses the others when a service is configured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from halimede.api.mining import AFTER, BEFORE, Mode, check_supported
from halimede.mining.miner import MiningError, Verdict, failure_verdict, finite

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    #: the sample as the camera sent it: ``(height, width[, channels])``, or one row for data other than pictures
    Image: TypeAlias = NDArray[np.generic]


@runtime_checkable
class PreInferenceMiner(Protocol):
    """A miner that can judge a sample before inference."""

    def foresee(self, image: Image, /) -> bool:
        """Whether the sample is hard. Raises MiningError for a sample that it cannot judge."""


@runtime_checkable
class PreInferenceByNumber(PreInferenceMiner, Protocol):
    """A ``PreInferenceMiner`` that compares a number with a cut, so that a budget can move the cut."""

    @property
    def cut(self) -> float:
        """The hardness from which a sample is hard."""

    def foreseen(self, image: Image, /) -> float:
        """How hard the sample is: the higher, the sooner it is uploaded. Raises MiningError as ``foresee`` does."""


#: what ``_kinds`` returns for each class of miners: needed for each sample, and slow to determine
_kinds_by_class: dict[type, tuple[bool, bool]] = {}


def judge_sample(miner: object, image: Image) -> Verdict:
    """Return a miner's verdict on a sample before inference. Any error in the miner makes the sample hard."""
    try:
        can_foresee, has_number = _kinds(miner)
        if has_number:
            hardness, cut = finite(miner.foreseen(image)), finite(miner.cut)  # type: ignore[attr-defined]  # _kinds saw
            return Verdict(hardness >= cut, None, hardness, cut)
        if can_foresee:
            return Verdict(bool(miner.foresee(image)))  # type: ignore[attr-defined]  # likewise
        raise MiningError(f"{type(miner).__name__} cannot judge a sample before inference")
    except Exception as error:  # noqa: BLE001 (an algorithm may be user code; inference continues without it)
        return failure_verdict(error)


def modes_of(miner: object) -> tuple[Mode, ...]:
    """Return the modes that an algorithm supports: the ``modes`` of its class, else by its methods."""
    modes: tuple[Mode, ...] = getattr(type(miner), "modes", (AFTER,))
    return (AFTER, BEFORE) if modes == (AFTER,) and _kinds(miner)[0] else modes


def check_mode(miner: object, mode: str) -> None:
    """Raise InvalidFieldError for a mode that an algorithm does not support."""
    check_supported(type(miner).__name__, modes_of(miner), mode)


def _kinds(miner: Any) -> tuple[bool, bool]:
    """Return whether a miner judges before inference, and whether it does so by a number."""
    miner_class = type(miner)
    kinds = _kinds_by_class.get(miner_class)
    if kinds is None:
        kinds = isinstance(miner, PreInferenceMiner), isinstance(miner, PreInferenceByNumber)
        _kinds_by_class[miner_class] = kinds
    return kinds
