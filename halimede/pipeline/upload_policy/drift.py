"""Detects drift: samples are no longer like the samples of the service's calibration.

``Drift`` observes three quantities of the last samples: their hardness, the classes that the small model reports, and
how often audits agree with it. Hardness and classes are compared with the calibration's by the population stability
index, sum((now - then) * ln(now / then)) of the fractions of samples in each bin. An index below 0.1 means that little
has changed, above 0.25 much (Siddiqi, "Credit Risk Scorecards", 2006). From the index its mean by chance is
subtracted: (bins - 1) * (1 / n + 1 / m) for unchanged samples, n now and m then (Yurdakul and Naranjo, Journal of Risk
Model Validation 2020). Agreement has fallen if even the upper end of its interval (3 standard deviations) is below the
calibrated value. Drift begins at one limit and ends at a lower one, so that the state does not change to and fro.

Pure. A sample costs two look-ups and, once in CHECK_INTERVAL samples, the sums.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping, Sequence

from halimede.mining.calibration_file import CalibrationFile
from halimede.stats.agreement import wilson

#: samples that are compared, and samples between two checks
WINDOW, CHECK_INTERVAL = 1000, 50
#: audits that are compared, and least number of them
AUDITS, LEAST_AUDITS = 300, 30
#: most bins of hardness
BINS = 10
#: stability index above which samples have changed, and below which they are as before
BEGIN_INDEX, END_INDEX = 0.25, 0.1
#: standard deviations by which agreement must be too low for drift to begin, and at which drift ends
BEGIN_DEVIATIONS, END_DEVIATIONS = 3.0, 1.0
#: checks in a row that must contradict the present verdict
CONTRARY_CHECKS = 2
#: metric of a calibration: the lower end of the interval of agreement among samples that are not uploaded
AGREEMENT = "agreement.low"


class Shares:
    """The fractions of the recent samples in each bin, compared with those of a reference.

    ``expected``: the reference's fraction in each bin. ``samples``: how many samples the reference has.
    """

    def __init__(self, expected: Sequence[float], samples: int) -> None:
        self._expected = expected
        self._samples = samples
        self._counts = [0] * len(expected)
        self._recent: deque[int] = deque()

    def see(self, index: int) -> None:
        """Record the bin of one sample."""
        self._recent.append(index)
        self._counts[index] += 1
        if len(self._recent) > WINDOW:
            self._counts[self._recent.popleft()] -= 1

    def index(self) -> float:
        """Return the stability index less its mean by chance; 0 before half of WINDOW samples were seen."""
        n, bins = len(self._recent), len(self._expected)
        if n < WINDOW / 2:
            return 0.0
        # half a sample added to each bin, now and then, so that an empty bin gives no infinity
        now = [(count + 0.5) / (n + bins / 2) for count in self._counts]
        then = [(share * self._samples + 0.5) / (self._samples + bins / 2) for share in self._expected]
        index = math.fsum((a - e) * math.log(a / e) for a, e in zip(now, then, strict=True))
        return index - (bins - 1) * (1 / n + 1 / self._samples)


class Drift:
    """Compares samples with a calibration, ``artefact``: call ``see`` for each sample, ``audited`` for each audit.

    Attributes:
        drifting: samples differ from those of the calibration.

    """

    def __init__(self, artefact: CalibrationFile) -> None:
        self.drifting = False
        reference = artefact.reference
        quantiles = reference.hardness if reference else []
        self._edges = _edges(quantiles)
        self._hardness = (
            Shares(_between(quantiles, self._edges), reference.samples) if reference and self._edges else None
        )
        classes: Mapping[str, float] = reference.classes if reference else {}
        #: the last index is for classes that are not in the calibration
        self._classes = {name: i for i, name in enumerate(classes)}
        self._labels = Shares([*classes.values(), 0.0], reference.samples) if reference and classes else None
        self._promised = artefact.metrics.get(AGREEMENT)
        self._agreed: deque[bool] = deque(maxlen=AUDITS)
        #: number of samples
        self._count = 0
        #: consecutive checks that contradict ``drifting``
        self._contrary = 0

    def see(self, hardness: float | None, label: str | None) -> None:
        """Record a sample: its hardness, and the class that the small model gives it; None: it has none."""
        if self._hardness and hardness is not None:
            self._hardness.see(bisect_left(self._edges, hardness))
        if self._labels and label is not None:
            self._labels.see(self._classes.get(label, len(self._classes)))
        self._count += 1
        if self._count % CHECK_INTERVAL == 0:
            self._update()

    def audited(self, agreed: bool) -> None:  # noqa: FBT001 (a fact, not a switch)
        """Record whether the small model agreed with the next tier in an audit."""
        self._agreed.append(agreed)

    def metrics(self) -> dict[str, float]:
        """Return the stability indices ``hardness`` and ``classes``, and the lost ``agreement`` (0..1).

        Left out is what the calibration does not have.
        """
        metrics = {}
        if self._hardness:
            metrics["hardness"] = max(0.0, self._hardness.index())
        if self._labels:
            metrics["classes"] = max(0.0, self._labels.index())
        if self._promised is not None:
            metrics["agreement"] = max(0.0, self._agreement_loss(0.0))
        return metrics

    def _update(self) -> None:
        """Check once, and change ``drifting`` after CONTRARY_CHECKS contrary checks in a row."""
        limit, deviations = (END_INDEX, END_DEVIATIONS) if self.drifting else (BEGIN_INDEX, BEGIN_DEVIATIONS)
        shares = [shares for shares in (self._hardness, self._labels) if shares]
        changed = any(share.index() > limit for share in shares) or self._agreement_loss(deviations) > 0
        self._contrary = self._contrary + 1 if changed != self.drifting else 0
        if self._contrary >= CONTRARY_CHECKS:
            self.drifting, self._contrary = changed, 0

    def _agreement_loss(self, z: float) -> float:
        """Return by how much (0..1) agreement is below the calibrated one, less ``z`` standard deviations.

        0 if the calibration has none, or after too few audits; negative: agreement is higher.
        """
        if self._promised is None or len(self._agreed) < LEAST_AUDITS:
            return 0.0
        return self._promised - wilson(sum(self._agreed), len(self._agreed), z)[1]


def _edges(quantiles: Sequence[float]) -> list[float]:
    """Return the upper ends of all bins of hardness but the last, in order, from a reference's quantiles.

    There are fewer than BINS bins if quantiles are equal, because these are one frequent value.
    """
    steps = len(quantiles) - 1
    inner = [quantiles[round(i * steps / BINS)] for i in range(1, BINS)] if quantiles else []
    return sorted({edge for edge in inner if edge < quantiles[-1]})


def _between(quantiles: Sequence[float], edges: Sequence[float]) -> list[float]:
    """Return the fraction of the reference in each bin: above the edge before it, up to its own."""
    counts = Counter(bisect_left(edges, value) for value in quantiles[1:])
    return [counts[i] / (len(quantiles) - 1) for i in range(len(edges) + 1)]
