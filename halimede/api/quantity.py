"""Kubernetes quantities, such as ``500m``, ``2``, ``512Mi`` and ``1e9``, as numbers."""

from __future__ import annotations

import re
from fractions import Fraction

from halimede.errors import InvalidFieldError

_suffix = r"(?:[eE]([+-]?\d{1,2})|([KMGTPE]i|[numkMGTPE]))?"
_pattern = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)" + _suffix, re.ASCII)
#: everything that the API server accepts
_any = re.compile(r"([+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40}))" + _suffix, re.ASCII)
_decimal = {letter: Fraction(1000) ** power for power, letter in enumerate("num", start=-3)}
_decimal |= {letter: Fraction(1000) ** power for power, letter in enumerate("kMGTPE", start=1)}
_binary = {f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}


def quantity(field: str, value: object) -> Fraction:
    """Return a quantity as an exact number; raise InvalidFieldError for an invalid one, and for zero."""
    result = _read(_pattern, value)
    if result is None or result <= 0:
        raise InvalidFieldError(field, value, "write a positive quantity such as 500m, 2 or 512Mi")
    return result


def amount(value: object) -> Fraction | None:
    """Return the value of a quantity as the API server reads it, whatever its sign and form; None if it is invalid."""
    return _read(_any, value)


def _read(pattern: re.Pattern[str], value: object) -> Fraction | None:
    found = pattern.fullmatch(str(value)) if isinstance(value, str | int | float) else None
    if found is None:
        return None
    number, exponent, suffix = found.groups()
    return Fraction(number) * Fraction(10) ** int(exponent or 0) * (_decimal | _binary).get(suffix, Fraction(1))
