"""Names with ``/ + # NUL ..``, 64 KiB long or in odd Unicode are refused before any topic or path is built."""

from __future__ import annotations

import pytest

from halimede.bus.memory import MemoryBroker, MemoryBus
from halimede.bus.mqtt import MqttBus
from halimede.errors import InvalidFieldError
from halimede.names import Key, check_label, check_name
from halimede.topics import CONTRACT

HOSTILE = [
    "",
    "/",
    "a/b",
    "+",
    "a+",
    "#",
    "a/#",
    "\0",
    "a\0b",
    ".",
    "..",
    "../x",
    "a..b",
    "a.",
    ".a",
    "-a",
    "a-",
    "$SYS",
    "$share",
    "A",
    "a b",
    "a\n",
    "\na",
    "a\r\nb",
    "a" * 65_536,
    "a." * 32_768 + "a",
    "\u0430",  # Cyrillic a
    "\uff41",  # full-width a
    "e\u0301",  # with a combining accent
    "\u202ea",  # right-to-left override
    "\ud800",  # a lone surrogate
    "a\u200b",  # zero-width space
    "\u0661",  # a digit, but not one of ours
    "%2e%2e",
    "a\\b",
    "~",
    "a;b",
]
each_name = pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name[:12]))


@each_name
def test_attack_01_no_check_lets_it_pass(name: str) -> None:
    for check in (check_label, check_name):
        with pytest.raises(InvalidFieldError) as caught:
            check("metadata.name", name)
        assert len(str(caught.value)) < 500


@each_name
def test_attack_01_no_topic_or_filter_is_built(name: str) -> None:
    for topic in CONTRACT:
        for field in topic.fields:
            names = {**dict.fromkeys(topic.fields, "ok"), field: name}
            with pytest.raises(InvalidFieldError):
                topic.at(**names)
            with pytest.raises(InvalidFieldError):
                topic.filter(**names)
            assert topic.parse(topic.template.format_map(names)) is None
        if name:  # an empty group means: not shared
            with pytest.raises(InvalidFieldError):
                topic.filter(group=name)


@each_name
def test_attack_01_no_key_is_read_and_no_client_id_taken(name: str) -> None:
    with pytest.raises(InvalidFieldError):
        Key.parse(f"default/models/{name}")
    with pytest.raises(InvalidFieldError):
        MemoryBus(name, MemoryBroker())
    with pytest.raises(InvalidFieldError):
        MqttBus(name, "127.0.0.1:1883")
