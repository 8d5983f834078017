"""Samples as frames: the payloads of cameras, encodings of pixels, orientation, and drawings of answers.

The package needs no model runtime, so that a process that only makes or reads frames does not either.
"""

from halimede.frames.encodings import Pixels, decode, encode_image
from halimede.frames.payloads import new_frame, new_id, open_payload, pack

__all__ = [
    "Pixels",
    "decode",
    "encode_image",
    "new_frame",
    "new_id",
    "open_payload",
    "pack",
]
