"""Which samples run together, and how a bad one is kept from taking its batch with it. Pure: no clock, no queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from halimede.inference.model import Array, SampleError

T = TypeVar("T")
R = TypeVar("R")

#: calls of either way that the fastest is looked up in
KEPT = 8
#: every so many calls the other way is tried again, the more seldom the worse it was
AGAIN = 32

Signature: TypeAlias = tuple[str, tuple[int, ...]]


def signature(sample: Array) -> Signature:
    """What samples of one batch have in common: dtype (with byte order) and shape."""
    return sample.dtype.str, sample.shape


def group(waiting: Iterable[T], limit: int, array: Callable[[T], Array]) -> list[list[T]]:
    """Part what waits into batches of equal dtype and shape, at most ``limit`` (1 or more) samples each.

    ``array`` gives the prepared sample of an item. Order is kept within a batch, and batches come in the order of
    their first item, so nobody waits for a sample of another shape that came later.
    """
    batches: list[list[T]] = []
    filling: dict[Signature, list[T]] = {}
    for item in waiting:
        key = signature(array(item))
        batch = filling.get(key)
        if batch is None or len(batch) >= limit:
            batch = filling[key] = []
            batches.append(batch)
        batch.append(item)
    return batches


def isolate(batch: Sequence[T], run: Callable[[Sequence[T]], Sequence[R]]) -> list[R | SampleError]:
    """Run a batch and give one answer an item, in order; an item that fails even alone gets a SampleError.

    A failing batch is halved until the culprits stand alone, so a single one among n costs about 2 log2(n) more
    runs. Whatever ``run`` raises, ``sys.exit`` included, is the item's SampleError (as its cause, unless it is one).
    """
    if not batch:
        return []
    try:
        answers = run(batch)
        if len(answers) != len(batch):
            raise SampleError(f"the model gave {len(answers)} answers to {len(batch)} samples")
        return list(answers)
    except SampleError as error:
        failure = error
    except (Exception, SystemExit) as error:  # noqa: BLE001 (user code raises anything; the others must be answered)
        failure = SampleError(f"the model failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
    if len(batch) == 1:
        return [failure]
    middle = len(batch) // 2
    return isolate(batch[:middle], run) + isolate(batch[middle:], run)


class BatchGain:
    """Whether samples of one shape cost less in one call of the model or one after the other: by what either took.

    A small network gains much by one call. One that is all memory traffic loses: what would stay in the cache for one
    sample does not for sixteen.
    """

    def __init__(self) -> None:
        self._ms: dict[bool, deque[float]] = {True: deque(maxlen=KEPT), False: deque(maxlen=KEPT)}
        self._left = AGAIN

    def choose(self) -> bool:
        """Return whether the next ones are to run in one call."""
        for way, known in self._ms.items():
            if not known:
                return way
        together, alone = min(self._ms[True]), min(self._ms[False])
        better = together <= alone
        self._left -= 1
        if self._left > 0:
            return better
        self._left = int(AGAIN * max(together, alone) / max(min(together, alone), 1e-6))
        return not better

    def learn(self, samples: int, ms: float, *, together: bool) -> None:
        """Take in what so many samples took, in milliseconds."""
        self._ms[together].append(ms / samples)
