"""Filters, sizes and prefixes: what both adapters take for granted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from halimede.bus import Packet
from halimede.bus.topic_filter import Prefix, matches, overlap, split_shared

levels = st.lists(st.sampled_from(["", "a", "b", "$x"]), min_size=1, max_size=4)
wanted = st.lists(st.sampled_from(["", "a", "b", "+", "$x"]), min_size=1, max_size=4)


@given(wanted, st.booleans(), levels)
def test_filters_match_as_paho_says(filter_: list[str], hash_: bool, topic: list[str]) -> None:
    filter_ = [*filter_, "#"] if hash_ else filter_
    assert matches(filter_, topic) == topic_matches_sub("/".join(filter_), "/".join(topic))


@given(wanted, st.booleans(), wanted, st.booleans(), levels)
def test_filters_that_match_one_topic_overlap(
    one: list[str], one_hash: bool, other: list[str], other_hash: bool, topic: list[str]
) -> None:
    one, other = [*one, "#"] if one_hash else one, [*other, "#"] if other_hash else other
    assert overlap(one, other) == overlap(other, one)
    if matches(one, topic) and matches(other, topic):
        assert overlap(one, other)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("a/+/c", "a/b/c", True),
        ("a/#", "a", True),
        ("a/+", "a/b/c", False),
        ("a/+/c", "+/b/d", False),
        ("#", "$x", False),
    ],
)
def test_filters_without_a_common_topic_do_not_overlap(one: str, other: str, common: bool) -> None:
    assert overlap(one.split("/"), other.split("/")) == common


@pytest.mark.parametrize(("filter_", "split"), [("a/b", ("", "a/b")), ("$share/g/a/+", ("g", "a/+"))])
def test_the_group_of_a_shared_filter_is_split_off(filter_: str, split: tuple[str, str]) -> None:
    assert split_shared(filter_) == split


def test_a_prefix_goes_on_topic_response_topic_and_shared_filters_and_comes_off_again() -> None:
    prefix = Prefix("site/")
    packet = Packet("a/b", b"x", response_topic="c")
    added = prefix.added(packet)
    assert (added.topic, added.response_topic) == ("site/a/b", "site/c")
    assert prefix.removed(added) == packet
    assert prefix.filter("$share/g/a/+") == "$share/g/site/a/+"
    assert prefix.filter("a/#") == "site/a/#"


def test_a_response_topic_outside_the_prefix_is_answered_by_nobody() -> None:
    assert Prefix("site/").removed(Packet("site/a", b"", response_topic="other/c")).response_topic == ""


def test_without_a_prefix_packets_are_passed_on_as_they_are() -> None:
    packet = Packet("a", b"x")
    assert Prefix().added(packet) is packet
    assert Prefix().removed(packet) is packet
    assert Prefix().filter("a") == "a"
