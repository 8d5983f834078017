"""The built-in mining algorithms as a service's spec sets them: names, parameters and modes.

``halimede.mining`` derives its algorithms from these types, and a worker reads its parameters with the functions here.
So ``halimede apply`` and GM refuse what a worker would refuse, without a worker's packages.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from halimede.errors import InvalidFieldError, check_all, refuse
from halimede.names import FIX

#: the group of entry points by which installed packages add algorithms
GROUP = "halimede.mining"
#: the field of a service; that of a tier is ``spec.tiers[0].hardExampleMining``
FIELD = "spec.edgeWorker.hardExampleMining"

#: a user's own rule: the module or the Python file, and the class in it
OWN_RULE = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*|[^:\0]+\.py):([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
OWN_FIX = "write your own rule as module:Class, such as votes:FewVotes, or as file:Class, such as votes.py:FewVotes"

Mode: TypeAlias = Literal["inference-then-mining", "mining-then-inference"]
AFTER: Mode = "inference-then-mining"
BEFORE: Mode = "mining-then-inference"

#: most boxes of a prediction
MOST_BOXES = 10_000
MOST_ENERGY = 1e6
MOST_SHARPNESS = 1e9
#: the longest side of a frame
MOST_SIDE = 65_535.0

Ratio = Annotated[float, Meta(ge=0, le=1, description="a number from 0 to 1")]
#: result for a frame without boxes; Sedna calls it easy, and so never uploads objects that its small model missed
Empty = Annotated[
    str,
    Meta(
        pattern=r"^(hard|easy|sample\((0(\.\d*)?|0?\.\d+|1(\.0*)?)\))$",
        description="hard, easy or sample(p): hard with probability p from 0 to 1",
        extra={FIX: "use hard, easy or sample(p) with p from 0 to 1, such as sample(0.1)"},
    ),
]
BoxNumber = Annotated[int, Meta(ge=1, le=MOST_BOXES, description="a whole number from 1 to 10000")]
Level = Annotated[float, Meta(ge=-MOST_ENERGY, le=MOST_ENERGY, description="a number from -1e6 to 1e6")]
Temperature = Annotated[float, Meta(ge=0.01, le=1000, description="a number from 0.01 to 1000")]
CalibrationPath = Annotated[str, Meta(min_length=1, description="the path of a file that `halimede calibrate` wrote")]
ClassName = Annotated[str, Meta(min_length=1, max_length=256, description="the name of a class of the model")]
Cut = Annotated[float, Meta(ge=-1, le=1, description="a number from -1 to 1")]
Seed = Annotated[int, Meta(ge=0, description="a whole number from 0")]
Variance = Annotated[float, Meta(ge=0, le=MOST_SHARPNESS, description="a number from 0 to 1e9")]
Side = Annotated[float, Meta(ge=0, le=MOST_SIDE, description="a number of pixels from 0 to 65535")]


class MiningParameters:
    """Base of the parameters of a built-in algorithm, and the modes that it supports."""

    __slots__ = ()

    modes: ClassVar[tuple[Mode, ...]] = (AFTER,)


class ParametersOfBothModes(MiningParameters):
    """Base of those of an algorithm that can judge a sample before inference, too."""

    __slots__ = ()

    modes: ClassVar[tuple[Mode, ...]] = (AFTER, BEFORE)


@dataclass(frozen=True, slots=True)
class AgreementParameters(MiningParameters):
    """Parameters of Agreement."""

    threshold_agreement: Ratio = 0.7


@dataclass(frozen=True, slots=True)
class BoxCountParameters(MiningParameters):
    """Parameters of BoxCount."""

    threshold_count: BoxNumber = 5
    score: Ratio = 0.0
    empty: Empty = "hard"


@dataclass(frozen=True, slots=True)
class CloudOnlyParameters(ParametersOfBothModes):
    """CloudOnly has none."""


@dataclass(frozen=True, slots=True)
class CrossEntropyParameters(MiningParameters):
    """Parameters of CrossEntropy."""

    threshold_cross_entropy: Ratio = 0.5


@dataclass(frozen=True, slots=True)
class EdgeOnlyParameters(ParametersOfBothModes):
    """EdgeOnly has none."""


@dataclass(frozen=True, slots=True)
class EnergyParameters(MiningParameters):
    """Parameters of Energy."""

    threshold_energy: Level = 0.25
    logits: bool = False
    temperature: Temperature | None = None

    def __post_init__(self) -> None:
        """Refuse a temperature at which the energy of probabilities is constant. Raises InvalidFieldError."""
        if not self.logits and self.temperature is not None and self.temperature >= 1:
            fix = "give a number below 1, or set logits to true for a model that gives raw scores"
            raise InvalidFieldError(f"{FIELD}.parameters.temperature", self.temperature, fix)


@dataclass(frozen=True, slots=True)
class EntropyParameters(MiningParameters):
    """Parameters of Entropy."""

    threshold_entropy: Ratio = 0.5


@dataclass(frozen=True, slots=True)
class IBTParameters(MiningParameters):
    """Parameters of IBT."""

    threshold_img: Ratio = 0.5
    threshold_box: Ratio = 0.5
    empty: Empty = "hard"


@dataclass(slots=True)
class LearnedParameters(MiningParameters):
    """Parameters of Learned. ``calibration`` defaults to that of the service."""

    calibration: CalibrationPath
    #: NaN: the calibration's cut
    cut: Cut = math.nan


@dataclass(frozen=True, slots=True)
class MarginParameters(MiningParameters):
    """Parameters of Margin."""

    threshold_margin: Ratio = 0.5


@dataclass(frozen=True, slots=True)
class MaxProbabilityParameters(MiningParameters):
    """Parameters of MaxProbability."""

    threshold_probability: Ratio = 0.5


@dataclass(slots=True)
class RandomParameters(ParametersOfBothModes):
    """Parameters of Random."""

    random_ratio: Ratio = 0.3
    seed: Seed | None = None


@dataclass(frozen=True, slots=True)
class SharpnessParameters(MiningParameters):
    """Parameters of Sharpness, which judges samples alone."""

    modes: ClassVar[tuple[Mode, ...]] = (BEFORE,)

    threshold_sharpness: Variance = 100.0


@dataclass(frozen=True, slots=True)
class SmallestBoxParameters(MiningParameters):
    """Parameters of SmallestBox."""

    threshold_side: Side = 32.0
    score: Ratio = 0.0
    empty: Empty = "hard"


@dataclass(frozen=True, slots=True)
class ThresholdParameters(MiningParameters):
    """Parameters of Threshold."""

    threshold: Ratio = 0.5
    empty: Empty = "hard"


@dataclass(frozen=True, slots=True)
class TwoThresholdsParameters(MiningParameters):
    """Parameters of TwoThresholds. ``answer``: from here on, the answer is the positive class."""

    positive: ClassName
    negative: ClassName
    low: Ratio
    high: Ratio
    #: None: in the middle between both thresholds
    answer: Ratio | None = None

    def __post_init__(self) -> None:
        """Refuse equal classes, and thresholds in another order. Raises InvalidFieldError."""
        at = f"{FIELD}.parameters"
        if self.positive == self.negative:
            raise InvalidFieldError(f"{at}.negative", self.negative, "name the model's other class")
        if self.high < self.low:
            raise InvalidFieldError(f"{at}.high", self.high, f"give a number from low, {self.low}, on")
        if self.answer is not None and not self.low <= self.answer <= self.high:
            fix = f"give a number between low and high, from {self.low} to {self.high}"
            raise InvalidFieldError(f"{at}.answer", self.answer, fix)

    @property
    def between(self) -> float:
        """The probability from which the answer is the positive class."""
        return (self.low + self.high) / 2 if self.answer is None else self.answer


@dataclass(frozen=True, slots=True)
class UncertainBoxesParameters(MiningParameters):
    """Parameters of UncertainBoxes."""

    threshold_share: Ratio = 0.5
    low: Ratio = 0.15
    high: Ratio = 0.5
    empty: Empty = "hard"

    def __post_init__(self) -> None:
        """Refuse limits with an empty range. Raises InvalidFieldError."""
        if self.high <= self.low:
            raise InvalidFieldError(f"{FIELD}.parameters.high", self.high, f"give a number over low, {self.low}")


#: the parameters of all built-in algorithms, by name
BUILT_IN: Mapping[str, type[MiningParameters]] = {
    "Agreement": AgreementParameters,
    "BoxCount": BoxCountParameters,
    "CloudOnly": CloudOnlyParameters,
    "CrossEntropy": CrossEntropyParameters,
    "EdgeOnly": EdgeOnlyParameters,
    "Energy": EnergyParameters,
    "Entropy": EntropyParameters,
    "IBT": IBTParameters,
    "Learned": LearnedParameters,
    "Margin": MarginParameters,
    "MaxProbability": MaxProbabilityParameters,
    "Random": RandomParameters,
    "Sharpness": SharpnessParameters,
    "SmallestBox": SmallestBoxParameters,
    "Threshold": ThresholdParameters,
    "TwoThresholds": TwoThresholdsParameters,
    "UncertainBoxes": UncertainBoxesParameters,
}


def check_mining(at: str, name: str, parameters: Mapping[str, str], mode: str, *, own: bool, calibrated: bool) -> None:
    """Check a service's mining at the path ``at`` as its worker does. Raises InvalidFieldError.

    ``own``: the worker may bring algorithms that are not known here. Then only built-in names are checked further.
    ``calibrated``: the service names a calibration.
    """
    if ":" in name:
        own_rule(name, f"{at}.name")
        return
    built_in = next((known for known in BUILT_IN if known.lower() == name.lower()), None)
    if built_in is None:
        from importlib.metadata import entry_points  # noqa: PLC0415  # a twentieth of a command's start

        installed = {point.name for point in entry_points(group=GROUP)}
        if not own and name.lower() not in {each.lower() for each in installed}:
            fix = f"{instead(name, BUILT_IN.keys() | installed)}; or {OWN_FIX}"
            raise InvalidFieldError(f"{at}.name", name, fix)
        return
    declared = BUILT_IN[built_in]
    try:
        check_all(
            lambda: declared(**read_parameters(declared, parameters, "calibration" if calibrated else "")),
            lambda: check_supported(built_in, declared.modes, mode),
        )
    except InvalidFieldError as error:
        raise error.moved(FIELD, at) from error


def own_rule(name: str, field: str = f"{FIELD}.name") -> tuple[str, str]:
    """Return the module or Python file of a user's own rule, and its class. Raises InvalidFieldError."""
    found = OWN_RULE.fullmatch(name)
    if found is None:
        raise InvalidFieldError(field, name, OWN_FIX)
    return found[1], found[2]


def rule_file(name: object) -> str:
    """Return the Python file that a rule's name has; empty for any other name."""
    found = OWN_RULE.fullmatch(name) if isinstance(name, str) else None
    return found[1] if found and found[1].endswith(".py") else ""


def read_parameters(declared: type[Any], given: Mapping[str, str], calibration: str = "") -> dict[str, Any]:
    """Return the arguments of an algorithm, or of its parameters alone, from the text in a spec.

    ``declared`` is a dataclass. ``calibration``, unless empty, is used for a parameter of that name that is not given.
    Raises InvalidFieldError for an unknown or missing parameter, and a value of the wrong type or out of range.
    """
    hints = get_type_hints(declared, include_extras=True)
    known = {field.name: field for field in fields(declared) if field.init}
    if calibration and "calibration" in known:
        given = {"calibration": calibration, **given}
    found = [
        InvalidFieldError(f"{FIELD}.parameters.{key}", text, instead(key, known))
        for key, text in given.items()
        if key not in known
    ]
    for key, field in known.items():
        if key not in given and field.default is MISSING and field.default_factory is MISSING:
            fix = f"it is required: give {_expected(hints[key])}"
            found.append(InvalidFieldError(f"{FIELD}.parameters.{key}", None, fix))
    values = {}
    for key in given.keys() & known.keys():
        try:
            values[key] = _read(key, given[key], hints[key])
        except InvalidFieldError as error:
            found.append(error)
    refuse(found)
    return values


def check_supported(name: str, modes: Sequence[Mode], mode: str) -> None:
    """Refuse a mode that an algorithm does not support. Raises InvalidFieldError."""
    if mode in modes:
        return
    if mode not in {AFTER, BEFORE}:
        raise InvalidFieldError(f"{FIELD}.mode", mode, f"use one of {AFTER}, {BEFORE}")
    looks = "the sample itself" if mode == AFTER else "what the small model answers"
    others = ", or an algorithm that looks at samples, such as Sharpness or Random" if mode == BEFORE else ""
    raise InvalidFieldError(f"{FIELD}.mode", mode, f"{name} looks at {looks}: use {modes[0]}{others}")


def instead(given: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown name: the nearest one, and all others."""
    listed = sorted(known)
    close = difflib.get_close_matches(given.lower(), [name.lower() for name in listed], n=1)
    hint = next((f"did you mean {name}? " for name in listed if close and name.lower() == close[0]), "")
    return f"{hint}use one of {', '.join(listed)}" if listed else "remove it: the algorithm has no parameters"


def _read(key: str, text: str, wanted: Any) -> object:
    """Convert a parameter's text to its field's type; accept numbers that a caller has converted."""
    try:
        return msgspec.convert(text.strip() if isinstance(text, str) else text, wanted, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidFieldError(f"{FIELD}.parameters.{key}", text, f"give {_expected(wanted)}") from error


def _expected(wanted: Any) -> str:
    """Return a description of the values of a field's type."""
    if get_origin(wanted) is Annotated:
        base, *extras = get_args(wanted)
        said = [extra.description for extra in extras if isinstance(extra, msgspec.Meta) and extra.description]
        return said[0] if said else _expected(base)
    if get_origin(wanted) is Literal:
        return "one of " + ", ".join(map(str, get_args(wanted)))
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return words.get(wanted) or " or ".join(_expected(part) for part in get_args(wanted) if part is not type(None))
