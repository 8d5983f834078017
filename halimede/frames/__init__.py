"""Samples on the bus: camera payloads, encodings, picture headers, thumbnails.

It uses only the port of the bus. ``halimede.pipeline`` runs models: a process that only makes or reads frames needs no
model runtime.
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
