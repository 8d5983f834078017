"""Kubernetes quantities (numbers with a unit), such as ``500m``, ``2``, ``512Mi`` and ``1e9``, as exact numbers."""

from __future__ import annotations

import re
from fractions import Fraction

from halimede.errors import InvalidFieldError

#: an exponent, or a unit: a power of 1024 or of 1000
_suffix = r"(?:[eE]([+-]?\d{1,2})|([KMGTPE]i|[numkMGTPE]))?"
#: positive quantities of usual length
_pattern = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)" + _suffix, re.ASCII)
#: everything that the API server accepts
_any = re.compile(r"([+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40}))" + _suffix, re.ASCII)
#: values of the units
_decimal = {prefix: Fraction(1000) ** power for power, prefix in enumerate("num", start=-3)}
_decimal |= {prefix: Fraction(1000) ** power for power, prefix in enumerate("kMGTPE", start=1)}
_binary = {f"{prefix}i": Fraction(1024) ** power for power, prefix in enumerate("KMGTPE", start=1)}


def quantity(field: str, value: object) -> Fraction:
    """Return a quantity as an exact number.

    Raises InvalidFieldError, which names ``field``, for zero or an invalid one.
    """
    result = _read(_pattern, value)
    if result is None or result <= 0:
        raise InvalidFieldError(field, value, "write a positive quantity such as 500m, 2 or 512Mi")
    return result


def amount(value: object) -> Fraction | None:
    """Return the value of a quantity as the API server reads it, whatever its sign and form; None if it is invalid."""
    return _read(_any, value)


def _read(pattern: re.Pattern[str], value: object) -> Fraction | None:
    """Return the value of a text or number that the pattern matches, else None."""
    match = pattern.fullmatch(str(value)) if isinstance(value, str | int | float) else None
    if match is None:
        return None
    number, exponent, suffix = match.groups()
    return Fraction(number) * Fraction(10) ** int(exponent or 0) * (_decimal | _binary).get(suffix, Fraction(1))
