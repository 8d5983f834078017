"""How several distributions become one. Pure: rows of probabilities and weights in, the best class and all out.

| rule | |
|---|---|
| ``vote`` | each source has a vote of its weight for its best class; equal votes: the surer voters win |
| ``product`` | the weighted product of probabilities, made 1 again (a logarithmic opinion pool) |
| ``max`` | the source that is surest, its probability times its weight, speaks for all |

The product of sources that err independently of one another is the best that can be said, where the probabilities are
true ones (Kittler, Hatef, Duin and Matas, "On combining classifiers", PAMI 1998) and classes are about equally
frequent: hence the temperatures (Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML
2017), each source's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from halimede.calibration.temperature import softmax
from halimede.multiedge.fusion.class_distribution import Vector

Rule = Callable[[Vector, Vector], tuple[int, Vector]]


def vote(rows: Vector, weights: Vector) -> tuple[int, Vector]:
    """Each source has one vote of its weight. A class's probability is its share of the votes."""
    count = rows.shape[1]
    choices = rows.argmax(axis=1)
    votes = np.bincount(choices, weights, count)
    sureness = np.bincount(choices, weights * rows.max(axis=1), count)
    best = int(np.lexsort((sureness, votes))[-1])
    return best, votes / votes.sum()


def product(rows: Vector, weights: Vector) -> tuple[int, Vector]:
    """Multiply, each distribution to the power of its weight."""
    fused = softmax(weights @ np.log(rows))
    return int(fused.argmax()), fused


def surest(rows: Vector, weights: Vector) -> tuple[int, Vector]:
    """Take the word of the source that is surest."""
    speaker = int((weights * rows.max(axis=1)).argmax())
    return int(rows[speaker].argmax()), rows[speaker]


RULES: Mapping[str, Rule] = {"vote": vote, "product": product, "max": surest}
