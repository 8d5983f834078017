"""Kubernetes quantities."""

from __future__ import annotations

from fractions import Fraction

import pytest

from halimede.api.quantity import amount, quantity
from halimede.errors import InvalidFieldError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), (2, 2), (0.5, Fraction(1, 2)), ("500m", Fraction(1, 2)), ("100u", Fraction(1, 10_000)),
        ("1.5", Fraction(3, 2)), ("512Mi", 512 * 1024**2), ("2Gi", 2 * 1024**3), ("1Ki", 1024), ("1k", 1000),
        ("1M", 10**6), ("1E", 10**18), ("1e3", 1000), ("1E3", 1000), ("12e-1", Fraction(6, 5)),
    ],
)  # fmt: skip
def test_a_quantity(text: object, value: object) -> None:
    assert quantity("limits.cpu", text) == value


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "1mi", "1 Gi", "Gi", "1.", ".5", "1e999", "nan", "٣", None, [], True, "1\n", "9" * 30]
)
def test_no_quantity(text: object) -> None:
    with pytest.raises(InvalidFieldError, match=r"limits\.cpu"):
        quantity("limits.cpu", text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("-1", -1), ("+1", 1), (".5", Fraction(1, 2)), ("1.", 1), ("500m", Fraction(1, 2)), (0, 0),
        (0.5, Fraction(1, 2)),
    ],
)  # fmt: skip
def test_an_amount_may_be_anything_that_the_api_server_takes(text: object, value: object) -> None:
    assert amount(text) == value


@pytest.mark.parametrize("text", ["", "x", "1mi", ".", "--1", None, [], {}, True, "1\n"])
def test_no_amount(text: object) -> None:
    assert amount(text) is None
