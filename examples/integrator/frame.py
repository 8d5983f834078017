"""Writes and reads a frame with msgpack: python frame.py picture.png frame.msgpack, which a camera may publish.

It needs msgpack: pip install msgpack.
"""

import secrets
import sys
import time
from pathlib import Path
from typing import Any

import msgpack


def write(picture: bytes, encoding: str, sequence: int) -> bytes:
    """Return the body of a frame. A resend has the same id."""
    return msgpack.packb(
        {
            "id": secrets.token_bytes(16),
            "sequence": sequence,
            "capturedNs": time.time_ns(),
            "encoding": encoding,  # png, jpeg, or raw with shape and dtype
            "data": picture,
        }
    )


def read(body: bytes) -> dict[str, Any]:
    """Return the fields of a frame. Skip those that you do not know."""
    return msgpack.unpackb(body)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_bytes(write(source.read_bytes(), source.suffix.lstrip("."), sequence=1))
    frame = read(target.read_bytes())
    print(f"{target}: {frame['encoding']} of {len(frame['data'])} bytes, id {frame['id'].hex()}")
