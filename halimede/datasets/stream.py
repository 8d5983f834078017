"""The lists in a large JSON object, entry by entry: memory holds one entry and one block.

Python's own scanner reads the entries, each of them whole: one that does not end in the block is tried again with more
of the file. Own, because a parser of events costs several times the time for entries that are needed whole anyway.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Iterator
from typing import Any

from halimede.datasets.errors import UNREADABLE, DatasetError
from halimede.datasets.file_blocks import FileBlocks

#: characters of one entry
MAX_ENTRY = 4 * 1024 * 1024
_SPACE = re.compile(r"[ \t\r\n]*")


def lists(source: FileBlocks, names: Collection[str]) -> Iterator[tuple[str, int, Any]]:
    """Yield name, place and value of each entry of the lists with these names. Raises DatasetError."""
    text = _Text(source)
    if text.peek() != "{":
        raise text.error("it is no JSON object")
    text.skip()
    if text.peek() == "}":
        return
    while True:
        name = text.value("a name")
        if not isinstance(name, str) or text.peek() != ":":
            raise text.error("a name and a colon are expected")
        text.skip()
        if text.peek() == "[":
            for number, entry in enumerate(_entries(text, name)):
                if name in names:
                    yield name, number, entry
        else:
            text.value(name)
        if (mark := text.peek()) == "}":
            return
        if mark != ",":
            raise text.error(f"a comma is expected after {name}")
        text.skip()


def _entries(text: _Text, name: str) -> Iterator[Any]:
    text.skip()
    if text.peek() == "]":
        text.skip()
        return
    number = 0
    while True:
        yield text.value(f"{name}[{number}]")
        mark = text.peek()
        if mark not in {",", "]"}:
            raise text.error(f"a comma is expected after {name}[{number}]")
        text.skip()
        if mark == "]":
            return
        number += 1


class _Text:
    """The text from a place on; what is behind is let go."""

    def __init__(self, source: FileBlocks) -> None:
        self._name = source.name
        self._blocks = source.blocks()
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._scan = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._behind = 0
        self._ended = False

    def peek(self) -> str:
        """Return the next character that is no white space, nothing at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if self._ended:
                return ""
            self._fill()

    def skip(self) -> None:
        """Go past the character that ``peek`` has shown."""
        self._at += 1

    def value(self, what: str) -> Any:
        """Return the next value."""
        self.peek()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
                if end < len(self._text) or self._ended:  # else it may be a number that goes on
                    self._at = end
                    return value
            except RecursionError:
                raise self.error(f"{what} is nested too deep") from None
            except ValueError as error:
                if self._ended:
                    reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number that is too long"
                    raise self.error(f"{what}: no JSON: {reason}") from None
            if len(self._text) - self._at > MAX_ENTRY:
                raise self.error(f"{what}: no JSON, or over {MAX_ENTRY >> 20} MiB")
            self._fill()

    def error(self, message: str) -> DatasetError:
        """Return an error that says where."""
        return DatasetError(UNREADABLE, f"{self._name}: {message} (at character {self._behind + self._at})")

    def _fill(self) -> None:
        """Read at least as much again as there is."""
        parts = [self._text[self._at :]]
        self._behind += self._at
        self._at = 0
        wanted = max(1, len(parts[0]))
        try:
            while wanted > 0 and not self._ended:
                block = next(self._blocks, b"")
                self._ended = not block
                parts.append(self._decoder.decode(block, not block))
                wanted -= len(parts[-1])
        except UnicodeDecodeError:
            raise self.error("it is not UTF-8") from None
        self._text = "".join(parts)
