"""Reads the lists of a JSON object entry by entry: memory holds one window of the file, however large it is.

A window that ends with whole entries is decoded at once into structs, which skips all fields that nobody needs. If that
fails, the window is halved, and at last one entry is read by Python's own scanner, which also says what is wrong.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from halimede.sample_files.rules import SampleFileError
from halimede.sample_files.text_blocks import NOT_UTF8, is_utf16

#: most characters of one entry
MAX_ENTRY = 4 * 1024 * 1024
#: most and least bytes of a window
MAX_WINDOW, MIN_WINDOW = 256 * 1024, 4 * 1024
#: places in a window that are tried as the end of an entry: an entry may have objects inside
MAX_ENDS = 4
BLOCK = 64 * 1024
_SPACE = re.compile(rb"[ \t\r\n]*")
#: bytes of a character after its first one
_CONTINUED = bytes(range(0x80, 0xC0))


class JsonLists:
    """The lists of an open file. ``came`` is called with each number of bytes that was read."""

    def __init__(self, descriptor: int, size: int, name: str, came: Callable[[int], None]) -> None:
        self._descriptor = descriptor
        self._size = size
        self._name = name
        self._came = came
        self._scan = json.JSONDecoder().raw_decode
        self._buffer = b""
        self._at = 0
        self._behind = 0
        self._window = MAX_WINDOW

    def entries(self, types: Mapping[str, type[msgspec.Struct]]) -> Iterator[tuple[str, int, list[Any]]]:
        """Yield name of a list, position and values of its next entries, for each list that has a type.

        An entry that is no object is None. Raises SampleFileError.
        """
        self._begin()
        if self._peek() == b"}":
            return
        while True:
            name = self._value("a name")
            if not isinstance(name, str) or self._peek() != b":":
                raise self._error("a name and a colon are expected")
            self._at += 1
            if self._peek() == b"[":
                for number, values in self._list(name, types.get(name)):
                    yield name, number, values
            elif name in types:
                raise self._error(f"{name} is no list")
            else:
                self._value(name)
            mark = self._peek()
            if mark == b"}":
                return
            if mark != b",":
                raise self._error(f"a comma is expected after {name}")
            self._at += 1

    def _begin(self) -> None:
        """Go to the first name of the object. Raises SampleFileError."""
        self._fill(4)
        if is_utf16(self._buffer):
            raise SampleFileError(f"{self._name}: it {NOT_UTF8}")
        self._at = len(codecs.BOM_UTF8) if self._buffer.startswith(codecs.BOM_UTF8) else 0
        if self._peek() != b"{":
            raise self._error("it is no JSON object")
        self._at += 1

    def _list(self, name: str, kind: type[msgspec.Struct] | None) -> Iterator[tuple[int, list[Any]]]:
        self._at += 1
        if self._peek() == b"]":
            self._at += 1
            return
        decoder = msgspec.json.Decoder(list[kind or msgspec.Raw])  # type: ignore[misc]  # a type that is chosen here
        number = 0
        while True:
            values = self._quickly(decoder)
            if not values:
                values = [_as_struct(self._value(f"{name}[{number}]"), kind)]
            if kind is not None:
                yield number, values
            number += len(values)
            mark = self._peek()
            if mark not in {b",", b"]"}:
                raise self._error(f"a comma is expected after {name}[{number - 1}]")
            self._at += 1
            if mark == b"]":
                return

    def _quickly(self, decoder: msgspec.json.Decoder[list[Any]]) -> list[Any]:
        """Return the next whole entries of a window, none if they are irregular or longer than the window."""
        while True:
            self._fill(self._window)
            end = min(len(self._buffer), self._at + self._window)
            for _ in range(MAX_ENDS):
                end = self._buffer.rfind(b"}", self._at, end)
                if end < 0:
                    break
                try:
                    values = decoder.decode(b"[" + self._buffer[self._at : end + 1] + b"]")
                except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                    continue
                self._at = end + 1
                self._window = min(2 * self._window, MAX_WINDOW)
                return values
            if self._window <= MIN_WINDOW:
                return []
            self._window //= 2

    def _peek(self) -> bytes:
        """Return the next byte that is not white space, empty at the end."""
        while True:
            space = _SPACE.match(self._buffer, self._at)
            self._at = space.end() if space else self._at
            if self._at < len(self._buffer):
                return self._buffer[self._at : self._at + 1]
            if not self._fill(BLOCK):
                return b""

    def _value(self, what: str) -> Any:
        """Return the next value, by Python's own scanner."""
        self._peek()
        window = MIN_WINDOW
        while True:
            self._fill(window)
            data = self._buffer[self._at : self._at + window]
            is_whole = self._behind + self._at + len(data) >= self._size
            try:
                text = codecs.getincrementaldecoder("utf-8")().decode(data, is_whole)
                value, end = self._scan(text)
                if end < len(text) or is_whole:  # otherwise it may be a number that continues
                    self._at += len(text[:end].encode())
                    return value
            except RecursionError:
                raise self._error(f"{what} is nested too deep") from None
            except UnicodeDecodeError:
                raise self._error("it is not UTF-8") from None
            except ValueError as error:
                if is_whole:
                    reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number that is too long"
                    raise self._error(f"{what}: no JSON: {reason}") from None
            if len(data) > MAX_ENTRY:
                raise self._error(f"{what}: no JSON, or over {MAX_ENTRY >> 20} MiB")
            window *= 2

    def _fill(self, size: int) -> bool:
        """Make the buffer hold at least so many bytes from the position on; return whether it grew."""
        missing = size - (len(self._buffer) - self._at)
        offset = self._behind + len(self._buffer)
        if missing <= 0 or offset >= self._size:
            return False
        data = os.pread(self._descriptor, min(missing, self._size - offset), offset)
        if not data:  # it was cut off meanwhile
            self._size = offset
            return False
        self._came(len(data))
        self._buffer = self._buffer[self._at :] + data
        self._behind += self._at
        self._at = 0
        return True

    def _error(self, message: str) -> SampleFileError:
        """Return an error with the position."""
        position, offset, end = 0, 0, self._behind + self._at
        while offset < end and (data := os.pread(self._descriptor, min(BLOCK, end - offset), offset)):
            position += len(data.translate(None, _CONTINUED)) - (offset == 0 and data.startswith(codecs.BOM_UTF8))
            offset += len(data)
        return SampleFileError(f"{self._name}: {message} (at character {position})")


def _as_struct(entry: Any, kind: type[msgspec.Struct] | None) -> Any:
    if kind is None or not isinstance(entry, dict):
        return None
    return kind(**{name: entry.get(name) for name in kind.__struct_fields__})
