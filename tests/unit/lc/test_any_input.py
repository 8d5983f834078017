"""Quantities of a pod template and places in a log: any value is taken or refused, and what is read is exact."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede import codec, topics
from halimede.api.quantity import quantity
from halimede.errors import InvalidFieldError
from halimede.messages import LogsRequest
from services.lc.worker_files import MAX_PART, read_part
from tests.anything import attempt, json_values, texts

UNITS = {"": Fraction(1), "m": Fraction(1, 1000), "k": Fraction(1000), "Ki": Fraction(1024), "Gi": Fraction(1024) ** 3}


@pytest.fixture(scope="module")
def log() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "worker.log"
        path.write_text("".join(f"line {number}: ä€😀\n" for number in range(200)))
        yield path


@given(json_values | texts | st.from_regex(r"\A[0-9.]{1,6}[eE]?[+-]?[0-9]{0,3}[a-zA-Z]{0,2}\Z"))
def test_any_value_is_a_positive_quantity_or_refused(value: object) -> None:
    found, refused = attempt(quantity, "limits.cpu", value, refusal=InvalidFieldError)
    if found is None:
        assert refused
        assert refused.field == "limits.cpu"
        return
    assert 0 < found < Fraction(10) ** 120


@given(st.integers(1, 10**15), st.integers(0, 999), st.sampled_from(sorted(UNITS)))
def test_a_quantity_is_exact(whole: int, part: int, unit: str) -> None:
    assert quantity("f", f"{whole}.{part:03}{unit}") == (whole + Fraction(part, 1000)) * UNITS[unit]


@given(offset=st.integers() | st.integers(-9000, 9000), limit=st.integers(1, 1_048_576) | st.integers(1, 50))
def test_any_part_of_a_log_is_a_part_of_it(log: Path, offset: int, limit: int) -> None:
    request = LogsRequest(namespace="default", worker="w", offset=offset, limit=limit)
    read = codec.decode(topics.LOGS_REQUEST, codec.encode(topics.LOGS_REQUEST, request))
    reply = read_part(log, read.offset, min(read.limit, MAX_PART))
    whole = log.read_bytes()
    assert 0 <= reply.offset <= len(whole)
    # a part may begin within a character, which is then shown as one that cannot be read
    assert reply.text.lstrip("\N{REPLACEMENT CHARACTER}") in whole.decode()
    assert len(reply.text.encode(errors="replace")) <= 3 * limit


@given(start=st.integers(0, 3000), limit=st.integers(4, 3000))
def test_parts_join_without_a_gap(log: Path, start: int, limit: int) -> None:
    whole = log.read_bytes()
    start = whole.index(b"\n", start) + 1  # where a line begins
    text, offset = "", start
    while (part := read_part(log, offset, limit)).text:
        assert part.offset > offset
        text, offset = text + part.text, part.offset
    assert text == whole[start:].decode()
