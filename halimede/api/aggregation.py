"""The built-in aggregation algorithms, which make new weights of trainers' updates: names and parameters in a spec.

``halimede.training.aggregation`` derives its algorithms from these types. So ``halimede apply`` and GM refuse what an
aggregator would refuse, without its packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from halimede.api import mining
from halimede.errors import InvalidFieldError

#: the field of a TrainingModel with the aggregation
FIELD = "spec.aggregation"

#: values of parameters, which errors describe
Factor = Annotated[float, Meta(gt=0, le=1e6, description="a number over 0, at most 1e6")]
Decay = Annotated[float, Meta(ge=0, lt=1, description="a number from 0, and below 1")]
Strength = Annotated[float, Meta(ge=0, le=1e6, description="a number from 0 to 1e6")]
TrimmedShare = Annotated[float, Meta(ge=0, lt=0.5, description="a number from 0, and below 0.5")]


@dataclass(slots=True)
class FedAvgParameters:
    """FedAvg, the mean of the updates, has no parameters."""


@dataclass(slots=True)
class FedProxParameters:
    """Parameters of FedProx: ``mu`` is the strength of the proximal term in the trainers' loss."""

    mu: Strength = 0.01


@dataclass(slots=True)
class FedAdamParameters:
    """Parameters of FedAdam, an optimizer with Adam's moments on the mean of the updates.

    ``rate``: the length of a step. ``beta1``, ``beta2``: how much of the first and second moment each round keeps.
    ``tau``: a lower bound on the divisor, where the second moment is small.
    """

    rate: Factor = 0.05
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    tau: Factor = 0.001


@dataclass(slots=True)
class TrimmedMeanParameters:
    """Parameters of TrimmedMean: ``trim`` is the share of updates that is left out at each end."""

    trim: TrimmedShare = 0.2


@dataclass(slots=True)
class MedianParameters:
    """Median, of each number of the updates, has no parameters."""


#: the parameters of all built-in algorithms, by name
BUILT_IN: Mapping[str, type[Any]] = {
    "FedAdam": FedAdamParameters,
    "FedAvg": FedAvgParameters,
    "FedProx": FedProxParameters,
    "Median": MedianParameters,
    "TrimmedMean": TrimmedMeanParameters,
}


def read_parameters(declared: type[Any], texts: Mapping[str, str], at: str = FIELD) -> dict[str, Any]:
    """Return the arguments of an algorithm from the texts in a spec: ``{"mu": "0.1"}`` becomes ``{"mu": 0.1}``.

    ``declared``: a class of ``BUILT_IN``, or a user's dataclass. Raises InvalidFieldError for fields below ``at``.
    """
    try:
        return mining.read_parameters(declared, texts)
    except InvalidFieldError as error:
        raise error.replace_prefix(mining.FIELD, at) from error


def check_aggregation(name: str, parameters: Mapping[str, str], at: str = FIELD) -> None:
    """Check that a spec's aggregation is built in and takes the parameters.

    Raises InvalidFieldError for fields below ``at``.
    """
    if name not in BUILT_IN:
        raise InvalidFieldError(f"{at}.name", name, mining.name_fix(name, BUILT_IN))
    read_parameters(BUILT_IN[name], parameters, at)
