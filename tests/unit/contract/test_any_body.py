"""Every body of the contract: what is valid comes back as it was, anything else is a DecodeError and nothing worse."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halimede import codec, topics
from halimede.contract.examples import EXAMPLES
from halimede.errors import DecodeError
from halimede.topic import BodyEncoding, Topic
from halimede.topics import CONTRACT
from tests.anything import is_struct, json_values, plain_values, spoiled, valid
from tests.properties import examples

TYPED = [topic for topic in CONTRACT if is_struct(topic.message)]
named = {"ids": lambda topic: topic.id}
#: of each topic: there are dozens of them
few = examples(15)


@pytest.mark.parametrize("topic", TYPED, **named)
@few
@given(st.data())
def test_a_valid_body_comes_back_as_it_was(topic: Topic[Any], data: st.DataObject) -> None:
    body = data.draw(valid(topic.message))
    assert codec.decode(topic, codec.encode(topic, body)) == body


@pytest.mark.parametrize("topic", [topic for topic in CONTRACT if topic.encoding is not BodyEncoding.BYTES], **named)
@few
@given(st.data())
def test_any_data_of_its_encoding_is_a_body_or_a_decode_error(topic: Topic[Any], data: st.DataObject) -> None:
    if topic.encoding is BodyEncoding.JSON:
        read(topic, json.dumps(data.draw(json_values)).encode())
    else:
        read(topic, msgpack.packb(data.draw(plain_values)))


@pytest.mark.parametrize("topic", TYPED, **named)
@few
@given(st.data())
def test_a_spoiled_body_is_one_that_can_be_passed_on_or_a_decode_error(topic: Topic[Any], data: st.DataObject) -> None:
    example = EXAMPLES[topic.id]
    body = data.draw(spoiled(msgspec.to_builtins(example, builtin_types=[memoryview, bytes])))
    if topic.encoding is BodyEncoding.JSON:
        read(topic, json.dumps(body, allow_nan=False, default=str).encode())
    else:
        with contextlib.suppress(OverflowError):  # no number of more than 64 bits can be written
            read(topic, msgpack.packb(body))


@pytest.mark.parametrize("topic", TYPED, **named)
@few
@given(st.data())
def test_a_body_with_one_spoiled_byte_is_a_body_or_a_decode_error(topic: Topic[Any], data: st.DataObject) -> None:
    payload = bytearray(codec.encode(topic, EXAMPLES[topic.id]))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    read(topic, bytes(payload))


def read(topic: Topic[Any], payload: bytes) -> None:
    """Decode; a body that is accepted can be sent on: whoever adds bodies up or stores them relies on that."""
    try:
        body = codec.decode(topic, payload)
    except DecodeError:
        return
    if is_struct(topic.message):
        written = codec.encode(topic, body)
        assert codec.encode(topic, codec.decode(topic, written)) == written


@pytest.mark.parametrize("epoch", [-1, 2**63, 10**30, 0.5, "1", None])
def test_a_count_is_what_64_bits_hold(epoch: object) -> None:
    with pytest.raises(DecodeError, match="epoch"):
        codec.decode(topics.SYNC, json.dumps({"epoch": epoch}).encode())
