"""Reads settings from environment variables. Each error names the variable, its value and what to write."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from halimede.errors import InvalidFieldError

#: environment variables by name
Environment = Mapping[str, str]


def require(environ: Environment, name: str) -> str:
    """Return a variable that must be set. Raises InvalidFieldError if it is missing or empty."""
    value = environ.get(name, "")
    if not value:
        raise InvalidFieldError(name, value, "it is required: the local controller sets it; by hand, export it")
    return value


def number(
    environ: Environment, name: str, default: float, *, least: float, most: float, kind: str = "number"
) -> float:
    """Return the number in a variable, from ``least`` to ``most``; ``default`` if it is missing or empty.

    Raises InvalidFieldError for any other text; ``kind``: what the error calls the number.
    """
    text = environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise InvalidFieldError(name, text, f"write a {kind} from {least:g} to {most:g}")
    return value


def one_of(environ: Environment, name: str, choices: Sequence[str]) -> str:
    """Return a variable's value; the first of ``choices`` if it is missing or empty.

    Raises InvalidFieldError if it is not one of ``choices``.
    """
    text = environ.get(name) or choices[0]
    if text not in choices:
        raise InvalidFieldError(name, text, f"write one of {', '.join(choices)}")
    return text


def is_enabled(environ: Environment, name: str, *, default: bool = False) -> bool:
    """Return True for a variable that is 1 or true, False for 0 or false, and ``default`` if it is missing or empty.

    Upper and lower case are alike. Raises InvalidFieldError for any other value.
    """
    text = environ.get(name, "")
    if text.lower() not in {"", "0", "1", "false", "true"}:
        raise InvalidFieldError(name, text, "write 1 or 0")
    return text.lower() in {"1", "true"} if text else default
