"""Order between one sender's messages: epochs, then numbers, and only numbers that a store can keep."""

from __future__ import annotations

import pytest

from halimede.bus.ordering import MAX_INTEGER, SequenceNumber
from halimede.errors import InvalidFieldError


@pytest.mark.parametrize(
    ("earlier", "later"), [((1, 1), (1, 2)), ((1, 9), (2, 1)), ((0, 1), (MAX_INTEGER, MAX_INTEGER)), ((3, 7), (3, 8))]
)
def test_what_is_later_overtakes_what_is_earlier_and_never_the_other_way(
    earlier: tuple[int, int], later: tuple[int, int]
) -> None:
    one, other = SequenceNumber(*earlier), SequenceNumber(*later)
    assert one.overtaken_by(other)
    assert not other.overtaken_by(one)
    assert not one.overtaken_by(one)


def test_one_without_a_number_makes_no_claim() -> None:
    assert not SequenceNumber(1, 0).overtaken_by(SequenceNumber(2, 5))
    assert not SequenceNumber(1, 5).overtaken_by(SequenceNumber(2, 0))


@pytest.mark.parametrize("number", [SequenceNumber(), SequenceNumber(3, 4), SequenceNumber(MAX_INTEGER, MAX_INTEGER)])
def test_it_is_read_as_it_was_written(number: SequenceNumber) -> None:
    assert SequenceNumber.read(number.properties) == number


def test_properties_without_it_are_no_claim() -> None:
    assert SequenceNumber.read({"traceparent": "x"}) == SequenceNumber()


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", "x", "\u0661", str(MAX_INTEGER + 1), "9" * 5000])
@pytest.mark.parametrize("field", ["epoch", "number"])
def test_what_is_no_number_or_too_large_for_a_store_is_refused(field: str, text: str) -> None:
    with pytest.raises(InvalidFieldError, match=field):
        SequenceNumber.read({field: text})
