"""Where the fuzzer begins: a packet of each kind that a broker sends, a JPEG of each kind, and the counted modules."""

from __future__ import annotations

from collections.abc import Iterator

from halimede import image_headers
from halimede.bus.mqtt5 import buffers, decoder, encoder
from tests.attacks.flooding import publish, user
from tests.fuzz.loop import modules
from tests.hostile_pictures import jpeg, jpeg_that_hides, lossless_jpeg
from tests.jpeg_kinds import kinds

MODULES = modules(buffers, decoder, encoder, image_headers)
#: the target that decodes JPEG files, and the bytes of its longest input
PICTURE, LONGEST_PICTURE = "picture", 4096
PROPERTIES = (user("epoch", "7") + user("", ""), b"\x01\0\x23\0\1\x03\0\1c\x0b\x80\1\x02\0\0\0\7\x08\0\1r\x09\0\1x")
PACKETS = (
    publish("a/b", b"body"),
    *(publish("a/b", b"body", qos=1, retain=True, beside=beside, mid=258) for beside in PROPERTIES),
    b"\x20\x03\0\0\0",
    b"\x20\x12\0\0\x0f\x21\0\5\x27\0\0\1\0\x24\1\x25\0\x13\0\7",
    b"\x20\x0a\1\x87\x07\x1f\0\1x\x28\0\x2a\0",
    b"\x40\2\1\2",
    b"\x40\x0b\1\2\x97\7\x26\0\1a\0\1b",
    b"\x90\4\0\1\0\1",
    b"\xb0\4\0\1\0\x11",
    b"\xd0\0",
    b"\xe0\x08\x8b\6\x1f\0\3bye",
)


def seeds(target: str) -> Iterator[bytes]:
    """Return the inputs that a target begins with."""
    if target == "properties":
        yield from PROPERTIES
    elif target == "packet":
        yield from (bytes((data[0],)) + data[2:] for data in PACKETS)
    elif target == PICTURE:
        yield from kinds().values()
        yield lossless_jpeg(64, 48)
        yield jpeg_that_hides(lossless_jpeg(16, 16), jpeg(16, 16))
    else:
        yield b"\2\0\7\x20" + b"".join(PACKETS)
        # a packet with a buffer of its own, and one behind it
        yield b"\xff\xff\xff\xff" + publish("t", bytes(buffers.LARGE)) + PACKETS[0]
        yield from (b"\0\1\2\3" + data for data in PACKETS)
