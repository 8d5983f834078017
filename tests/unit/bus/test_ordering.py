"""Order between one sender's messages: epochs, then numbers, and only numbers that a store can keep."""

from __future__ import annotations

import pytest

from halimede.bus.ordering import SequenceNumber, check_epoch
from halimede.errors import InvalidFieldError

#: stated here again, so that a change in the product is noticed
MAX_INTEGER = 2**63 - 1


@pytest.mark.parametrize(
    ("earlier", "later"), [((1, 1), (1, 2)), ((1, 9), (2, 1)), ((0, 1), (MAX_INTEGER, MAX_INTEGER)), ((3, 7), (3, 8))]
)
def test_what_is_later_overtakes_what_is_earlier_and_never_the_other_way(
    earlier: tuple[int, int], later: tuple[int, int]
) -> None:
    one, other = SequenceNumber(*earlier), SequenceNumber(*later)
    assert one.is_overtaken_by(other)
    assert not other.is_overtaken_by(one)
    assert not one.is_overtaken_by(one)


def test_one_without_a_number_makes_no_claim() -> None:
    assert not SequenceNumber(1, 0).is_overtaken_by(SequenceNumber(2, 5))
    assert not SequenceNumber(1, 5).is_overtaken_by(SequenceNumber(2, 0))


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


@pytest.mark.parametrize(("clock", "latest"), [(0, 2_082_585_600), (1_900_000_000, 2_215_360_000)])
def test_an_epoch_may_be_ten_years_ahead_of_a_clock_which_counts_as_2026_if_it_is_not_set(
    monkeypatch: pytest.MonkeyPatch, clock: int, latest: int
) -> None:
    monkeypatch.setattr("halimede.bus.ordering.time.time", lambda: clock)
    assert check_epoch(latest) == latest
    with pytest.raises(InvalidFieldError, match=f"epoch: {latest + 1}"):
        check_epoch(latest + 1)
