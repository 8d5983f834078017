"""What a topic is: a typed value with a template, and the only way from names to a topic string and back.

A topic is built only through ``at`` and ``filter``, which check each name, so that no input reaches one unchecked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Generic, TypeVar

from halimede.errors import InvalidFieldError
from halimede.names import check_label, check_name

M = TypeVar("M")

#: names that are RFC 1123 labels; all others are subdomains
LABELS = frozenset({"ns", "plural", "camera", "hop"})
#: topics whose names are remembered once they were read, up to a length: the same few come with every sample
REMEMBERED, LONGEST = 4096, 512


def _check(field: str, value: str) -> str:
    return check_label(field, value) if field in LABELS else check_name(field, value)


class Role(StrEnum):
    """Who speaks on the bus."""

    GM = "gm"
    LC = "lc"
    EDGE = "edge worker"
    CLOUD = "cloud worker"
    CAMERA = "camera"
    OPERATOR = "operator"
    CONSUMER = "consumer"
    #: a broker of a place that passes on what others there say: it has their rights, and no topic of its own
    BRIDGE = "bridge"


class BodyEncoding(StrEnum):
    """How a body is written."""

    JSON = "json"
    MSGPACK = "msgpack"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Topic(Generic[M]):
    """One topic of the contract. Names in braces are filled by ``at`` and read back by ``parse``.

    Between two who may both be anybody, ``speaker`` and ``listener`` say which names are theirs: as the broker knows
    them (``gm``, ``lc.edge0``), so that nobody speaks for another or hears what is for another.
    """

    id: str
    template: str
    message: type[M]
    publishers: tuple[Role, ...]
    subscribers: tuple[Role, ...]
    doc: str
    encoding: BodyEncoding = BodyEncoding.JSON
    qos: int = 1
    retain: bool = False
    shared: bool = False
    speaker: str = ""
    listener: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names that the template asks for, in order."""
        return _fields(self.template)

    def at(self, **names: str) -> Address[M]:
        """Return the topic with all names filled in; raise InvalidFieldError on a bad name."""
        text = _filled(self.template, tuple(names.items()))
        if not text:
            raise TypeError(f"{self.id} takes {self.fields}, got {tuple(names)}")
        return Address(self, text)

    def filter(self, *, group: str = "", **names: str) -> Filter[M]:
        """Return a subscription: names left out match anything; ``group`` makes it a shared one."""
        unknown = set(names) - set(self.fields)
        if unknown:
            raise TypeError(f"{self.id} takes {self.fields}, got {tuple(unknown)}")
        filled = {k: _check(k, names[k]) if k in names else "+" for k in self.fields}
        text = self.template.format_map(filled)
        return Filter(self, f"$share/{_check('group', group)}/{text}" if group else text)

    def parse(self, topic: str) -> dict[str, str] | None:
        """Return the names in ``topic``, or None if it is not of this template or a name breaks the rules."""
        names = (_remembered if len(topic) <= LONGEST else _parsed)(self.template, topic)
        return dict(names) if names is not None else None


@lru_cache(maxsize=REMEMBERED)
def _filled(template: str, names: tuple[tuple[str, str], ...]) -> str:
    """Return a template with its names filled in, empty if it asks for others. Raises InvalidFieldError."""
    if {field for field, _ in names} != set(_fields(template)):
        return ""
    return template.format_map({field: _check(field, value) for field, value in names})


@lru_cache(maxsize=REMEMBERED)
def _fields(template: str) -> tuple[str, ...]:
    return tuple(re.findall(r"{(\w+)}", template))


def _parsed(template: str, topic: str) -> Mapping[str, str] | None:
    parts, wanted = topic.split("/"), template.split("/")
    if len(parts) != len(wanted):
        return None
    names: dict[str, str] = {}
    for part, pattern in zip(parts, wanted, strict=True):
        if pattern.startswith("{"):
            names[pattern[1:-1]] = part
        elif part != pattern:
            return None
    try:
        return {k: _check(k, v) for k, v in names.items()}
    except InvalidFieldError:
        return None


_remembered = lru_cache(maxsize=REMEMBERED)(_parsed)


@dataclass(frozen=True, slots=True)
class Address(Generic[M]):
    """A topic with its names filled in: what one publishes to."""

    topic: Topic[M]
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Filter(Generic[M]):
    """A subscription of one topic of the contract."""

    topic: Topic[M]
    text: str

    def __str__(self) -> str:
        return self.text
