"""Encodes and decodes typed message bodies, as JSON, msgpack or bytes. It is the only module with encodings.

The topic says which encoding. The size limit is checked before any byte is read, so that no declared length or nesting
depth can cost more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from halimede.errors import DecodeError, TooLargeError
from halimede.topic import BodyEncoding, Topic

M = TypeVar("M")

#: most bytes of a JSON body, and of any other; control bodies are far smaller, and a larger frame is a mistake
MAX_JSON = 4 * 1024 * 1024
MAX_BYTES = 16 * 1024 * 1024
#: most bytes of a body by its encoding
LIMITS = {BodyEncoding.JSON: MAX_JSON, BodyEncoding.MSGPACK: MAX_BYTES, BodyEncoding.BYTES: MAX_BYTES}


class _Coder(NamedTuple):
    """Limit in bytes, encoder and decoder of one topic's bodies. Without a decoder the payload itself is the body."""

    limit: int
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes | memoryview], Any] | None


_json = msgspec.json.Encoder(order=None)
_msgpack = msgspec.msgpack.Encoder()
#: by topic id, made on first use
_coders: dict[str, _Coder] = {}


def encode(topic: Topic[M], body: M) -> bytes:
    """Return a body encoded as its topic defines. Raises TooLargeError over the topic's limit."""
    coder = _coders.get(topic.id) or _coder(topic)
    payload = coder.encode(body)
    if len(payload) > coder.limit:
        raise TooLargeError(_over_limit(topic, len(payload), coder.limit))
    return payload


#: empty binary in msgpack
_EMPTY = b"\xc4\x00"


def encode_before(topic: Topic[M], body: M, tail: memoryview) -> bytes:
    """Return a msgpack body without the bytes of its last field, which the caller sends after it.

    ``body``: the last field is empty. ``tail``: the bytes of the last field, whose length is in the result.

    Raises TooLargeError if both together exceed the topic's limit, ValueError if the last field is not empty bytes.
    """
    coder = _coders.get(topic.id) or _coder(topic)
    written, size = _msgpack.encode(body), tail.nbytes
    if not written.endswith(_EMPTY):
        raise ValueError(f"the last field of a {topic.id} body is not empty binary")
    # first byte and width of the length, which depend on the size
    if size <= 0xFF:
        length = b"\xc4" + size.to_bytes(1)
    elif size <= 0xFFFF:
        length = b"\xc5" + size.to_bytes(2)
    else:
        length = b"\xc6" + size.to_bytes(4)
    payload = written[:-2] + length
    if len(payload) + size > coder.limit:
        raise TooLargeError(_over_limit(topic, len(payload) + size, coder.limit))
    return payload


def decode(topic: Topic[M], payload: bytes | memoryview) -> M:
    """Return the body of a payload.

    Raises DecodeError, which names the invalid field. Of the payload it quotes at most a text that is no valid choice.

    ``memoryview`` fields of the result are views of ``payload``, not copies.
    """
    coder = _coders.get(topic.id) or _coder(topic)
    if len(payload) > coder.limit:
        raise DecodeError(_over_limit(topic, len(payload), coder.limit))
    if coder.decode is None:
        return payload  # type: ignore[return-value]
    try:
        body: M = coder.decode(payload)
    except RecursionError as error:
        raise DecodeError("nested too deeply") from error
    except (msgspec.DecodeError, ValueError) as error:  # ValueError: UTF-8, and msgpack timestamps out of range
        raise DecodeError(str(error)) from error
    return body


def _coder(topic: Topic[Any]) -> _Coder:
    """Make and store the coder of a topic."""
    limit = LIMITS[topic.encoding]
    if topic.encoding is BodyEncoding.JSON:
        coder = _Coder(limit, _json.encode, msgspec.json.Decoder(topic.message).decode)
    elif topic.encoding is BodyEncoding.MSGPACK:
        coder = _Coder(limit, _msgpack.encode, msgspec.msgpack.Decoder(topic.message).decode)
    else:
        coder = _Coder(limit, bytes, None)  # bodies are buffers
    _coders[topic.id] = coder
    return coder


def _over_limit(topic: Topic[Any], size: int, limit: int) -> str:
    """Return the text of an error about a body of too many bytes."""
    return f"a {topic.id} body of {size} bytes is over the limit of {limit}"
