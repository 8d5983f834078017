"""Groups samples into batches, and isolates bad samples within a batch. Pure: no clock, no queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from halimede.errors import describe_exception
from halimede.inference.model import Array, SampleError

T = TypeVar("T")
R = TypeVar("R")

#: calls of either kind whose fastest counts
TIMES = 8
#: calls after which the other kind is tried again; a worse kind is tried less often
AGAIN = 32

Signature: TypeAlias = tuple[str, tuple[int, ...]]


def signature(sample: Array) -> Signature:
    """Return what all samples of a batch have in common: dtype (with byte order) and shape."""
    return sample.dtype.str, sample.shape


def group(waiting: Iterable[T], limit: int, array: Callable[[T], Array]) -> list[list[T]]:
    """Divide waiting items into batches of equal dtype and shape, at most ``limit`` (1 or more) samples each.

    ``array`` returns the prepared sample of an item. Order is kept within a batch, and batches are in the order of
    their first item, so no item waits for a later one of another shape.
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
    """Run a batch and return one answer for each item, in order; an item that fails even alone gets a SampleError.

    A failing batch is halved until bad items stand alone, so a single one among n costs about 2 log2(n) more runs. Any
    exception of ``run``, ``sys.exit`` included, becomes the item's SampleError (as its cause, unless it is one).
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
    except (Exception, SystemExit) as error:  # noqa: BLE001 (user code raises anything; other items need an answer)
        failure = SampleError(f"the model failed: {describe_exception(error)}")
        failure.__cause__ = error
    if len(batch) == 1:
        return [failure]
    middle = len(batch) // 2
    return isolate(batch[:middle], run) + isolate(batch[middle:], run)


class BatchGain:
    """Decides whether samples of one shape are cheaper in one call of the model or one by one, from measured times.

    A small network gains much from one call. One that is limited by memory bandwidth loses: the data of one sample fits
    into the cache, those of sixteen do not.
    """

    def __init__(self) -> None:
        self._ms: dict[bool, deque[float]] = {True: deque(maxlen=TIMES), False: deque(maxlen=TIMES)}
        self._calls_to_retry = AGAIN

    def choose(self) -> bool:
        """Return whether the next samples should run in one call."""
        for batched, times in self._ms.items():
            if not times:
                return batched
        together, alone = min(self._ms[True]), min(self._ms[False])
        better = together <= alone
        self._calls_to_retry -= 1
        if self._calls_to_retry > 0:
            return better
        self._calls_to_retry = int(AGAIN * max(together, alone) / max(min(together, alone), 1e-6))
        return not better

    def learn(self, samples: int, ms: float, *, together: bool) -> None:
        """Record the duration of a number of samples, in milliseconds."""
        self._ms[together].append(ms / samples)
