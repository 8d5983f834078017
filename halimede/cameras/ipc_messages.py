"""Messages between a reader's process and its parent: a job, requests, pictures, errors.

The job (one line of JSON) goes down the pipe, then one byte for each requested picture. Messages come up, each after
its length. A picture is encoded only on request, so that unneeded ones cost nothing.
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
#: most bytes of one message: the largest picture, and its other fields
MAX_MESSAGE = codec.MAX_BYTES + 4096
#: seconds between two heartbeats
BEAT_S = 0.5

#: reasons why a source gives no frames: one word each, as in CameraStatus
ENDED, STALLED, UNREACHABLE, UNAUTHORIZED, NOT_FOUND, GARBAGE, INVALID, CRASHED, STUCK, FAILED, FLOOD, FORBIDDEN = (
    "Ended", "Stalled", "Unreachable", "Unauthorized", "NotFound", "Garbage", "Invalid", "Crashed", "Stuck", "Failed",
    "Flood", "Forbidden",
)  # fmt: skip


class ReaderJob(Struct, kw_only=True, frozen=True):
    """The job of a reader, and the process that it ends with."""

    parent: int
    camera: CameraSettings


class ReaderCounts(Struct, kw_only=True):
    """Counts since the reader's start.

    ``received``: frames from the source; ``skipped``: for newer frames, or above the requested rate;
    ``refused``: too large or unreadable, ``why`` is the reason of the last.
    """

    received: int = msgspec.field(default=0, name="seen")
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
    """A heartbeat."""

    counts: ReaderCounts


class Over(Struct, kw_only=True, tag="over"):
    """The final message: why no more pictures follow."""

    reason: str
    message: str = ""
    counts: ReaderCounts


ReaderMessage = CapturedPicture | Beat | Over
_decoder: msgspec.msgpack.Decoder[ReaderMessage] = msgspec.msgpack.Decoder(ReaderMessage)


class SourceError(HalimedeError):
    """A source gives no (more) pictures: a reason and a text. The text may contain the address: redact it."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        self.message = message
        super().__init__(f"{reason}: {message}")


def pack(message: ReaderMessage) -> bytes:
    """Encode a message after its length."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> ReaderMessage:
    """Decode a message without its length. Raises msgspec.DecodeError."""
    return _decoder.decode(body)
