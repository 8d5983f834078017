"""Samples as they travel: camera payloads, encodings, picture headers, thumbnails.

It knows the bus only by its port. What runs models is in ``halimede.pipeline``: whoever only makes or reads frames
needs no model runtime.
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
