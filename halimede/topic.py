"""MQTT topics as typed values with a template: the only conversion between names and topic strings.

``halimede/topics.py`` lists all topics. A topic's string is made only by ``Topic.at`` (to publish) and ``Topic.filter``
(to subscribe). Both check each name, so no unchecked input gets into a topic.
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

#: fields of templates whose values are RFC 1123 labels; the values of all others are RFC 1123 subdomains
LABELS = frozenset({"ns", "plural", "camera", "hop"})
#: most topics whose names are cached, and most characters of a cached topic: samples use the same few topics
MOST_CACHED, LONGEST_CACHED = 4096, 512


def _check(field: str, value: str) -> str:
    """Return ``value`` if it is a valid name for this field of a template. Raises InvalidFieldError."""
    return check_label(field, value) if field in LABELS else check_name(field, value)


class Role(StrEnum):
    """Roles of the broker's clients. The broker's access rules are made from them."""

    GM = "gm"
    LC = "lc"
    EDGE = "edge worker"
    CLOUD = "cloud worker"
    CAMERA = "camera"
    OPERATOR = "operator"
    CONSUMER = "consumer"
    #: a place's broker that forwards messages of its clients: it has their rights, and no topics itself
    BRIDGE = "bridge"


class BodyEncoding(StrEnum):
    """How the body of a message becomes its payload. ``BYTES``: the body is the payload, such as a picture's file."""

    JSON = "json"
    MSGPACK = "msgpack"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Topic(Generic[M]):
    """One topic of the contract, such as ``{ns}/sedna/frames/{camera}``, with the type of its messages.

    Attributes:
        id: its name in ``topics.md`` and in messages to users.
        template: the topic, with a field in braces at each level that differs. ``at`` fills the fields with names, and
            ``parse`` reads the names back.
        message: the type of the body.
        publishers: the roles whose clients may publish to the topic.
        subscribers: the roles whose clients may subscribe to it.
        doc: what a message says, for ``topics.md``.
        encoding: how the body becomes the payload.
        qos: MQTT's quality of service: 0 (at most once) or 1 (at least once).
        retain: the broker keeps the latest message for new subscribers.
        shared: the subscribers form groups, and each message goes to one client of a group.
        speaker: the field that holds the publisher's name at the broker (``gm``, ``lc.edge0``), so that no client
            publishes as another; empty: there is none.
        listener: the field that holds the subscriber's name at the broker, so that no client receives another's
            messages; empty: there is none.

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
        """The fields of the template, in its order."""
        return _fields(self.template)

    def at(self, **names: str) -> Address[M]:
        """Return the topic to publish to, with a name for each field.

        Raises InvalidFieldError for a name that is not valid, TypeError for a field that is missing or unknown.
        """
        text = _fill(self.template, tuple(names.items()))
        if not text:
            raise TypeError(f"{self.id} takes {self.fields}, got {tuple(names)}")
        return Address(self, text)

    def filter(self, *, group: str = "", **names: str) -> Filter[M]:
        """Return a subscription. A field without a name matches any name.

        ``group``: the clients that subscribe with the same group share the messages; empty: each client receives all.
        Raises InvalidFieldError for a name or group that is not valid, TypeError for an unknown field.
        """
        unknown = set(names) - set(self.fields)
        if unknown:
            raise TypeError(f"{self.id} takes {self.fields}, got {tuple(unknown)}")
        filled = {k: _check(k, names[k]) if k in names else "+" for k in self.fields}
        text = self.template.format_map(filled)
        return Filter(self, f"$share/{_check('group', group)}/{text}" if group else text)

    def parse(self, topic: str) -> dict[str, str] | None:
        """Return the name of each field in ``topic``; None if it does not match the template or a name is invalid."""
        names = (_parse_cached if len(topic) <= LONGEST_CACHED else _parse)(self.template, topic)
        return dict(names) if names is not None else None


@lru_cache(maxsize=MOST_CACHED)
def _fill(template: str, names: tuple[tuple[str, str], ...]) -> str:
    """Return a template filled with (field, name) pairs; empty if their fields are not those of the template.

    Raises InvalidFieldError for a name that is not valid.
    """
    if {field for field, _ in names} != set(_fields(template)):
        return ""
    return template.format_map({field: _check(field, value) for field, value in names})


@lru_cache(maxsize=MOST_CACHED)
def _fields(template: str) -> tuple[str, ...]:
    """Return the fields of a template, in its order."""
    return tuple(re.findall(r"{(\w+)}", template))


def _parse(template: str, topic: str) -> Mapping[str, str] | None:
    """Return the name of each field in ``topic``; None if it does not match the template or a name is invalid."""
    levels, patterns = topic.split("/"), template.split("/")
    if len(levels) != len(patterns):
        return None
    names: dict[str, str] = {}
    for level, pattern in zip(levels, patterns, strict=True):
        if pattern.startswith("{"):
            names[pattern[1:-1]] = level
        elif level != pattern:
            return None
    try:
        return {k: _check(k, v) for k, v in names.items()}
    except InvalidFieldError:
        return None


_parse_cached = lru_cache(maxsize=MOST_CACHED)(_parse)


@dataclass(frozen=True, slots=True)
class Address(Generic[M]):
    """A topic to publish to. ``text``: the string that the broker gets, in which each field has a name."""

    topic: Topic[M]
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Filter(Generic[M]):
    """A subscription to a topic. ``text``: MQTT's topic filter, with ``+`` for any name and with the group, if any."""

    topic: Topic[M]
    text: str

    def __str__(self) -> str:
        return self.text
