"""The built-in mining algorithms, which find hard samples, as a service's spec sets them: names, parameters and modes.

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

#: the name of a user's own rule: the module or the Python file, and the class in it
OWN_RULE = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*|[^:\0]+\.py):([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
OWN_FIX = "write your own rule as module:Class, such as votes:FewVotes, or as file:Class, such as votes.py:FewVotes"

Mode: TypeAlias = Literal["inference-then-mining", "mining-then-inference"]
#: the modes: the algorithm looks at the small model's answer, or at the sample before any model
AFTER: Mode = "inference-then-mining"
BEFORE: Mode = "mining-then-inference"

#: most boxes of a prediction, and most of the amount of an energy and of a variance of sharpness
MOST_BOXES = 10_000
MOST_ENERGY = 1e6
MOST_SHARPNESS = 1e9
#: the longest side of a frame
MOST_SIDE = 65_535.0

#: values of parameters, which errors describe
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
    """Base of the parameters of a built-in algorithm.

    ``modes``: those that the algorithm supports, the usual one first.
    """

    __slots__ = ()

    modes: ClassVar[tuple[Mode, ...]] = (AFTER,)


class ParametersOfBothModes(MiningParameters):
    """Base of the parameters of an algorithm that can judge a sample before inference, too."""

    __slots__ = ()

    modes: ClassVar[tuple[Mode, ...]] = (AFTER, BEFORE)


@dataclass(frozen=True, slots=True)
class AgreementParameters(MiningParameters):
    """Parameters of Agreement, which judges a committee: hard if the mean score of the majority is below the threshold.

    A vote for another class counts as the score 0 in this mean. ``threshold_agreement``: the threshold.
    """

    threshold_agreement: Ratio = 0.7


@dataclass(frozen=True, slots=True)
class BoxCountParameters(MiningParameters):
    """Parameters of BoxCount: hard if ``threshold_count`` boxes or more have ``score`` or more.

    ``empty``: the verdict on a frame without such boxes.
    """

    threshold_count: BoxNumber = 5
    score: Ratio = 0.0
    empty: Empty = "hard"


@dataclass(frozen=True, slots=True)
class CloudOnlyParameters(ParametersOfBothModes):
    """CloudOnly, for which each sample is hard, has no parameters."""


@dataclass(frozen=True, slots=True)
class CrossEntropyParameters(MiningParameters):
    """Parameters of CrossEntropy: hard if 1 - (entropy of class probabilities / its maximum) is below the threshold.

    ``threshold_cross_entropy``: the threshold, so that spread out probabilities are hard.
    """

    threshold_cross_entropy: Ratio = 0.5


@dataclass(frozen=True, slots=True)
class EdgeOnlyParameters(ParametersOfBothModes):
    """EdgeOnly, for which no sample is hard, has no parameters."""


@dataclass(frozen=True, slots=True)
class EnergyParameters(MiningParameters):
    """Parameters of Energy: hard if the energy of the class scores is ``threshold_energy`` or more.

    ``logits``: the model gives raw scores, not probabilities. ``temperature``: None for the algorithm's own, which is 1
    with logits and 0.5 without.
    """

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
    """Parameters of Entropy: hard if the entropy of the class probabilities / its maximum >= ``threshold_entropy``."""

    threshold_entropy: Ratio = 0.5


@dataclass(frozen=True, slots=True)
class IBTParameters(MiningParameters):
    """Parameters of IBT: hard if (boxes with score <= ``threshold_box``) / boxes >= 1 - ``threshold_img``.

    ``empty``: the verdict on a frame without boxes.
    """

    threshold_img: Ratio = 0.5
    threshold_box: Ratio = 0.5
    empty: Empty = "hard"


@dataclass(slots=True)
class LearnedParameters(MiningParameters):
    """Parameters of Learned: hard if the expected gain of quality by the next tier's answer is ``cut`` or more.

    ``calibration`` defaults to that of the service.
    """

    calibration: CalibrationPath
    #: the hardness from which on a sample is hard; NaN: that of the calibration
    cut: Cut = math.nan


@dataclass(frozen=True, slots=True)
class MarginParameters(MiningParameters):
    """Parameters of Margin: hard if the best class probability leads the second by less than ``threshold_margin``."""

    threshold_margin: Ratio = 0.5


@dataclass(frozen=True, slots=True)
class MaxProbabilityParameters(MiningParameters):
    """Parameters of MaxProbability: hard if the best class probability is below ``threshold_probability``."""

    threshold_probability: Ratio = 0.5


@dataclass(slots=True)
class RandomParameters(ParametersOfBothModes):
    """Parameters of Random: hard with the probability ``random_ratio``.

    ``seed``: of the draws; None: another one at each start.
    """

    random_ratio: Ratio = 0.3
    seed: Seed | None = None


@dataclass(frozen=True, slots=True)
class SharpnessParameters(MiningParameters):
    """Parameters of Sharpness, which judges pictures before the model (``modes``).

    Hard if the variance of the Laplacian (of values of 0 to 255 in camera pictures) is below ``threshold_sharpness``.
    """

    modes: ClassVar[tuple[Mode, ...]] = (BEFORE,)

    threshold_sharpness: Variance = 100.0


@dataclass(frozen=True, slots=True)
class SmallestBoxParameters(MiningParameters):
    """Parameters of SmallestBox: hard if the root of the area of the smallest box is below ``threshold_side`` pixels.

    Boxes with a lower score than ``score`` do not count. ``empty``: the verdict on a frame without other boxes.
    """

    threshold_side: Side = 32.0
    score: Ratio = 0.0
    empty: Empty = "hard"


@dataclass(frozen=True, slots=True)
class ThresholdParameters(MiningParameters):
    """Parameters of Threshold: hard if the mean score of the boxes is below ``threshold``.

    ``empty``: the verdict on a frame without boxes.
    """

    threshold: Ratio = 0.5
    empty: Empty = "hard"


@dataclass(frozen=True, slots=True)
class TwoThresholdsParameters(MiningParameters):
    """Parameters of TwoThresholds, for a model of two classes.

    ``positive``, ``negative``: names of the classes. A sample is hard if its probability of the positive class is
    between ``low`` and ``high``.
    """

    positive: ClassName
    negative: ClassName
    low: Ratio
    high: Ratio
    #: the probability from which the answer is the positive class; None: in the middle between both thresholds
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
    """Parameters of UncertainBoxes, by the boxes with score ``low`` or more.

    Hard if the share of them below ``high`` is ``threshold_share`` or more. ``empty``: the verdict on a frame without
    any.
    """

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

    ``own``: the worker may have algorithms of its own, so that an unknown name is accepted. ``calibrated``: the service
    names a calibration, which is the default of the parameter ``calibration``.
    """
    if ":" in name:
        parse_own_rule(name, f"{at}.name")
        return
    built_in = next((algorithm for algorithm in BUILT_IN if algorithm.lower() == name.lower()), None)
    if built_in is None:
        from importlib.metadata import entry_points  # noqa: PLC0415  # a twentieth of a command's start

        installed = {point.name for point in entry_points(group=GROUP)}
        if not own and name.lower() not in {algorithm.lower() for algorithm in installed}:
            fix = f"{name_fix(name, BUILT_IN.keys() | installed)}; or {OWN_FIX}"
            raise InvalidFieldError(f"{at}.name", name, fix)
        return
    declared = BUILT_IN[built_in]
    try:
        check_all(
            lambda: declared(**read_parameters(declared, parameters, "calibration" if calibrated else "")),
            lambda: check_supported(built_in, declared.modes, mode),
        )
    except InvalidFieldError as error:
        raise error.replace_prefix(FIELD, at) from error


def parse_own_rule(name: str, field: str = f"{FIELD}.name") -> tuple[str, str]:
    """Return the module or Python file of a user's own rule, and its class.

    Raises InvalidFieldError, which names ``field``.
    """
    match = OWN_RULE.fullmatch(name)
    if match is None:
        raise InvalidFieldError(field, name, OWN_FIX)
    return match[1], match[2]


def rule_file(name: object) -> str:
    """Return the Python file that the name of a user's own rule begins with; empty for any other name or value."""
    match = OWN_RULE.fullmatch(name) if isinstance(name, str) else None
    return match[1] if match and match[1].endswith(".py") else ""


def read_parameters(declared: type[Any], texts: Mapping[str, str], calibration: str = "") -> dict[str, Any]:
    """Return the arguments of an algorithm, or of its parameters alone, from the texts in a spec.

    ``declared`` is a dataclass. ``calibration``, unless empty, is used for a parameter of that name without a text.
    Raises InvalidFieldError for an unknown or missing parameter, and a value of the wrong type or out of range.
    """
    hints = get_type_hints(declared, include_extras=True)
    parameters = {field.name: field for field in fields(declared) if field.init}
    if calibration and "calibration" in parameters:
        texts = {"calibration": calibration, **texts}
    errors = [
        InvalidFieldError(f"{FIELD}.parameters.{key}", text, name_fix(key, parameters))
        for key, text in texts.items()
        if key not in parameters
    ]
    for key, parameter in parameters.items():
        if key not in texts and parameter.default is MISSING and parameter.default_factory is MISSING:
            fix = f"it is required: give {_describe_values(hints[key])}"
            errors.append(InvalidFieldError(f"{FIELD}.parameters.{key}", None, fix))
    values = {}
    for key in texts.keys() & parameters.keys():
        text = texts[key]
        try:  # a caller may have converted numbers
            values[key] = msgspec.convert(text.strip() if isinstance(text, str) else text, hints[key], strict=False)
        except msgspec.ValidationError:
            fix = f"give {_describe_values(hints[key])}"
            errors.append(InvalidFieldError(f"{FIELD}.parameters.{key}", text, fix))
    refuse(errors)
    return values


def check_supported(name: str, modes: Sequence[Mode], mode: str) -> None:
    """Refuse a ``mode`` of a service that is not among ``modes``, those of the algorithm. Raises InvalidFieldError."""
    if mode in modes:
        return
    if mode not in {AFTER, BEFORE}:
        raise InvalidFieldError(f"{FIELD}.mode", mode, f"use one of {AFTER}, {BEFORE}")
    evidence = "the sample itself" if mode == AFTER else "what the small model answers"
    alternative = ", or an algorithm that looks at samples, such as Sharpness or Random" if mode == BEFORE else ""
    raise InvalidFieldError(f"{FIELD}.mode", mode, f"{name} looks at {evidence}: use {modes[0]}{alternative}")


def name_fix(unknown: str, names: Iterable[str]) -> str:
    """Return the remedy for an unknown name: the nearest of ``names``, and all of them.

    Without ``names``, the unknown one is a parameter of an algorithm that has no parameters.
    """
    choices = sorted(names)
    close = difflib.get_close_matches(unknown.lower(), [name.lower() for name in choices], n=1)
    hint = next((f"did you mean {name}? " for name in choices if close and name.lower() == close[0]), "")
    return f"{hint}use one of {', '.join(choices)}" if choices else "remove it: the algorithm has no parameters"


def _describe_values(hint: Any) -> str:
    """Return what may be written for a field of a type: its description, choices, or the type in words."""
    if get_origin(hint) is Annotated:
        base, *extras = get_args(hint)
        texts = [extra.description for extra in extras if isinstance(extra, msgspec.Meta) and extra.description]
        return texts[0] if texts else _describe_values(base)
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, get_args(hint)))
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    alternatives = (kind for kind in get_args(hint) if kind is not type(None))
    return names.get(hint) or " or ".join(map(_describe_values, alternatives))
