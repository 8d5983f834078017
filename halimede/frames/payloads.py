"""Reads and writes the messages of cameras: halimede's msgpack frame, or a bare JPEG or PNG from any MQTT client.

Reading checks only sizes, types and magic bytes. ``halimede.frames.encodings`` decompresses pictures.
"""

from __future__ import annotations

import secrets
from typing import Literal

import numpy as np

from halimede import codec, topics
from halimede.errors import DecodeError
from halimede.frames.encodings import Pixels, encode_image, raw_view
from halimede.messages import Frame
from halimede.names import file_name
from halimede.picture_files import MAGIC

#: bytes of a frame's id
ID_BYTES = 16

#: possible first bytes of pictures, and of msgpack maps: fixmap, map 16 and map 32
_PICTURES = frozenset(magic[0] for magic in MAGIC.values())
_MAPS = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])


def new_id() -> bytes:
    """Return 16 random bytes: the id of a new frame. A client that sends the frame again uses the same id."""
    return secrets.token_bytes(ID_BYTES)


def open_payload(payload: bytes | memoryview, camera: str) -> Frame:
    """Return the frame in one camera message. The frame's ``data`` is a view of ``payload``, not a copy.

    ``camera`` is the camera of the topic and replaces that of the body, because the broker's access rules check the
    topic. A bare picture gets a new id. Raises DecodeError, whose text contains no payload.
    """
    if not payload:
        raise DecodeError("the message is empty")
    view = memoryview(payload)
    first = view[0]
    if first in _PICTURES:
        for encoding, magic in MAGIC.items():
            if view[: len(magic)] == magic:
                codec.decode(topics.CAMERA_FRAME, payload)  # checks the size limit
                return Frame(id=new_id(), camera=camera, encoding=encoding, data=view)
    if first not in _MAPS:
        codec.decode(topics.CAMERA_FRAME, payload)
        raise DecodeError("it is neither a JPEG, nor a PNG, nor a frame of ours (a msgpack map)")
    frame = codec.decode(topics.REQUEST, payload)
    if not len(frame.data):
        raise DecodeError("the frame holds no data")
    frame.camera = camera
    if frame.file:
        frame.file = file_name(frame.file)
    frame.edge = None  # a camera must not set an edge worker's prediction
    return frame


def pack(frame: Frame) -> bytes:
    """Return a frame as a msgpack map. Raises TooLargeError over the size limit of a message."""
    return codec.encode(topics.REQUEST, frame)


def new_frame(
    image: Pixels,
    *,
    encoding: Literal["raw", "jpeg", "png"] = "raw",
    camera: str = "",
    sequence: int = 0,
    id_: bytes | None = None,
) -> Frame:
    """Return the frame of an array: any shape for ``raw``, ``(height, width[, 3]) uint8`` for jpeg and png.

    ``sequence`` numbers the frames of a camera. ``id_`` has 16 bytes; None: a new one. Raises InvalidFieldError if the
    encoding does not support the array.
    """
    raw = encoding == "raw"
    # the array itself if it need not be copied, else its encoded bytes
    dtype, data = (raw_view(image) if raw else None) or (
        np.asarray(image).dtype.name if raw else "",
        memoryview(encode_image(image, encoding)),
    )
    return Frame(
        id=id_ or new_id(),
        camera=camera,
        sequence=sequence,
        encoding=encoding,
        dtype=dtype,
        shape=list(image.shape) if raw else [],
        data=data,
    )
