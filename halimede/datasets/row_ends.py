"""Counts the rows of a block by the values of their last field, in a few steps for all rows.

The reversed ends of the rows are the lines of a matrix that is as wide as the longest value with its separator. Each
byte of the matrix becomes bits, one for each value that has this byte at this position, or ends before it. A column of
bits is one large integer, and the conjunction of all columns has the bit of each row's value.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

#: values with a bit in one byte, and rows that are packed by one call
BITS, ROWS = 8, 256
#: most columns of bits: with more of them, splitting the rows is faster
MAX_COLUMNS = 24


def is_faster(values: Sequence[bytes]) -> bool:
    """Whether counting rows by these values of their last field is faster than splitting the rows."""
    return _width(values) * -(-len(values) // BITS) <= MAX_COLUMNS


def count_ends(data: bytes, separator: bytes, values: tuple[bytes, ...]) -> dict[bytes, int]:
    """Return by value the number of rows of ``data`` that end with the separator and that value.

    ``data`` ends with a newline; no value contains the separator.
    """
    rows = data[-2::-1].split(b"\n")
    number, width = len(rows), _width(values)
    rows += [b""] * (-number % ROWS)
    pack = _layout(width).pack
    ends = b"".join([pack(*rows[at : at + ROWS]) for at in range(0, len(rows), ROWS)])
    columns = [ends[at : number * width : width] for at in range(width)]
    counts: dict[bytes, int] = {}
    for start in range(0, len(values), BITS):
        group = values[start : start + BITS]
        matches = -1
        for column, table in zip(columns, _bit_tables(group, separator, width), strict=True):
            matches &= int.from_bytes(column.translate(table), "little")
        bits = matches.to_bytes(number, "little")
        counts |= {value: bits.count(1 << bit) for bit, value in enumerate(group)}
    return counts


def _width(values: Sequence[bytes]) -> int:
    """Return the number of bytes of the longest value with a separator."""
    return max(map(len, values)) + 1


@lru_cache(maxsize=MAX_COLUMNS)
def _layout(width: int) -> Struct:
    """Return what packs ``ROWS`` rows into ``width`` bytes each."""
    return Struct(f"{width}s" * ROWS)


@lru_cache(maxsize=MAX_COLUMNS)
def _bit_tables(values: tuple[bytes, ...], separator: bytes, width: int) -> list[bytes]:
    """Return for each column of bytes the table that translates its bytes to bits, one bit for each value."""
    ends = [value[::-1] + separator for value in values]
    return [
        bytes(
            sum(1 << bit for bit, end in enumerate(ends) if end[at : at + 1] in (b"", bytes([byte])))
            for byte in range(256)
        )
        for at in range(width)
    ]
