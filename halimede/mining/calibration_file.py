"""The file that `halimede calibrate` writes for a service's two models: a calibration.

It has the fitted rule of mining, the mixture of answers, the regions to upload, and the samples at calibration time.
Workers read it, and so do `halimede evaluate` and later calibrations. It is JSON of numbers and texts, so that reading
it runs no code.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from halimede.errors import InvalidFieldError

#: most bytes of the file
MAX_BYTES = 1024 * 1024
#: most classes of boxes with features of their own, and most characters of their names
MAX_REWARD_CLASSES, MAX_CLASS_NAME = 64, 256
#: the measured share of uploads in ``CalibrationFile.metrics``
UPLOAD_RATIO = "upload_ratio"
#: what to do about an invalid file: the end of an error's text
FORMAT_FIX = "give a file that `halimede calibrate` wrote"

#: cells of the map of missed objects, across and down
GRID = 8

#: any finite number
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
#: numbers whose products and sums stay finite
Bounded = Annotated[float, Meta(ge=-1e12, le=1e12)]
#: a number over 0, and a share from 0 to 1
Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Head(Struct, kw_only=True):
    """A logistic regression: the probability is 1 / (1 + exp(-(bias + weights . features)))."""

    bias: Finite
    weights: list[Finite]


class LearnedRule(Struct, kw_only=True):
    """The rule Learned for classes: a sample is hard if P(gain) - P(loss) is at or over ``cut``.

    Attributes:
        classes: number of the small model's classes.
        embedding: number of the small model's penultimate features in its predictions; 0: none.
        gain: probability that the next tier corrects an answer, from ``learned.features_of`` the prediction.
        loss: probability that the next tier spoils a right answer, from the same features; None: 0.
        cut: the hardness from which a sample is hard, -1 to 1.

    """

    classes: Annotated[int, Meta(ge=2, le=100_000)]
    embedding: Annotated[int, Meta(ge=0, le=8192)] = 0
    gain: Head
    loss: Head | None = None
    cut: Finite


class RewardRule(Struct, kw_only=True):
    """The rule Learned for boxes or texts: the reward of an upload is bias + weights . features.

    Attributes:
        answers: the kind of predictions.
        classes: of boxes, the classes with features of their own.
        bias, weights: of the linear function; one weight for each of ``reward.reward_features``.
        lows, highs: range of each feature in the calibration's samples; a feature beyond it counts as its end.
        cut: the reward r from which a sample is hard, as r / (1 + |r|): -1 to 1.

    """

    answers: Literal["boxes", "texts"]
    classes: Annotated[list[Annotated[str, Meta(max_length=MAX_CLASS_NAME)]], Meta(max_length=MAX_REWARD_CLASSES)] = []
    bias: Bounded
    weights: Annotated[list[Bounded], Meta(max_length=1000)]
    lows: Annotated[list[Bounded], Meta(max_length=1000)]
    highs: Annotated[list[Bounded], Meta(max_length=1000)]
    cut: Finite


class MixtureRule(Struct, kw_only=True):
    """How to combine two calibrated distributions of the same classes into one.

    Attributes:
        kind: ``product`` adds weighted logarithms (a logarithmic opinion pool), ``sum`` weighted probabilities (a
            linear pool). The result is normalized to 1.
        edge, cloud: weights of the small and of the big model's distribution.

    """

    kind: Literal["product", "sum"] = "product"
    edge: Annotated[float, Meta(ge=0, le=1000)]
    cloud: Annotated[float, Meta(ge=0, le=1000)]


class Reference(Struct, kw_only=True):
    """The samples at calibration time: drift is measured against them.

    Attributes:
        hardness: quantiles of the hardness by the selected rule, at equal steps from 0 to 1; empty: not recorded.
        classes: the share of each class in the small model's answers; empty: it answers no or too many classes.
        samples: the number of samples.

    """

    hardness: list[Finite] = []
    classes: dict[str, Share] = {}
    samples: Annotated[int, Meta(ge=1)]


class RegionRule(Struct, kw_only=True, omit_defaults=True):
    """Which regions of a hard frame are uploaded if the service has ``upload: regions``, and how.

    The defaults are those of a service without a calibration.

    Attributes:
        sure: a box with a lower score is uncertain: the region around it is uploaded.
        padding: share of a box's width and height that is added on each side.
        cells: cells in which the small model misses objects: numbers of a grid of ``GRID`` x ``GRID``, row by row.
        scale: factor of the frame's sides before regions are cut out.
        canvas: least sides of the picture that the regions are packed into, as a share of the scaled frame's sides; 1:
            regions stay in place.

    """

    sure: Share = 0.8
    padding: Annotated[float, Meta(ge=0, le=4)] = 0.5
    cells: Annotated[list[Annotated[int, Meta(ge=0, lt=GRID * GRID)]], Meta(max_length=GRID * GRID)] = []
    scale: Annotated[float, Meta(ge=0.125, le=1)] = 1.0
    canvas: Annotated[float, Meta(ge=0.25, le=1)] = 1.0


class CalibrationFile(Struct, kw_only=True, omit_defaults=True):
    """The whole content of a calibration. None and empty values: not fitted, or not recorded.

    Attributes:
        v: version of the file's form.
        service: the service's name.
        labels: names of the classes of both models, in order.
        temperature_edge, temperature_cloud: temperatures that calibrate the probabilities of each model; 1: as is.
        rule, parameters: the selected hard example mining, as in a service's spec.
        learned, reward: the rule Learned, of classes or of boxes and texts.
        mixture: how the answers of both models to a hard sample are combined.
        regions: which regions of a hard frame are uploaded.
        reference: the samples, to measure drift against.
        metrics: what was measured on samples that nothing was fitted on, most with their 95 % interval,
            ``<name>.low`` and ``<name>.high``.
        edge_digest, cloud_digest: SHA-256 of the models' files or folders, hexadecimal.
        edge_pixels: digest of how the small model's input is made of a picture
            (``halimede.api.processing.pixels_digest``).

    """

    v: Literal[1] = 1
    service: str
    labels: list[str] = []
    temperature_edge: Positive = 1.0
    temperature_cloud: Positive = 1.0
    rule: str = ""
    parameters: dict[str, str] = {}
    learned: LearnedRule | None = None
    reward: RewardRule | None = None
    mixture: MixtureRule | None = None
    regions: RegionRule | None = None
    reference: Reference | None = None
    metrics: dict[str, Finite] = msgspec.field(default_factory=dict, name="figures")
    edge_digest: str = ""
    cloud_digest: str = ""
    edge_pixels: str = ""


def read_artefact(path: Path, field: str = "calibration") -> CalibrationFile:
    """Return the calibration in a file; cached while the file stays the same.

    Raises InvalidFieldError, which names ``field``, for a file that is unreadable, over 1 MiB or not a calibration.
    """
    try:
        about = path.stat()
        if about.st_size > MAX_BYTES:
            raise InvalidFieldError(field, str(path), f"it has {about.st_size} bytes, and may have {MAX_BYTES}")
        return _read(path, about.st_mtime_ns, about.st_size, about.st_ino)
    except OSError as error:
        raise InvalidFieldError(field, str(path), f"it cannot be read ({error.strerror}): {FORMAT_FIX}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidFieldError(field, str(path), f"it is no calibration ({error}): {FORMAT_FIX}") from error


def write_artefact(artefact: CalibrationFile) -> bytes:
    """Return the content of a calibration's file: JSON."""
    return msgspec.json.format(msgspec.json.encode(artefact), indent=1) + b"\n"


@functools.lru_cache(maxsize=16)
def _read(path: Path, changed_ns: int, size: int, inode: int) -> CalibrationFile:  # noqa: ARG001 (they make the key)
    return msgspec.json.decode(path.read_bytes(), type=CalibrationFile)
