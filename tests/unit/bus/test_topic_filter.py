"""Filters, sizes and prefixes: what both adapters take for granted."""

from __future__ import annotations

import itertools

import pytest
from paho.mqtt.client import topic_matches_sub

from halimede.bus import Packet
from halimede.bus.mqtt5 import encoder
from halimede.bus.topic_filter import Prefix, check_size, has_overlap, matches, packet_size, split_shared
from halimede.errors import TooLargeError

#: stated here again, so that a change in the product is noticed
FEW, OVERHEAD = 3, 589_888

TOPICS = [list(topic) for length in (1, 2, 3) for topic in itertools.product(["", "a", "b", "$x"], repeat=length)]
FILTERS = [
    [*filter_, *hash_]
    for length in (1, 2)
    for filter_ in itertools.product(["", "a", "b", "+", "$x"], repeat=length)
    for hash_ in ([], ["#"])
] + [["#"]]


def test_filters_match_as_paho_says() -> None:
    for filter_, topic in itertools.product(FILTERS, TOPICS):
        assert matches(filter_, topic) == topic_matches_sub("/".join(filter_), "/".join(topic)), (filter_, topic)


def test_filters_overlap_if_one_topic_matches_both() -> None:
    matched = [{number for number, topic in enumerate(TOPICS) if matches(filter_, topic)} for filter_ in FILTERS]
    for (one, topics), (other, other_topics) in itertools.product(zip(FILTERS, matched, strict=True), repeat=2):
        assert has_overlap(one, other) == bool(topics & other_topics), (one, other)


@pytest.mark.parametrize(
    ("one", "other", "common"), [("a/+/c", "a/b/c", True), ("a/+", "a/b/c", False), ("a/+/c", "+/b/d", False)]
)
def test_filters_without_a_common_topic_do_not_overlap(one: str, other: str, common: bool) -> None:
    assert has_overlap(one.split("/"), other.split("/")) == common
    assert has_overlap(other.split("/"), one.split("/")) == common


@pytest.mark.parametrize(("filter_", "split"), [("a/b", ("", "a/b")), ("$share/g/a/+", ("g", "a/+"))])
def test_the_group_of_a_shared_filter_is_split_off(filter_: str, split: tuple[str, str]) -> None:
    assert split_shared(filter_) == split


def test_a_prefix_goes_on_topic_response_topic_and_shared_filters_and_comes_off_again() -> None:
    prefix = Prefix("site/")
    packet = Packet("a/b", b"x", response_topic="c")
    added = prefix.add_to(packet)
    assert (added.topic, added.response_topic) == ("site/a/b", "site/c")
    assert prefix.remove_from(added) == packet
    assert prefix.filter("$share/g/a/+") == "$share/g/site/a/+"
    assert prefix.filter("a/#") == "site/a/#"


def test_a_response_topic_outside_the_prefix_is_answered_by_nobody() -> None:
    assert Prefix("site/").remove_from(Packet("site/a", b"", response_topic="other/c")).response_topic == ""


def test_without_a_prefix_packets_are_passed_on_as_they_are() -> None:
    packet = Packet("a", b"x")
    assert Prefix().add_to(packet) is packet
    assert Prefix().remove_from(packet) is packet
    assert Prefix().filter("a") == "a"


@pytest.mark.parametrize("size", [127 - 4, 128 - 4, 16_383 - 4, 16_384 - 4, 2_097_151 - 4, 2_097_152 - 4])
def test_the_size_of_a_packet_is_that_of_what_is_written(size: int) -> None:
    packet = Packet("t", bytes(size), qos=0)
    assert packet_size(packet) == len(encoder.publish(packet, 0, size)) + size


@pytest.mark.parametrize(
    ("most", "properties", "counted"),
    [(2 + OVERHEAD, FEW, False), (1 + OVERHEAD, FEW, True), (2 + OVERHEAD, FEW + 1, True)],
)
def test_a_packet_is_counted_if_it_has_many_properties_or_may_be_over_the_limit(
    most: int, properties: int, counted: bool
) -> None:
    packet = Packet("t", b"x", properties=(("n", "v"),) * properties, tail=b"y")
    assert check_size(packet, most) == (packet_size(packet) if counted else 2)


def test_a_packet_may_have_as_many_bytes_as_the_limit() -> None:
    packet = Packet("t", b"x", tail=b"y")
    assert check_size(packet, 10) == packet_size(packet) == 10
    with pytest.raises(TooLargeError, match="t: 10 bytes are over the broker's limit of 9"):
        check_size(packet, 9)


def test_what_is_not_counted_is_the_most_that_a_packet_of_few_properties_can_have_beside_its_body() -> None:
    text = "x" * 65_535
    largest = Packet(
        text, b"", response_topic=text, correlation=text.encode(), expiry_s=1, properties=((text, text),) * 3
    )
    assert packet_size(largest) <= OVERHEAD
