"""Topics: typed values with a template, the only conversion between names and topic strings.

Topics are built only through ``at`` and ``filter``, which check each name, so that no unchecked input reaches one.
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
#: most topics whose names are cached, and most characters of one: samples use the same few topics
REMEMBERED, LONGEST = 4096, 512


def _check(field: str, value: str) -> str:
    return check_label(field, value) if field in LABELS else check_name(field, value)


class Role(StrEnum):
    """Roles of clients of the bus."""

    GM = "gm"
    LC = "lc"
    EDGE = "edge worker"
    CLOUD = "cloud worker"
    CAMERA = "camera"
    OPERATOR = "operator"
    CONSUMER = "consumer"
    #: a site's broker that forwards messages of its clients: it has their rights, and no topics itself
    BRIDGE = "bridge"


class BodyEncoding(StrEnum):
    """Encodings of a body."""

    JSON = "json"
    MSGPACK = "msgpack"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Topic(Generic[M]):
    """One topic of the contract. Names in braces are filled by ``at`` and read back by ``parse``.

    For a topic on which any client may publish or subscribe, ``speaker`` and ``listener`` name the fields with their
    names at the broker (``gm``, ``lc.edge0``), so that no client publishes for another one or receives its messages.
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
        """The names in the template, in order."""
        return _fields(self.template)

    def at(self, **names: str) -> Address[M]:
        """Return the topic with all names filled in; raise InvalidFieldError for a bad name."""
        text = _filled(self.template, tuple(names.items()))
        if not text:
            raise TypeError(f"{self.id} takes {self.fields}, got {tuple(names)}")
        return Address(self, text)

    def filter(self, *, group: str = "", **names: str) -> Filter[M]:
        """Return a subscription: missing names match anything; ``group`` makes it a shared one."""
        unknown = set(names) - set(self.fields)
        if unknown:
            raise TypeError(f"{self.id} takes {self.fields}, got {tuple(unknown)}")
        filled = {k: _check(k, names[k]) if k in names else "+" for k in self.fields}
        text = self.template.format_map(filled)
        return Filter(self, f"$share/{_check('group', group)}/{text}" if group else text)

    def parse(self, topic: str) -> dict[str, str] | None:
        """Return the names in ``topic``, or None if it does not match the template or a name is invalid."""
        names = (_remembered if len(topic) <= LONGEST else _parsed)(self.template, topic)
        return dict(names) if names is not None else None


@lru_cache(maxsize=REMEMBERED)
def _filled(template: str, names: tuple[tuple[str, str], ...]) -> str:
    """Return a template with its names filled in, empty if the names differ. Raises InvalidFieldError."""
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
    """A topic with its names filled in, to publish to."""

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
