"""Messages between a reader's process and its parent: a job, requests, pictures, errors.

Down the pipe goes the job (one line of JSON), then one byte for each picture that is wanted. Up come messages, each
behind its length. A picture is made when it is asked for, so that what nobody wants costs no encoding.
"""

from __future__ import annotations

import struct
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from halimede import codec
from halimede.cameras.settings import CameraSettings
from halimede.errors import HalimedeError

ASK = b"."
LENGTH = struct.Struct(">I")
#: bytes of one message: the largest picture, and what stands beside it
MAX_MESSAGE = codec.MAX_BYTES + 4096
#: seconds between two signs of life
BEAT_S = 0.5

#: why a source gives nothing: one word each, as CameraStatus has them
ENDED, STALLED, UNREACHABLE, UNAUTHORIZED, NOT_FOUND, GARBAGE, INVALID, CRASHED, STUCK, FAILED, FLOOD, FORBIDDEN = (
    "Ended", "Stalled", "Unreachable", "Unauthorized", "NotFound", "Garbage", "Invalid", "Crashed", "Stuck", "Failed",
    "Flood", "Forbidden",
)  # fmt: skip


class ReaderJob(Struct, kw_only=True, frozen=True):
    """What a reader is to do, and the process that it ends with."""

    parent: int
    camera: CameraSettings


class ReaderCounts(Struct, kw_only=True):
    """Since the reader's start. ``seen``: came from the source; ``skipped``: passed over for a newer one;
    ``refused``: too large or unreadable, the last of them because of ``why``.
    """

    seen: int = 0
    skipped: int = 0
    refused: int = 0
    why: Annotated[str, Meta(max_length=512)] = ""


class CapturedPicture(Struct, kw_only=True, tag="picture"):
    """A picture: taken at ``taken_ns`` (nanoseconds since 1970)."""

    taken_ns: int
    encoding: Literal["jpeg", "png"]
    codec: str
    width: int
    height: int
    counts: ReaderCounts
    data: bytes


class Beat(Struct, kw_only=True, tag="beat"):
    """A sign of life."""

    counts: ReaderCounts


class Over(Struct, kw_only=True, tag="over"):
    """The last word: why no more pictures come."""

    reason: str
    message: str = ""
    counts: ReaderCounts


Said = CapturedPicture | Beat | Over
_decoder: msgspec.msgpack.Decoder[Said] = msgspec.msgpack.Decoder(Said)


class SourceError(HalimedeError):
    """A source gives no (more) pictures: one word why, and a text. It may still hold the address: redact it."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        self.message = message
        super().__init__(f"{reason}: {message}")


def pack(said: Said) -> bytes:
    """Write a message behind its length."""
    body = msgspec.msgpack.encode(said)
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> Said:
    """Read a message without its length. Raises msgspec.DecodeError."""
    return _decoder.decode(body)
