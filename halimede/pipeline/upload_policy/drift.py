"""Detects whether samples still resemble those that the service was calibrated for.

It observes three quantities over the last ``WINDOW`` samples: their hardness, the classes that the small model reports,
and how often audits agree with it. Hardness and classes are compared with the calibration's shares by the population
stability index, sum((now - then) * ln(now / then)) over the bins: below 0.1 little has changed, above 0.25 much has
(Siddiqi, "Credit Risk Scorecards", 2006). For unchanged samples its mean is (bins - 1) * (1 / now + 1 / then), with the
numbers of samples now and then (Yurdakul and Naranjo, Journal of Risk Model Validation 2020): this mean is added to
both thresholds. Agreement has fallen if even the upper end of its interval (3 standard deviations) is below the
calibrated value. Drift begins at the outer threshold and ends at the inner one, so that the state does not flap.

Pure. A sample costs two look-ups and, once in ``EVERY`` samples, the sums.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from halimede.mining.calibration_file import CalibrationFile
from halimede.stats.agreement import wilson

#: samples that are compared; samples between two checks; audits that are compared, and the least number of them
WINDOW, EVERY = 1000, 50
AUDITS, LEAST_AUDITS = 300, 30
#: bins of hardness
BINS = 10
#: stability index above which samples have changed, and below which they are as before
BEGINS, ENDS = 0.25, 0.1
#: standard deviations by which agreement must be too low for drift to begin, and at which drift ends
SURE, HEALED = 3.0, 1.0
#: consecutive checks that must agree
PATIENCE = 2
#: metric of a calibration: agreement among kept samples, the lower end of its interval
AGREEMENT = "agreement.low"


class Shares:
    """Shares of the recent samples in each bin, compared with those of a reference of ``of`` samples."""

    def __init__(self, expected: Sequence[float], of: int) -> None:
        self._expected = expected
        self._of = of
        self._counts = [0] * len(expected)
        self._recent: deque[int] = deque()

    def see(self, index: int) -> None:
        """Record one sample's bin."""
        self._recent.append(index)
        self._counts[index] += 1
        if len(self._recent) > WINDOW:
            self._counts[self._recent.popleft()] -= 1

    def index(self) -> float:
        """Return the stability index less its expected value by chance; 0 before half the window is full."""
        n, bins = len(self._recent), len(self._expected)
        if n < WINDOW / 2:
            return 0.0
        # half a sample added to each bin, now and then, so that an empty bin gives no infinity
        now = [(count + 0.5) / (n + bins / 2) for count in self._counts]
        then = [(share * self._of + 0.5) / (self._of + bins / 2) for share in self._expected]
        found = math.fsum((a - e) * math.log(a / e) for a, e in zip(now, then, strict=True))
        return found - (bins - 1) * (1 / n + 1 / self._of)


class Drift:
    """Compares samples with the calibration of their service: ``see`` for each, ``audited`` for audits."""

    def __init__(self, artefact: CalibrationFile) -> None:
        #: whether samples have changed
        self.drifting = False
        reference = artefact.reference
        quantiles = reference.hardness if reference else []
        self._edges = _edges(quantiles)
        samples = reference.samples if reference else 1
        self._hardness = Shares(_between(quantiles, self._edges), samples) if self._edges else None
        classes: Mapping[str, float] = reference.classes if reference else {}
        #: the last index is for classes that are not in the calibration
        self._classes = {name: i for i, name in enumerate(classes)}
        self._labels = Shares([*classes.values(), 0.0], samples) if classes else None
        self._promised = artefact.figures.get(AGREEMENT)
        self._agreed: deque[bool] = deque(maxlen=AUDITS)
        self._seen = 0
        self._looks = 0

    def see(self, hardness: float | None, label: str | None) -> None:
        """Record a sample that the small model has answered."""
        if self._hardness and hardness is not None:
            self._hardness.see(bisect_left(self._edges, hardness))
        if self._labels and label is not None:
            self._labels.see(self._classes.get(label, len(self._classes)))
        self._seen += 1
        if self._seen % EVERY == 0:
            self._update()

    def audited(self, agreed: bool) -> None:  # noqa: FBT001 (a fact, not a switch)
        """Record the outcome of an audit."""
        self._agreed.append(agreed)

    def metrics(self) -> dict[str, float]:
        """Return the drift metrics: stability indices and lost agreement."""
        found = {}
        if self._hardness:
            found["hardness"] = max(0.0, self._hardness.index())
        if self._labels:
            found["classes"] = max(0.0, self._labels.index())
        if self._promised is not None:
            found["agreement"] = max(0.0, self._lost(0.0))
        return found

    def _update(self) -> None:
        """Change the verdict after enough contrary checks in a row."""
        mark, sure = (ENDS, HEALED) if self.drifting else (BEGINS, SURE)
        changed = any(s.index() > mark for s in self._watched()) or self._lost(sure) > 0
        self._looks = self._looks + 1 if changed != self.drifting else 0
        if self._looks >= PATIENCE:
            self.drifting, self._looks = changed, 0

    def _watched(self) -> Iterable[Shares]:
        return (shares for shares in (self._hardness, self._labels) if shares)

    def _lost(self, z: float) -> float:
        """Return how far agreement is below the calibrated one, less a tolerance in standard deviations."""
        if self._promised is None or len(self._agreed) < LEAST_AUDITS:
            return 0.0
        return self._promised - wilson(sum(self._agreed), len(self._agreed), z)[1]


def _edges(quantiles: Sequence[float]) -> list[float]:
    """Return the upper ends of all bins but the last, each once: equal quantiles are one frequent value."""
    steps = len(quantiles) - 1
    inner = [quantiles[round(i * steps / BINS)] for i in range(1, BINS)] if steps > 0 else []
    return sorted({edge for edge in inner if edge < quantiles[-1]})


def _between(quantiles: Sequence[float], edges: Sequence[float]) -> list[float]:
    """Return the share of the reference in each bin: above the edge before it, up to its own."""
    counts = Counter(bisect_left(edges, value) for value in quantiles[1:])
    return [counts[i] / max(1, len(quantiles) - 1) for i in range(len(edges) + 1)]
