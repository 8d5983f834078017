"""Mining-then-inference: decides from the sample itself whether it is hard, before a model runs.

A hard sample then goes to the cloud at once, without the small model. Few algorithms support that: ``check_mode``
checks it when a service is configured, not at its first sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from halimede.api.mining import AFTER, BEFORE, Mode, check_supported
from halimede.mining.miner import MiningError, Verdict, failed, finite

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    #: [height, width] or [height, width, channels], as the camera sent it; one row for data other than pictures
    Image: TypeAlias = NDArray[np.generic]


@runtime_checkable
class PreInferenceMiner(Protocol):
    """A miner that can judge a sample before inference."""

    def foresee(self, image: Image, /) -> bool:
        """Whether the sample is hard. Raises MiningError if it cannot judge."""


@runtime_checkable
class PreInferenceByNumber(PreInferenceMiner, Protocol):
    """The same, by a number that it compares with its cut, so that a budget can move the cut."""

    @property
    def cut(self) -> float:
        """The hardness from which a sample is hard."""

    def foreseen(self, image: Image, /) -> float:
        """How hard the sample is: the higher, the sooner it is uploaded. Raises MiningError if it cannot judge."""


#: whether a class of miners judges before inference, and by a number: needed for each sample, and slow to determine
_foresighted: dict[type, tuple[bool, bool]] = {}


def judge_sample(miner: object, image: Image) -> Verdict:
    """Call a miner for a sample before inference. Any error in it makes the sample hard."""
    try:
        foresighted, by_number = _kinds(miner)
        if by_number:
            hardness, cut = finite(miner.foreseen(image)), finite(miner.cut)  # type: ignore[attr-defined]  # _kinds saw
            return Verdict(hardness >= cut, None, hardness, cut)
        if foresighted:
            return Verdict(bool(miner.foresee(image)))  # type: ignore[attr-defined]  # likewise
        raise MiningError(f"{type(miner).__name__} cannot judge a sample before inference")
    except Exception as error:  # noqa: BLE001 (an algorithm may be user code; inference continues without it)
        return failed(error)


def modes_of(miner: object) -> tuple[Mode, ...]:
    """Return the modes that an algorithm supports. One that only judges samples sets ``modes``."""
    given: tuple[Mode, ...] = getattr(type(miner), "modes", (AFTER,))
    return (AFTER, BEFORE) if given == (AFTER,) and _kinds(miner)[0] else given


def check_mode(miner: object, mode: str) -> None:
    """Refuse a mode that an algorithm does not support. Raises InvalidFieldError."""
    check_supported(type(miner).__name__, modes_of(miner), mode)


def _kinds(miner: Any) -> tuple[bool, bool]:
    kind = type(miner)
    known = _foresighted.get(kind)
    if known is None:
        known = _foresighted[kind] = (isinstance(miner, PreInferenceMiner), isinstance(miner, PreInferenceByNumber))
    return known
