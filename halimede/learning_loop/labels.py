"""Settles the label of a stored sample: the big model's answer if it is sure, and the labels of persons.

The big model is sure if its confidence, calibrated by temperature scaling, reaches a limit. A person's label counts
more than the big model's. If the two differ, or two persons differ, the sample is contested: it is left out until two
persons have given it one label. If too many samples are contested, a source of labels is wrong, and the loop stops with
a condition. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct

from halimede.calibration.temperature import calibrate
from halimede.messages import Prediction
from halimede.stats.agreement import wilson

#: who gave a label: the big model, or persons
LabelSource = Literal["cloud", "person"]
#: least persons that must agree on the label of a contested sample
CONFIRMED = 2
#: least samples with two labels for which the share of contested ones is judged
LEAST_DOUBLY = 10


class LabelSettings(Struct, kw_only=True, frozen=True):
    """When labels count.

    Attributes:
        confidence: least calibrated confidence of the big model's answer; 1 or more: its answers do not count.
        temperature: of the big model, from the calibration of the service; 1: as is.
        most_contested: largest share of contested samples, of those with labels from two sources.

    """

    confidence: Annotated[float, Meta(ge=0)] = 0.9
    temperature: Annotated[float, Meta(gt=0)] = 1.0
    most_contested: Annotated[float, Meta(ge=0, le=1)] = 0.1


class SettledLabel(Struct, kw_only=True, frozen=True):
    """The label of a sample and its source."""

    #: None: there is none yet, or it is contested
    label: str | None = None
    by: LabelSource = "cloud"
    #: two sources (the big model and persons) gave a label
    doubly: bool = False
    #: the sources differ, and no label is confirmed
    contested: bool = False


def sure_label(cloud: Prediction | None, settings: LabelSettings) -> str | None:
    """Return the big model's label if its calibrated confidence is enough, else None.

    An answer without class probabilities, or with numbers that are not finite, is never sure.
    """
    if cloud is None or cloud.label is None or not cloud.probabilities or len(cloud.probabilities) < 2:
        return None
    row = np.array([cloud.probabilities], np.float64)
    if not np.isfinite(row).all():
        return None
    confidence = float(calibrate(row.clip(0, 1), settings.temperature).max())
    return cloud.label if confidence >= settings.confidence else None


def settle(cloud: str | None, persons: Sequence[str]) -> SettledLabel:
    """Return the label of a sample. ``cloud``: the big model's sure label, or None; ``persons``: one label of each."""
    if not persons:
        return SettledLabel(label=cloud)
    votes = Counter(persons)
    (best, count), *losers = votes.most_common()
    doubly = cloud is not None or len(persons) > 1
    second = losers[0][1] if losers else 0
    agreed = not losers and cloud in {None, best}
    if agreed or (count >= CONFIRMED and count > second):
        return SettledLabel(label=best, by="person", doubly=doubly)
    return SettledLabel(by="person", doubly=True, contested=True)


def why_contested(labels: Iterable[SettledLabel], settings: LabelSettings) -> str:
    """Return why the labels cannot be trusted; empty: they can, or too few samples have labels from two sources.

    The labels are not trusted if the lower end of the interval of the contested share is over the limit.
    """
    doubly = contested = 0
    for label in labels:
        doubly += label.doubly
        contested += label.contested
    if doubly < LEAST_DOUBLY or wilson(contested, doubly)[0] <= settings.most_contested:
        return ""
    return (
        f"{contested} of {doubly} samples with labels from two sources have different ones: check the labels of persons"
        " (`halimede hard list`), and the big model"
    )
