"""Reads settings from environment variables. Each error names the variable, its value and what to write."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from halimede.errors import InvalidFieldError

Environment = Mapping[str, str]


def required(environ: Environment, name: str) -> str:
    """Return a variable that must be set. Raises InvalidFieldError."""
    value = environ.get(name, "")
    if not value:
        raise InvalidFieldError(name, value, "it is required: the local controller sets it; by hand, export it")
    return value


def number(
    environ: Environment, name: str, default: float, *, least: float, most: float, what: str = "number"
) -> float:
    """Return a number from ``least`` to ``most``, or the default. ``what``: its description in InvalidFieldError."""
    text = environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise InvalidFieldError(name, text, f"write a {what} from {least:g} to {most:g}")
    return value


def one_of(environ: Environment, name: str, choices: Sequence[str]) -> str:
    """Return a variable's value, one of ``choices``; the first if it is not set. Raises InvalidFieldError."""
    text = environ.get(name) or choices[0]
    if text not in choices:
        raise InvalidFieldError(name, text, f"write one of {', '.join(choices)}")
    return text


def flag(environ: Environment, name: str, *, default: bool = False) -> bool:
    """Return whether a variable is 1 or true. Raises InvalidFieldError."""
    text = environ.get(name, "")
    if text.lower() not in {"", "0", "1", "false", "true"}:
        raise InvalidFieldError(name, text, "write 1 or 0")
    return text.lower() in {"1", "true"} if text else default
