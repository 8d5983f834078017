"""Quantities in the form in which the API server gives them back: `0.5` becomes `500m`, `1024Mi` becomes `1Gi`."""

from __future__ import annotations

import re
from fractions import Fraction

_DECIMAL = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"]
_BINARY = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
_FORM = re.compile(r"^([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([eE][+-]?\d+)|([KMGTPE]i)|([numkMGTPE]))?$")


def value_of(text: object) -> Fraction | None:
    """Return the number that a quantity stands for; None: it is none."""
    found = _FORM.match(str(text).strip())
    if not found:
        return None
    number, exponent, binary, decimal = found.groups()
    value = Fraction(number)
    if exponent:
        return value * Fraction(10) ** int(exponent[1:])
    if binary:
        return value * 1024 ** (_BINARY.index(binary) + 1)
    return value * Fraction(1000) ** (_DECIMAL.index(decimal or "") - 3)


def canonical(text: object, *, finest: int = 9) -> str | None:
    """Return the canonical form, rounded up to so many decimals; None: not a quantity."""
    value = value_of(text)
    found = _FORM.match(str(text).strip())
    if value is None or found is None:
        return None
    fine = value * 10**finest
    whole = -(-fine.numerator // fine.denominator)  # what is finer is rounded up
    value = Fraction(whole, 10**finest)
    if value == 0:
        return "0"
    if found[2]:
        return _exponent(value)
    if found[3] and abs(value) >= 1024 and value.denominator == 1:
        return _binary(int(value))
    return _decimal(value, _DECIMAL)


def _binary(value: int) -> str:
    power = 0
    while value % 1024 == 0 and power < len(_BINARY):
        value //= 1024
        power += 1
    return f"{value}{_BINARY[power - 1] if power else ''}"


def _decimal(value: Fraction, suffixes: list[str]) -> str:
    power, mantissa = 0, value * 10**9
    while mantissa % 1000 == 0 and power < len(suffixes) - 1:
        mantissa /= 1000
        power += 1
    return f"{int(mantissa)}{suffixes[power]}"


def _exponent(value: Fraction) -> str:
    power, mantissa = -9, value * 10**9
    while mantissa % 1000 == 0:
        mantissa /= 1000
        power += 3
    return f"{int(mantissa)}e{power}" if power else str(int(mantissa))
