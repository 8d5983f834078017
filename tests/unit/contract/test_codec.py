"""The codec: any bytes give a message or a DecodeError, at a cost that the size limit bounds."""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec
import pytest

from halimede import codec, topics
from halimede import messages as m
from halimede.errors import DecodeError, TooLargeError
from halimede.topic import Topic
from halimede.topics import CONTRACT

each_topic = pytest.mark.parametrize("topic", CONTRACT, ids=lambda topic: topic.id)
FRAME = m.Frame(id=bytes(16), encoding="raw", dtype="uint8", shape=[2, 2, 3], data=memoryview(bytes(12)))


@pytest.mark.parametrize("cut", range(0, 100, 7))
def test_a_truncated_frame_is_refused(cut: int) -> None:
    payload = codec.encode(topics.REQUEST, FRAME)
    with pytest.raises(DecodeError):
        codec.decode(topics.REQUEST, payload[: cut % len(payload)])


def test_a_frame_is_plain_msgpack_and_its_data_are_not_copied() -> None:
    payload = codec.encode(topics.REQUEST, FRAME)
    assert msgpack.unpackb(payload)["data"] == bytes(12)
    assert list(msgpack.unpackb(payload))[-1] == "data"
    data = codec.decode(topics.REQUEST, payload).data
    assert isinstance(data, memoryview)
    assert data.obj is payload


def test_json_nested_100_000_levels_deep_is_refused() -> None:  # attack 7 shows the same of MessagePack
    with pytest.raises(DecodeError):
        codec.decode(topics.API_REPLY, b'{"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@pytest.mark.parametrize(
    "head", [b"\xc6\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff"]
)
def test_a_huge_declared_length_without_the_bytes_is_refused(head: bytes) -> None:
    for payload in (head, b"\x81\xa4data" + head):
        with pytest.raises(DecodeError):
            codec.decode(topics.REQUEST, payload)


@each_topic
def test_a_body_over_the_limit_is_refused_in_both_directions(topic: Topic[Any]) -> None:
    limit = codec.LIMITS[topic.encoding]
    with pytest.raises(DecodeError, match="over the limit"):
        codec.decode(topic, bytes(limit + 1))
    with pytest.raises(TooLargeError, match=f"{limit + 1} bytes is over the limit of {limit}"):
        codec.encode(topic, msgspec.Raw(bytes(limit + 1)))
    assert len(codec.encode(topic, msgspec.Raw(bytes(limit)))) == limit


def test_an_error_names_the_field_but_shows_nothing_of_the_payload() -> None:
    with pytest.raises(DecodeError) as caught:
        codec.decode(topics.SYNC, b'{"epoch": "s3cret"}')
    assert "epoch" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_unknown_fields_are_skipped_so_that_newer_peers_may_add_some() -> None:
    assert codec.decode(topics.SYNCED, b'{"epoch": 1, "count": 2, "new": {"a": [1]}}') == m.Synced(epoch=1, count=2)
