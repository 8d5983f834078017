"""Reads a file of UTF-8 text in blocks, whose lines may end with LF, CR LF or CR: ``text_blocks``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from halimede.sample_files.rules import SampleFileError

#: bytes of a block: small enough that the derived data stays in the processor's cache, and in the allocator's free
#: lists
BLOCK = 64 * 1024
#: the byte order marks of UTF-16
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
#: part of the error about such a file
NOT_UTF8 = "is UTF-16: write it as UTF-8"
_LONE_CR = re.compile(rb"\r(?!\n)")


def is_utf16(head: bytes) -> bool:
    """Whether the first bytes of a text are UTF-16: by its mark, or by zeros only in even or only in odd positions.

    Zeros in both are no text: the file has a size, and no content yet.
    """
    halves_with_zeros = {position % 2 for position, byte in enumerate(head[:4]) if byte == 0}
    return head.startswith(UTF16_MARKS) or len(halves_with_zeros) == 1


def contains_text(head: bytes, text: str) -> bool:
    """Whether the first bytes of a file contain a text, in UTF-8 or UTF-16."""
    return any(text.encode(encoding) in head for encoding in ("utf-8", "utf-16-le", "utf-16-be"))


def text_blocks(descriptor: int, name: str, begin: int, end: int, block: int = BLOCK) -> Iterator[bytes]:
    """Yield blocks of at most ``block`` bytes between two positions of an open file.

    A CR that no LF follows becomes an LF, so positions stay the same. A CR at the end of the file stays, because an LF
    may follow when the file grows. ``name``: of the file, for errors. Raises SampleFileError for UTF-16, OSError.
    """
    offset = begin
    while offset < end and (data := os.pread(descriptor, min(block, end - offset), offset)):
        if offset == 0 and is_utf16(data):
            raise SampleFileError(f"{name} {NOT_UTF8}")
        offset += len(data)
        if b"\r" in data:
            data = _with_newlines(data, os.pread(descriptor, 1, offset) or b"\n")
        yield data


def _with_newlines(data: bytes, following: bytes) -> bytes:
    """Return ``data`` with LF for each CR that no LF follows. ``following``: the byte after ``data``."""
    if data.count(b"\r") == data.count(b"\r\n"):
        return data
    return _LONE_CR.sub(b"\n", data + following)[: len(data)]
