"""Checks of updates before they are aggregated: what is finite, and how large it may be. Pure.

A poisoned update may be scaled. So the norm of each update is clipped to a bound, by default twice the median norm of
the round's updates (after Sun et al. 2019, Can You Really Backdoor Federated Learning?, arXiv 1911.07963).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low

from halimede.training.weights import Weights, norm

#: an update may have so many times the median norm
TIMES_MEDIAN = 2.0


@dataclass(frozen=True, slots=True)
class Update:
    """One trainer's update: the difference of its weights to those of the round, and how many samples it trained on."""

    trainer: str
    samples: int
    delta: Weights
    metrics: dict[str, float] = field(default_factory=dict)


def clip(updates: Sequence[Update], bound: float | None = None) -> tuple[list[Update], list[str]]:
    """Return updates of at most the norm ``bound``, in the order of their trainers, and the names of those clipped."""
    ordered = sorted(updates, key=lambda update: update.trainer)
    norms = [norm(update.delta) for update in ordered]
    limit = TIMES_MEDIAN * median_low(norms) if bound is None and norms else bound or 0.0
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
