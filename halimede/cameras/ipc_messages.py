"""Messages between a reader's process (which reads one source) and its parent: a job, requests, pictures, errors.

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

#: the byte that requests a picture, and the form of a message's length
REQUEST = b"."
LENGTH = struct.Struct(">I")
#: most bytes of one message: the largest picture, and its other fields
MAX_MESSAGE = codec.MAX_BYTES + 4096
#: seconds between two heartbeats
BEAT_S = 0.5

#: reasons in the status of a camera, one word each: why its source gives no frames, or FLOOD: it gives too many
ENDED, STALLED, UNREACHABLE, UNAUTHORIZED, NOT_FOUND, GARBAGE, INVALID, CRASHED, STUCK, FAILED, FLOOD, FORBIDDEN = (
    "Ended", "Stalled", "Unreachable", "Unauthorized", "NotFound", "Garbage", "Invalid", "Crashed", "Stuck", "Failed",
    "Flood", "Forbidden",
)  # fmt: skip
#: texts for people by reason
TEXTS = {
    UNAUTHORIZED: "access denied: check user and password",
    NOT_FOUND: "there is nothing of that name: check the address",
    GARBAGE: "it sends no readable video: give a video file, a stream or a camera device",
    UNREACHABLE: "it cannot be reached",
    INVALID: "this kind of source is not supported",
}


class ReaderJob(Struct, kw_only=True, frozen=True):
    """The job of a reader: the camera, and the id of the ``parent`` process, with which the reader ends."""

    parent: int
    camera: CameraSettings


class ReaderCounts(Struct, kw_only=True):
    """Counts since the reader's start.

    ``received``: frames from the source; ``skipped``: for newer frames, or above the requested rate; ``refused``: too
    large or unreadable; ``why``: the reason of the last refused one.
    """

    received: int = msgspec.field(default=0, name="seen")
    skipped: int = 0
    refused: int = 0
    why: Annotated[str, Meta(max_length=512)] = ""


class CapturedPicture(Struct, kw_only=True, tag="picture"):
    """A requested picture.

    ``taken_ns``: nanoseconds since 1970. ``encoding``, ``width``, ``height``: of ``data``; ``codec``: of the source.
    ``counts``: so far.
    """

    taken_ns: int
    encoding: Literal["jpeg", "png"]
    codec: str
    width: int
    height: int
    counts: ReaderCounts
    data: bytes


class Beat(Struct, kw_only=True, tag="beat"):
    """A heartbeat with the counts so far: the reader lives, but had no picture to send."""

    counts: ReaderCounts


class ReaderEnd(Struct, kw_only=True, tag="over"):
    """The final message: why no more pictures follow.

    ``reason``: one word; ``message``: a sentence; ``counts``: all.
    """

    reason: str
    message: str = ""
    counts: ReaderCounts


ReaderMessage = CapturedPicture | Beat | ReaderEnd
_decoder: msgspec.msgpack.Decoder[ReaderMessage] = msgspec.msgpack.Decoder(ReaderMessage)


class SourceError(HalimedeError):
    """A source gives no (more) pictures: a reason in one word, and a text.

    The text may contain the address with its secrets: redact it before it is shown.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        self.message = message
        super().__init__(f"{reason}: {message}")


def pack(message: ReaderMessage) -> bytes:
    """Return an encoded message after its length."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> ReaderMessage:
    """Return the message that was encoded, without its length. Raises msgspec.DecodeError."""
    return _decoder.decode(body)
