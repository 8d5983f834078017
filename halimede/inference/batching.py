"""Groups samples into batches, isolates bad samples within a batch, and decides whether batches pay.

Pure: no clock, no queue. ``halimede.pipeline`` runs the batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from halimede.errors import describe_exception
from halimede.inference.model import Array, SampleError

T = TypeVar("T")
R = TypeVar("R")

#: last calls of either kind (in one call, one by one) of which the fastest is compared
MEASURED_CALLS = 8
#: calls after which the slower kind is measured again; multiplied by how many times slower it was
CALLS_TO_RETRY = 32

#: the dtype of a prepared sample as NumPy's text, such as ``<f4``, and its shape
Signature: TypeAlias = tuple[str, tuple[int, ...]]


def signature(sample: Array) -> Signature:
    """Return what all samples of one batch must have in common: dtype (with byte order) and shape."""
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

    ``run`` answers all given items in one call, or raises. A failing batch is halved until bad items are alone, so one
    bad item among n costs about 2 log2(n) more runs. Any other exception of ``run`` than SampleError, ``SystemExit``
    included, is the cause of the item's SampleError.
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
        #: milliseconds a sample of the last calls, by whether the samples ran in one call
        self._ms: dict[bool, deque[float]] = {True: deque(maxlen=MEASURED_CALLS), False: deque(maxlen=MEASURED_CALLS)}
        self._calls_to_retry = CALLS_TO_RETRY

    def must_batch(self) -> bool:
        """Whether the next samples must run in one call, False: one by one. Call this once before each run.

        That is the faster kind, or the kind to measure: one without times, or the slower one when its retry is due.
        """
        for batched, times in self._ms.items():
            if not times:
                return batched
        together, alone = min(self._ms[True]), min(self._ms[False])
        is_batch_cheaper = together <= alone
        self._calls_to_retry -= 1
        if self._calls_to_retry > 0:
            return is_batch_cheaper
        self._calls_to_retry = int(CALLS_TO_RETRY * max(together, alone) / max(min(together, alone), 1e-6))
        return not is_batch_cheaper

    def learn(self, samples: int, ms: float, *, together: bool) -> None:
        """Record that ``samples`` samples took ``ms`` milliseconds in all, in one call (``together``) or one by one."""
        self._ms[together].append(ms / samples)
