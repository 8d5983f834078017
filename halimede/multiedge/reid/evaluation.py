"""Measures of re-identification against the truth. Pure; numbers between 0 and 1.

``rank``: the share of pictures whose most similar picture *of another camera* shows the same object, among pictures
whose object another camera saw at all (the protocol of Zheng et al., "Scalable Person Re-identification: A Benchmark",
ICCV 2015). ``idf1``: the share of all sightings with the right identity, if each true identity is paired with at most
one predicted identity, over all cameras and the whole time (Ristani et al., "Performance Measures and a Data Set for
Multi-Target, Multi-Camera Tracking", ECCV workshops 2016).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from halimede.inference import Array
from halimede.inference.boxes import overlaps
from halimede.multiedge.reid.assignment import assign

#: pictures that are compared at a time
BLOCK = 1024
Corners = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Seen:
    """One object in one frame (a camera and a time, in any form): its box and its identity."""

    frame: Hashable
    identity: str
    box: Corners


@dataclass(frozen=True, slots=True)
class IdScore:
    """IDF1 and its parts: the numbers of true, of predicted, and of agreeing sightings."""

    truth: int
    predicted: int
    agree: int

    @property
    def idf1(self) -> float:
        """Return 2 IDTP / (2 IDTP + IDFP + IDFN); 1 if there are neither true nor predicted sightings."""
        both = self.truth + self.predicted
        return 2 * self.agree / both if both else 1.0

    @property
    def precision(self) -> float:
        """Return the share of predicted sightings that agree (IDP)."""
        return self.agree / self.predicted if self.predicted else 1.0

    @property
    def recall(self) -> float:
        """Return the share of true sightings that agree (IDR)."""
        return self.agree / self.truth if self.truth else 1.0


def idf1(truth: Iterable[Seen], predicted: Iterable[Seen], *, iou: float = 0.5) -> IdScore:
    """Compare predicted sightings with true ones; boxes show the same object if they overlap by ``iou``.

    A box without an identity must be in ``predicted`` too, under a unique name: it counts as wrong.
    """
    true_list, predicted_list = list(truth), list(predicted)
    true_index = {name: i for i, name in enumerate(dict.fromkeys(s.identity for s in true_list))}
    predicted_index = {name: i for i, name in enumerate(dict.fromkeys(s.identity for s in predicted_list))}
    together = np.zeros((len(true_index), len(predicted_index)))
    by_frame: dict[Hashable, list[Seen]] = defaultdict(list)
    for s in predicted_list:
        by_frame[s.frame].append(s)
    for s in true_list:
        near = by_frame.get(s.frame, [])
        if near:
            likely = overlaps(np.asarray(s.box, np.float64), np.array([other.box for other in near], np.float64))
            for identity in {near[i].identity for i in np.flatnonzero(likely >= iou).tolist()}:
                together[true_index[s.identity], predicted_index[identity]] += 1
    agree = sum(together[pair] for pair in assign(together))
    return IdScore(len(true_list), len(predicted_list), int(agree))


def rank(features: Array, identities: Sequence[Hashable], cameras: Sequence[Hashable], k: int = 1) -> float:
    """Return the rank-k rate of ``[count, length]`` features; NaN if no two cameras saw the same object."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    who, where = _numbers(identities), _numbers(cameras)
    queries = right = 0
    for start in range(0, len(unit), BLOCK):
        mine = slice(start, start + BLOCK)
        near = unit[mine] @ unit.T
        other = where[mine, None] != where[None]
        same = who[mine, None] == who[None]
        near[~other] = -np.inf
        best = np.argsort(-near, axis=1, kind="stable")[:, :k]
        has_match = (same & other).any(axis=1)
        hit = (np.take_along_axis(same, best, axis=1) & np.take_along_axis(other, best, axis=1)).any(axis=1)
        queries += int(has_match.sum())
        right += int((hit & has_match).sum())
    return right / queries if queries else float("nan")


def threshold(features: Array, identities: Sequence[Hashable]) -> float:
    """Return the cosine similarity that best separates pictures of one object from pictures of two.

    Both kinds of mistake weigh the same (Youden's index). Use it for the application's parameter ``threshold``, with
    pictures that the model was not trained with. NaN if there is only one kind of pair.
    """
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    who = _numbers(identities)
    above = np.triu_indices(len(unit), 1)
    near, same = (unit @ unit.T)[above], (who[:, None] == who[None])[above]
    if same.all() or not same.any():
        return float("nan")
    order = np.argsort(near)
    missed = np.cumsum(same[order]) / same.sum()
    separated = np.cumsum(~same[order]) / (~same).sum()
    best = int(np.argmax(separated - missed))
    return float((near[order[best]] + near[order[min(best + 1, len(order) - 1)]]) / 2)


def _numbers(names: Sequence[Hashable]) -> Array:
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names])
