"""Bytes <-> typed messages. The one place that knows encodings; its only failures are DecodeError and TooLargeError.

The size limit is checked before a byte is read, so that no declared length or nesting depth can cost more than that.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from halimede.errors import DecodeError, TooLargeError
from halimede.topic import Encoding, Topic

M = TypeVar("M")

#: bytes; control bodies stay far below, and a frame larger than this is no sample but a mistake
MAX_JSON = 4 * 1024 * 1024
MAX_BYTES = 16 * 1024 * 1024
LIMITS = {Encoding.JSON: MAX_JSON, Encoding.MSGPACK: MAX_BYTES, Encoding.BYTES: MAX_BYTES}

_json = msgspec.json.Encoder(order=None)
_msgpack = msgspec.msgpack.Encoder()


def encode(topic: Topic[M], body: M) -> bytes:
    """Write a body as its topic asks. Raises TooLargeError over the topic's limit."""
    if topic.encoding is Encoding.JSON:
        payload = _json.encode(body)
    elif topic.encoding is Encoding.MSGPACK:
        payload = _msgpack.encode(body)
    else:
        payload = bytes(body)  # type: ignore[call-overload]  # BYTES topics carry buffers
    check_size(topic, len(payload))
    return payload


#: how msgpack writes binary of no bytes, and binary up to how many bytes by which first byte and width of the length
_EMPTY = b"\xc4\x00"
_BINARY = ((0xFF, 0xC4, 1), (0xFFFF, 0xC5, 2), (0xFFFFFFFF, 0xC6, 4))


def encode_before(topic: Topic[M], body: M, tail: memoryview) -> bytes:
    """Write a msgpack body up to the bytes of its last field, which is empty in ``body``: ``tail`` is to follow.

    Raises TooLargeError when both together are over the topic's limit.
    """
    written, size = _msgpack.encode(body), tail.nbytes
    if not written.endswith(_EMPTY):
        raise ValueError(f"the last field of a {topic.id} body is not empty binary")
    _, first, width = next(each for each in _BINARY if size <= each[0])
    payload = written[:-2] + bytes((first,)) + size.to_bytes(width)
    check_size(topic, len(payload) + size)
    return payload


def decode(topic: Topic[M], payload: bytes | memoryview) -> M:
    """Read a body. Raises DecodeError, naming the field at fault but never showing the payload.

    ``memoryview`` fields of the result are views of ``payload``, not copies.
    """
    try:
        check_size(topic, len(payload))
    except TooLargeError as error:
        raise DecodeError(str(error)) from error
    if topic.encoding is Encoding.BYTES:
        return payload  # type: ignore[return-value]
    try:
        body: M = _decoder(topic).decode(payload)
    except RecursionError as error:
        raise DecodeError("nested too deeply") from error
    except (msgspec.DecodeError, ValueError) as error:  # ValueError: UTF-8, and msgpack timestamps out of range
        raise DecodeError(str(error)) from error
    return body


def check_size(topic: Topic[Any], size: int) -> None:
    """Raise TooLargeError if ``size`` bytes are more than the topic's limit."""
    limit = LIMITS[topic.encoding]
    if size > limit:
        raise TooLargeError(f"a {topic.id} body of {size} bytes is over the limit of {limit}")


_decoders: dict[str, Any] = {}


def _decoder(topic: Topic[M]) -> Any:
    decoder = _decoders.get(topic.id)
    if decoder is None:
        make = msgspec.json.Decoder if topic.encoding is Encoding.JSON else msgspec.msgpack.Decoder
        decoder = _decoders[topic.id] = make(topic.message)
    return decoder
