"""The names in a topic are read once, nobody can change them, and what is remembered is bounded."""

from __future__ import annotations

import pytest

from halimede import topics
from halimede.bus.port import LONGEST, REMEMBERED, AddressCache
from halimede.errors import DecodeError

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
    for number in range(2 * REMEMBERED):
        addresses[topics.REPLY.at(ns="n", service="s", worker=f"w{number}").text]
        assert len(addresses) <= REMEMBERED
    assert all(len(text) <= LONGEST for text in addresses)
