"""Limits updates before they are aggregated: a poisoned update may be scaled to outweigh all others.

So ``clip`` reduces the norm of each update to twice the median norm of the round's updates at most (after Sun et al.
2019, Can You Really Backdoor Federated Learning?, arXiv 1911.07963).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from halimede.training.weights import Weights, norm

#: an update may have so many times the median norm
NORM_TIMES_MEDIAN = 2.0


@dataclass(frozen=True, slots=True)
class Update:
    """One trainer's update: ``delta`` is its weights minus those of the round; in a mean, ``samples`` is its weight."""

    trainer: str
    samples: int
    delta: Weights


def clip(updates: Sequence[Update]) -> tuple[list[Update], list[str]]:
    """Return the updates with limited norms, sorted by trainer, and the names of the trainers whose update was reduced.

    ``updates``: at least one. If the median norm is 0, none is reduced.
    """
    ordered = sorted(updates, key=lambda update: update.trainer)
    norms = [norm(update.delta) for update in ordered]
    limit = NORM_TIMES_MEDIAN * median_low(norms)
    bounded, clipped = [], []
    for update, size in zip(ordered, norms, strict=True):
        if size > limit > 0:
            scale = limit / size
            delta = {
                name: (tensor * scale).astype(tensor.dtype) if tensor.dtype.kind == "f" else tensor
                for name, tensor in update.delta.items()
            }
            bounded.append(replace(update, delta=delta))
            clipped.append(update.trainer)
        else:
            bounded.append(update)
    return bounded, clipped
