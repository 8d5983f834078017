"""Kubernetes quantities, such as ``500m``, ``2``, ``512Mi`` and ``1e9``, as numbers."""

from __future__ import annotations

import re
from fractions import Fraction

from halimede.errors import InvalidFieldError

_pattern = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)(?:[eE]([+-]?\d{1,2})|([KMGTPE]i|[numkMGTPE]))?", re.ASCII)
_decimal = {letter: Fraction(1000) ** power for power, letter in enumerate("num", start=-3)}
_decimal |= {letter: Fraction(1000) ** power for power, letter in enumerate("kMGTPE", start=1)}
_binary = {f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}


def quantity(field: str, value: object) -> Fraction:
    """Return a quantity as an exact number; raise InvalidFieldError on anything that is none, and on zero."""
    found = _pattern.fullmatch(str(value)) if isinstance(value, str | int | float) else None
    if found:
        number, exponent, suffix = found.groups()
        result = Fraction(number) * Fraction(10) ** int(exponent or 0) * (_decimal | _binary).get(suffix, Fraction(1))
        if result > 0:
            return result
    raise InvalidFieldError(field, value, "write a positive quantity such as 500m, 2 or 512Mi")
