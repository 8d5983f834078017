"""Reads the lists of a JSON object piece by piece (``JsonLists``), for COCO files of any size.

Memory holds one window, a part of the file. A window that ends with whole entries is decoded at once into structs,
which skips all fields that nobody needs. If that fails, the window is halved, and at last one entry is read by Python's
own scanner, which also says what is wrong.
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

#: bytes from which on an incomplete entry is refused
MAX_ENTRY = 4 * 1024 * 1024
#: most and least bytes of a window
MAX_WINDOW, MIN_WINDOW = 256 * 1024, 4 * 1024
#: closing braces in a window that are tried as the end of an entry, because an entry may have objects inside
MAX_END_TRIES = 4
#: bytes that are read at once to find the next token, or the position of an error
BLOCK = 64 * 1024
_SPACE = re.compile(rb"[ \t\r\n]*")
#: all values of a character's bytes after its first one: they do not count as characters
_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))


class JsonLists:
    """The lists of the JSON object in an open file, which is read once.

    ``descriptor``: of the open file of ``size`` bytes. ``name``: of the file, for errors. ``on_bytes``: called with
    each number of bytes that was read.
    """

    def __init__(self, descriptor: int, size: int, name: str, on_bytes: Callable[[int], None]) -> None:
        self._descriptor = descriptor
        self._size = size
        self._name = name
        self._on_bytes = on_bytes
        self._scan_value = json.JSONDecoder().raw_decode
        #: bytes of the file from ``_buffer_offset`` on; ``_position``: index in the buffer of the next byte to parse
        self._buffer = b""
        self._position = 0
        self._buffer_offset = 0
        #: bytes that the next window has at most
        self._window = MAX_WINDOW

    def entries(self, types: Mapping[str, type[msgspec.Struct]]) -> Iterator[tuple[str, int, list[Any]]]:
        """Yield the entries of the lists in ``types``, some at a time: list name, index of the first one, entries.

        ``types``: the struct of an entry, by the name of the list. An entry that is no object is None. Raises
        SampleFileError if the file is no JSON object, or the value of such a name is no list.
        """
        self._begin()
        if self._peek() == b"}":
            return
        while True:
            name = self._value("a name")
            if not isinstance(name, str) or self._peek() != b":":
                raise self._error("a name and a colon are expected")
            self._position += 1
            if self._peek() == b"[":
                for number, values in self._list(name, types.get(name)):
                    yield name, number, values
            elif name in types:
                raise self._error(f"{name} is no list")
            else:
                self._value(name)
            separator = self._peek()
            if separator == b"}":
                return
            if separator != b",":
                raise self._error(f"a comma is expected after {name}")
            self._position += 1

    def _begin(self) -> None:
        """Go to the first name of the object. Raises SampleFileError."""
        self._fill(4)
        if is_utf16(self._buffer):
            raise SampleFileError(f"{self._name}: it {NOT_UTF8}")
        self._position = len(codecs.BOM_UTF8) if self._buffer.startswith(codecs.BOM_UTF8) else 0
        if self._peek() != b"{":
            raise self._error("it is no JSON object")
        self._position += 1

    def _list(self, name: str, entry_type: type[msgspec.Struct] | None) -> Iterator[tuple[int, list[Any]]]:
        """Read a list; yield its entries, some at a time, with the index of the first one.

        ``entry_type``: their struct; None: nothing is yielded. Raises SampleFileError.
        """
        self._position += 1
        if self._peek() == b"]":
            self._position += 1
            return
        decoder = msgspec.json.Decoder(list[entry_type or msgspec.Raw])  # type: ignore[misc]  # a type that is chosen here
        number = 0
        while True:
            values = self._window_entries(decoder)
            if not values:
                values = [_as_struct(self._value(f"{name}[{number}]"), entry_type)]
            if entry_type is not None:
                yield number, values
            number += len(values)
            separator = self._peek()
            if separator not in {b",", b"]"}:
                raise self._error(f"a comma is expected after {name}[{number - 1}]")
            self._position += 1
            if separator == b"]":
                return

    def _window_entries(self, decoder: msgspec.json.Decoder[list[Any]]) -> list[Any]:
        """Return the whole entries in the next window; none if they are irregular or longer than the window."""
        while True:
            self._fill(self._window)
            end = min(len(self._buffer), self._position + self._window)
            for _ in range(MAX_END_TRIES):
                end = self._buffer.rfind(b"}", self._position, end)
                if end < 0:
                    break
                try:
                    values = decoder.decode(b"[" + self._buffer[self._position : end + 1] + b"]")
                except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                    continue
                self._position = end + 1
                self._window = min(2 * self._window, MAX_WINDOW)
                return values
            if self._window <= MIN_WINDOW:
                return []
            self._window //= 2

    def _peek(self) -> bytes:
        """Go to the next byte that is not white space, and return it; empty at the end of the file."""
        while True:
            space = _SPACE.match(self._buffer, self._position)
            self._position = space.end() if space else self._position
            if self._position < len(self._buffer):
                return self._buffer[self._position : self._position + 1]
            if not self._fill(BLOCK):
                return b""

    def _value(self, name_in_error: str) -> Any:
        """Read and return the next JSON value by Python's own scanner. Raises SampleFileError."""
        self._peek()
        window = MIN_WINDOW
        while True:
            self._fill(window)
            data = self._buffer[self._position : self._position + window]
            is_whole = self._buffer_offset + self._position + len(data) >= self._size
            try:
                text = codecs.getincrementaldecoder("utf-8")().decode(data, is_whole)
                value, end = self._scan_value(text)
                if end < len(text) or is_whole:  # otherwise it may be a number that continues
                    self._position += len(text[:end].encode())
                    return value
            except RecursionError:
                raise self._error(f"{name_in_error} is nested too deep") from None
            except UnicodeDecodeError:
                raise self._error("it is not UTF-8") from None
            except ValueError as error:
                if is_whole:
                    reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number that is too long"
                    raise self._error(f"{name_in_error}: no JSON: {reason}") from None
            if len(data) > MAX_ENTRY:
                raise self._error(f"{name_in_error}: no JSON, or over {MAX_ENTRY >> 20} MiB")
            window *= 2

    def _fill(self, size: int) -> int:
        """Read once, up to ``size`` bytes from the position on; return how many bytes were read.

        0: the buffer has them already, or the file ends.
        """
        missing = size - (len(self._buffer) - self._position)
        offset = self._buffer_offset + len(self._buffer)
        if missing <= 0 or offset >= self._size:
            return 0
        data = os.pread(self._descriptor, min(missing, self._size - offset), offset)
        if not data:  # it was cut off meanwhile
            self._size = offset
            return 0
        self._on_bytes(len(data))
        self._buffer = self._buffer[self._position :] + data
        self._buffer_offset += self._position
        self._position = 0
        return len(data)

    def _error(self, message: str) -> SampleFileError:
        """Return the error with this message and the number of characters before the present position."""
        position, offset, end = 0, 0, self._buffer_offset + self._position
        while offset < end and (data := os.pread(self._descriptor, min(BLOCK, end - offset), offset)):
            position += len(data.translate(None, _CONTINUATION_BYTES)) - (
                offset == 0 and data.startswith(codecs.BOM_UTF8)
            )
            offset += len(data)
        return SampleFileError(f"{self._name}: {message} (at character {position})")


def _as_struct(entry: Any, entry_type: type[msgspec.Struct] | None) -> Any:
    """Return an object as a struct; None for any other value, or without a type."""
    if entry_type is None or not isinstance(entry, dict):
        return None
    return entry_type(**{name: entry.get(name) for name in entry_type.__struct_fields__})
