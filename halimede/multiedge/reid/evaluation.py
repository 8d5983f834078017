"""Measures of re-identification against the truth. Pure; numbers between 0 and 1.

``rank``: the share of pictures whose most similar picture *of another camera* shows the same object, among those whose
object another camera saw at all (the protocol of Zheng et al., "Scalable Person Re-identification: A Benchmark",
ICCV 2015). ``idf1``: the share of all sightings with the right identity, if each true identity is paired with at most
one found identity, over all cameras and the whole time (Ristani et al., "Performance Measures and a Data Set for
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
    """IDF1 and its parts: the numbers of true and found sightings, and of those that agree."""

    truth: int
    found: int
    agree: int

    @property
    def idf1(self) -> float:
        """Return 2 IDTP / (2 IDTP + IDFP + IDFN); 1 where there was nothing and nothing was found."""
        both = self.truth + self.found
        return 2 * self.agree / both if both else 1.0

    @property
    def precision(self) -> float:
        """Return the share of found sightings that agree (IDP)."""
        return self.agree / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """Return the share of true sightings that agree (IDR)."""
        return self.agree / self.truth if self.truth else 1.0


def idf1(truth: Iterable[Seen], found: Iterable[Seen], *, iou: float = 0.5) -> IdScore:
    """Compare found sightings with true ones; boxes show the same object if they overlap by ``iou``.

    A found box without an identity must be in ``found`` too, under a unique name: it counts as wrong.
    """
    true_list, found_list = list(truth), list(found)
    theirs = {name: i for i, name in enumerate(dict.fromkeys(seen.identity for seen in true_list))}
    ours = {name: i for i, name in enumerate(dict.fromkeys(seen.identity for seen in found_list))}
    together = np.zeros((len(theirs), len(ours)))
    by_frame: dict[Hashable, list[Seen]] = defaultdict(list)
    for seen in found_list:
        by_frame[seen.frame].append(seen)
    for seen in true_list:
        there = by_frame.get(seen.frame, [])
        if there:
            likely = overlaps(np.asarray(seen.box, np.float64), np.array([other.box for other in there], np.float64))
            for other in {there[i].identity for i in np.flatnonzero(likely >= iou).tolist()}:
                together[theirs[seen.identity], ours[other]] += 1
    agree = sum(together[pair] for pair in assign(together))
    return IdScore(len(true_list), len(found_list), int(agree))


def rank(features: Array, identities: Sequence[Hashable], cameras: Sequence[Hashable], k: int = 1) -> float:
    """Return the rank-k rate of ``[count, length]`` features; NaN if no two cameras saw the same object."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    who, where = _numbers(identities), _numbers(cameras)
    asked = right = 0
    for start in range(0, len(unit), BLOCK):
        mine = slice(start, start + BLOCK)
        near = unit[mine] @ unit.T
        other = where[mine, None] != where[None]
        same = who[mine, None] == who[None]
        near[~other] = -np.inf
        best = np.argsort(-near, axis=1, kind="stable")[:, :k]
        may = (same & other).any(axis=1)
        hit = (np.take_along_axis(same, best, axis=1) & np.take_along_axis(other, best, axis=1)).any(axis=1)
        asked += int(may.sum())
        right += int((hit & may).sum())
    return right / asked if asked else float("nan")


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
    kept_apart = np.cumsum(~same[order]) / (~same).sum()
    best = int(np.argmax(kept_apart - missed))
    return float((near[order[best]] + near[order[min(best + 1, len(order) - 1)]]) / 2)


def _numbers(names: Sequence[Hashable]) -> Array:
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names])
