"""From ``{"method": name, "param": {...}}`` to something that judges answers: a registered class, or halimede's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from halimede.compat.sedna.algorithms.hard_example_mining.hard_example_mining import Mined
from halimede.compat.sedna.common.class_factory import ClassFactory, ClassType
from halimede.errors import InvalidFieldError
from halimede.mining import Verdict, create

#: what Sedna takes when no method is named
DEFAULT = "IBT"
TRUTHS = {"true": True, "1": True, "false": False, "0": False}


class HardSampleRule(Protocol):
    """Says whether a sample is hard."""

    def judge(self, infer_result: Any, /) -> Verdict:
        """Never raises: what goes wrong makes the sample hard."""

    def __call__(self, infer_result: Any = None) -> bool:
        """Whether the sample is hard."""


class Own:
    """A class of the script's, as it was registered."""

    def __init__(self, algorithm: Callable[..., Any]) -> None:
        self.algorithm = algorithm

    def judge(self, infer_result: Any, /) -> Verdict:
        """Ask it. Whatever it raises makes the sample hard."""
        try:
            return Verdict(hard=bool(self.algorithm(infer_result)))
        except Exception as error:  # noqa: BLE001  # an algorithm of a user's own; inference goes on without it
            return Verdict(hard=True, error=f"{type(error).__name__}: {error}")

    def __call__(self, infer_result: Any = None) -> bool:
        """Whether the sample is hard."""
        return self.judge(infer_result).hard


def rule_of(chosen: Mapping[str, Any], calibration: Path | None = None) -> HardSampleRule:
    """Make the rule that is named. Raises InvalidFieldError for an unknown name or parameters that it refuses."""
    name, parameters = chosen.get("method") or DEFAULT, chosen.get("param") or {}
    if not isinstance(name, str) or not isinstance(parameters, Mapping):
        raise InvalidFieldError("hard_example_mining", dict(chosen), 'give {"method": name, "param": {...}}')
    if not ClassFactory.is_exists(ClassType.HEM, name):
        return Mined(create(name, parameters, calibration))
    registered = ClassFactory.get_cls(ClassType.HEM, name)
    try:
        made = registered(**_cast(registered, parameters))
    except TypeError as error:
        raise InvalidFieldError("hard_example_mining.param", dict(parameters), f"{name} refuses it: {error}") from error
    return made if isinstance(made, Mined) else Own(made)


def _cast(registered: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Make numbers of a CR's text where a constructor's defaults are numbers. Raises InvalidFieldError."""
    if issubclass(registered, Mined) if inspect.isclass(registered) else False:
        return dict(parameters)  # reads text itself
    try:
        known = inspect.signature(registered).parameters
    except (TypeError, ValueError):
        known = {}  # type: ignore[assignment]  # nothing is known
    return {key: _as(key, value, known[key].default) if key in known else value for key, value in parameters.items()}


def _as(key: str, value: Any, default: Any) -> Any:
    if not isinstance(value, str) or not isinstance(default, bool | int | float):
        return value
    try:
        return TRUTHS[value.strip().lower()] if isinstance(default, bool) else type(default)(value)
    except (KeyError, ValueError) as error:
        fix = f"give {'true or false' if isinstance(default, bool) else 'a number'}, as {default} is"
        raise InvalidFieldError(f"hard_example_mining.param.{key}", value, fix) from error
