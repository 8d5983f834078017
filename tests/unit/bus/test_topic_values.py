"""The names in a topic are read once, nobody can change them, and what is remembered is bounded."""

from __future__ import annotations

import pytest

from halimede import topics
from halimede.bus.port import AddressCache
from halimede.errors import DecodeError

#: stated here again, so that a change in the product is noticed
MOST_CACHED, LONGEST_CACHED = 4096, 512

AT = topics.REPLY.at(ns="n", service="s", worker="w")


def test_a_topic_is_read_once_and_its_names_cannot_be_changed() -> None:
    addresses = AddressCache(topics.REPLY)
    address, names = addresses[AT.text]
    assert (address, names) == (AT, {"ns": "n", "service": "s", "worker": "w"})
    assert addresses[AT.text][0] is address
    with pytest.raises(TypeError):
        names["ns"] = "other"  # type: ignore[index]


def test_a_name_that_is_not_valid_is_refused_each_time_and_not_remembered() -> None:
    addresses = AddressCache(topics.REPLY)
    for _ in range(2):
        with pytest.raises(DecodeError, match="a name in the topic is not valid"):
            addresses[AT.text.replace("/w", "/W!")]
    assert not addresses


def test_what_is_remembered_is_bounded() -> None:
    addresses = AddressCache(topics.REPLY)
    for number in range(MOST_CACHED):
        addresses[topics.REPLY.at(ns="n", service="s", worker=f"w{number}").text]
    assert len(addresses) == MOST_CACHED
    assert addresses[AT.text]
    assert list(addresses) == [AT.text]


@pytest.mark.parametrize("length", [LONGEST_CACHED, LONGEST_CACHED + 1])
def test_a_long_topic_is_not_remembered(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses, text = AddressCache(topics.REPLY), "t" * length
    monkeypatch.setattr(type(topics.REPLY), "parse", lambda *_: {"ns": "n"})
    assert addresses[text][1] == {"ns": "n"}
    assert (text in addresses) == (length == LONGEST_CACHED)
