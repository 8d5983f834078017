"""Samples as they travel: camera payloads, encodings, the topics between workers, and the load that they advertise.

It knows the bus only by its port. What runs models is in ``halimede.pipeline``: whoever only makes or reads frames
needs no model runtime.
"""

from halimede.frames.advertise import load_will
from halimede.frames.circuit import Circuit, State
from halimede.frames.credits import Credits
from halimede.frames.encodings import Pixels, decode, encode_image
from halimede.frames.payloads import new_frame, new_id, open_payload, pack
from halimede.frames.reasons import OffloadError, Reason

__all__ = [
    "Circuit",
    "Credits",
    "OffloadError",
    "Pixels",
    "Reason",
    "State",
    "decode",
    "encode_image",
    "load_will",
    "new_frame",
    "new_id",
    "open_payload",
    "pack",
]
