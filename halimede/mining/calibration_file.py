"""The result of `halimede calibrate` for a service's two models: the file of a calibration Model.

It is JSON with numbers only, so reading it runs no code. Workers read it (rules, mixture, drift), and so do `halimede
evaluate` and later calibrations.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from halimede.errors import InvalidFieldError

MAX_BYTES = 1024 * 1024
#: most classes of boxes with features of their own, and most characters of their names
MAX_REWARD_CLASSES, MAX_CLASS_NAME = 64, 256
#: the measured share of uploads in ``CalibrationFile.figures``
UPLOAD_RATIO = "upload_ratio"
FORMAT_FIX = "give a file that `halimede calibrate` wrote"

#: cells of the map of missed objects, across and down
GRID = 8

Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
#: numbers whose products and sums stay finite
Bounded = Annotated[float, Meta(ge=-1e12, le=1e12)]
Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Head(Struct, kw_only=True):
    """A logistic regression: the probability is 1 / (1 + exp(-(bias + weights . features)))."""

    bias: Finite
    weights: list[Finite]


class LearnedRule(Struct, kw_only=True):
    """Learned deferral: how likely the next tier corrects an answer (``gain``) or spoils it (``loss``).

    Both use ``learned.features_of`` a prediction; hardness is their difference, without ``loss`` gain alone.
    ``embedding``: expected number of penultimate features, 0: none.
    """

    classes: Annotated[int, Meta(ge=2, le=100_000)]
    embedding: Annotated[int, Meta(ge=0, le=8192)] = 0
    gain: Head
    loss: Head | None = None
    cut: Finite


class RewardRule(Struct, kw_only=True):
    """Learned deferral of boxes or texts: the reward of an upload is bias + weights . features.

    The features are ``reward.reward_features`` of a prediction, each bounded by ``lows`` and ``highs``, the range of
    the calibration's samples. ``classes``: those with features of their own.
    """

    answers: Literal["boxes", "texts"]
    classes: Annotated[list[Annotated[str, Meta(max_length=MAX_CLASS_NAME)]], Meta(max_length=MAX_REWARD_CLASSES)] = []
    bias: Bounded
    weights: Annotated[list[Bounded], Meta(max_length=1000)]
    lows: Annotated[list[Bounded], Meta(max_length=1000)]
    highs: Annotated[list[Bounded], Meta(max_length=1000)]
    cut: Finite


class MixtureRule(Struct, kw_only=True):
    """How to combine two distributions: add weighted logarithms (or probabilities), and normalize to 1.

    ``product`` is a logarithmic opinion pool, ``sum`` a linear one. Both take calibrated probabilities.
    """

    kind: Literal["product", "sum"] = "product"
    edge: Annotated[float, Meta(ge=0, le=1000)]
    cloud: Annotated[float, Meta(ge=0, le=1000)]


class Reference(Struct, kw_only=True):
    """The samples at calibration time: drift is measured against them.

    ``hardness``: its quantiles by the rule in use, at equal steps from 0 to 1. ``classes``: share of each answer of the
    small model.
    """

    hardness: list[Finite] = []
    classes: dict[str, Share] = {}
    samples: Annotated[int, Meta(ge=1)]


class RegionRule(Struct, kw_only=True, omit_defaults=True):
    """Which regions of a hard frame are uploaded with ``upload: regions``, and how. The defaults are those of a service
    without a calibration.

    Attributes:
        sure: a box with a lower score is uncertain: the region around it is uploaded.
        padding: share of a box's width and height that is added on each side.
        cells: regions in which the small model misses objects: cells of a grid of ``GRID`` x ``GRID``, by rows.
        scale: by it the sides of the frame are multiplied before regions are cut out.
        canvas: least sides of a packed picture of regions, as a share of the scaled frame's; 1: regions stay in place.

    """

    sure: Share = 0.8
    padding: Annotated[float, Meta(ge=0, le=4)] = 0.5
    cells: Annotated[list[Annotated[int, Meta(ge=0, lt=GRID * GRID)]], Meta(max_length=GRID * GRID)] = []
    scale: Annotated[float, Meta(ge=0.125, le=1)] = 1.0
    canvas: Annotated[float, Meta(ge=0.25, le=1)] = 1.0


class CalibrationFile(Struct, kw_only=True, omit_defaults=True):
    """The whole result of a calibration. Digests are SHA-256 of the models' files, hexadecimal; ``edge_pixels``: of how
    the small model's input is made of a picture (``halimede.api.processing.pixels_digest``); empty: not recorded.

    ``rule`` and ``parameters`` are those of the selected hard example mining. ``learned`` is Learned of classes,
    ``reward`` that of boxes and texts. ``figures`` were measured on samples that nothing was fitted on, each with
    ``<name>.low`` and ``<name>.high``, its 95 % interval.
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
    figures: dict[str, Finite] = {}
    edge_digest: str = ""
    cloud_digest: str = ""
    edge_pixels: str = ""


def read_artefact(path: Path, field: str = "calibration") -> CalibrationFile:
    """Read a calibration; cached while the file stays the same.

    Raises InvalidFieldError on ``field`` for a file that is unreadable, over 1 MiB or not a calibration.
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
    """Return the file's contents."""
    return msgspec.json.format(msgspec.json.encode(artefact), indent=1) + b"\n"


@functools.lru_cache(maxsize=16)
def _read(path: Path, changed_ns: int, size: int, inode: int) -> CalibrationFile:  # noqa: ARG001 (they make the key)
    return msgspec.json.decode(path.read_bytes(), type=CalibrationFile)
