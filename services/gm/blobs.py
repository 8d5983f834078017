"""GM's part in files over the bus: a store that operators fill (``halimede blob put``) and every node can ask."""

from __future__ import annotations

import os
from pathlib import Path

from halimede.blobs.admin import BlobNode, ManagedCache
from halimede.blobs.uris import GM
from halimede.bus.port import Bus
from halimede.errors import InvalidFieldError
from halimede.models import Cache

#: bytes that the store may hold; in a pod, whose folder is small unless a volume is mounted there
MOST_BYTES, MOST_IN_POD, VARIABLE = 20 * 10**9, 32 * 10**6, "HALIMEDE_BLOB_BYTES"


class BlobServing(BlobNode):
    """``run`` it in addition to GM's other tasks. ``bus`` is its own connection, not entered yet."""

    def __init__(self, bus: Bus, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(bus, GM, ManagedCache(Cache(folder), most_bytes, removable=True))


def most_bytes(*, in_pod: bool) -> int:
    """Return what the environment says of the store's size. Raises InvalidFieldError."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return MOST_IN_POD if in_pod else MOST_BYTES
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**63):
        raise InvalidFieldError(VARIABLE, text, "write a number of bytes, such as 20000000000")
    return int(text)
