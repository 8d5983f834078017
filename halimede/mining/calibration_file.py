"""What `halimede calibrate` found out of a service's two models, as the file that a calibration Model names.

Numbers only, as JSON: whoever reads it runs nothing of it. Workers read it (rules, mixture, drift), and so do
`halimede evaluate` and the calibration that writes it.
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
FORMAT_FIX = "give a file that `halimede calibrate` wrote"

Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Positive = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Head(Struct, kw_only=True):
    """A logistic regression: the probability is 1 / (1 + exp(-(bias + weights . features)))."""

    bias: Finite
    weights: list[Finite]


class LearnedRule(Struct, kw_only=True):
    """Learned deferral: how likely asking mends an answer (``gain``), and how likely it spoils one (``loss``).

    Both are over what ``learned.features_of`` makes of a prediction; hardness is their difference, without ``loss``
    gain alone. ``embedding`` numbers of penultimate features are expected, 0: none.
    """

    classes: Annotated[int, Meta(ge=2, le=100_000)]
    embedding: Annotated[int, Meta(ge=0, le=8192)] = 0
    gain: Head
    loss: Head | None = None
    cut: Finite


class MixtureRule(Struct, kw_only=True):
    """How two distributions become one: logarithms (or probabilities) are added, weighted, and made 1 again.

    ``product`` is a logarithmic opinion pool, ``sum`` a linear one. Both take calibrated probabilities.
    """

    kind: Literal["product", "sum"] = "product"
    edge: Annotated[float, Meta(ge=0, le=1000)]
    cloud: Annotated[float, Meta(ge=0, le=1000)]


class Reference(Struct, kw_only=True):
    """What samples were like when the service was calibrated: drift is measured against it.

    ``hardness``: quantiles of it by the rule in force, at equal steps from 0 to 1. ``classes``: share of each of the
    small model's answers.
    """

    hardness: list[Finite] = []
    classes: dict[str, Share] = {}
    samples: Annotated[int, Meta(ge=1)]


class CalibrationFile(Struct, kw_only=True, omit_defaults=True):
    """All that calibration found out. Digests are SHA-256 of the model files that it is about, hexadecimal.

    ``rule`` and ``parameters`` are those of the hard example mining that was chosen; ``figures`` were measured on
    samples that nothing was fitted on, each with ``<name>.low`` and ``<name>.high``, its 95 % interval.
    """

    v: Literal[1] = 1
    service: str
    labels: list[str] = []
    temperature_edge: Positive = 1.0
    temperature_cloud: Positive = 1.0
    rule: str = ""
    parameters: dict[str, str] = {}
    learned: LearnedRule | None = None
    mixture: MixtureRule | None = None
    reference: Reference | None = None
    figures: dict[str, Finite] = {}
    edge_digest: str = ""
    cloud_digest: str = ""


def read_artefact(path: Path, field: str = "calibration") -> CalibrationFile:
    """Read a calibration, once for as long as its file stays the same.

    Raises InvalidFieldError on ``field`` for a file that cannot be read, is over 1 MiB or is none.
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
