"""Measures of re-identification against the truth, as shares from 0 to 1, and the best threshold of similarity.

``rank`` measures features: the share of pictures whose most similar picture of another camera shows the same object.
Only pictures whose object another camera saw count (the protocol of Zheng et al., "Scalable Person Re-identification:
A Benchmark", ICCV 2015). ``idf1`` measures identities: the share of all sightings with the right identity. For that,
each true identity is paired with at most one predicted identity over all cameras and the whole time (Ristani et al.,
"Performance Measures and a Data Set for Multi-Target, Multi-Camera Tracking", ECCV workshops 2016).
``threshold`` returns a cosine similarity, from -1 to 1: the one that best separates pairs of one object from pairs of
two objects.
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
#: x1, y1, x2, y2 in pixels
Corners = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Seen:
    """One object in one frame: its identity and its box. ``frame``: camera and time, in any form."""

    frame: Hashable
    identity: str
    box: Corners


@dataclass(frozen=True, slots=True)
class IdScore:
    """The numbers of true sightings (``truth``), of predicted ones, and of those that agree (IDTP)."""

    truth: int
    predicted: int
    agree: int

    @property
    def idf1(self) -> float:
        """The share of sightings that agree, IDF1 = 2 IDTP / (2 IDTP + IDFP + IDFN); 1 without any sightings."""
        both = self.truth + self.predicted
        return 2 * self.agree / both if both else 1.0

    @property
    def precision(self) -> float:
        """The share of predicted sightings that agree (IDP); 1 without any."""
        return self.agree / self.predicted if self.predicted else 1.0

    @property
    def recall(self) -> float:
        """The share of true sightings that agree (IDR); 1 without any."""
        return self.agree / self.truth if self.truth else 1.0


def idf1(truth: Iterable[Seen], predicted: Iterable[Seen], *, iou: float = 0.5) -> IdScore:
    """Return how many predicted sightings agree with true ones, if identities are paired as well as possible.

    Boxes show the same object if they overlap by at least ``iou`` (intersection over union).

    Give a box without an identity a unique name in ``predicted``: it counts as wrong.
    """
    true_list, predicted_list = list(truth), list(predicted)
    true_index = _indexes(sighting.identity for sighting in true_list)
    predicted_index = _indexes(sighting.identity for sighting in predicted_list)
    shared = np.zeros((len(true_index), len(predicted_index)))
    by_frame: dict[Hashable, list[Seen]] = defaultdict(list)
    for sighting in predicted_list:
        by_frame[sighting.frame].append(sighting)
    for sighting in true_list:
        candidates = by_frame.get(sighting.frame, [])
        if candidates:
            boxes = np.array([other.box for other in candidates], np.float64)
            overlap = overlaps(np.asarray(sighting.box, np.float64), boxes)
            for identity in {candidates[i].identity for i in np.flatnonzero(overlap >= iou).tolist()}:
                shared[true_index[sighting.identity], predicted_index[identity]] += 1
    agree = sum(shared[pair] for pair in assign(shared))
    return IdScore(len(true_list), len(predicted_list), int(agree))


def rank(features: Array, identities: Sequence[Hashable], cameras: Sequence[Hashable], k: int = 1) -> float:
    """Return the rank-k rate (0..1) of features; NaN if no two cameras saw the same object.

    ``features``: ``(pictures, length)``; ``identities``, ``cameras``: what each picture shows, and its camera. A
    picture is a hit if one of its ``k`` most similar pictures of other cameras shows its object.
    """
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    identity_numbers, camera_numbers = _numbers(identities), _numbers(cameras)
    queries = right = 0
    for start in range(0, len(unit), BLOCK):
        block = slice(start, start + BLOCK)
        similarities = unit[block] @ unit.T
        other = camera_numbers[block, None] != camera_numbers[None]
        same = identity_numbers[block, None] == identity_numbers[None]
        similarities[~other] = -np.inf
        best = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
        has_match = (same & other).any(axis=1)
        has_hit = (np.take_along_axis(same, best, axis=1) & np.take_along_axis(other, best, axis=1)).any(axis=1)
        queries += int(has_match.sum())
        right += int((has_hit & has_match).sum())
    return right / queries if queries else float("nan")


def threshold(features: Array, identities: Sequence[Hashable]) -> float:
    """Return the cosine similarity that best separates pairs of pictures of one object from pairs of two objects.

    Both kinds of mistake weigh the same (Youden's index). Use the result as the application's parameter ``threshold``;
    measure it with pictures that the model was not trained with. NaN if there is only one kind of pair. ``features``:
    ``(pictures, length)``; ``identities``: what each picture shows.
    """
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    identity_numbers = _numbers(identities)
    pairs = np.triu_indices(len(unit), 1)
    similarities, same = (unit @ unit.T)[pairs], (identity_numbers[:, None] == identity_numbers[None])[pairs]
    if same.all() or not same.any():
        return float("nan")
    order = np.argsort(similarities)
    missed = np.cumsum(same[order]) / same.sum()
    separated = np.cumsum(~same[order]) / (~same).sum()
    best = int(np.argmax(separated - missed))
    return float((similarities[order[best]] + similarities[order[min(best + 1, len(order) - 1)]]) / 2)


def _numbers(names: Sequence[Hashable]) -> Array:
    """Return the index of each name, ``(names,)``: equal names have equal ones."""
    indexes = _indexes(names)
    return np.array([indexes[name] for name in names])


def _indexes(names: Iterable[Hashable]) -> dict[Hashable, int]:
    """Return an index for each different name, in the order of their first occurrence."""
    return {name: i for i, name in enumerate(dict.fromkeys(names))}
