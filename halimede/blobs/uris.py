"""Addresses of files on the bus: ``bus://<node-or-gm>/sha256/<digest>``, ``bus://any/...`` for any source.

Messages name a source by its user at the broker (``gm``, ``lc.edge0``): its bus name, which access rules can verify. A
node that is called ``gm`` or ``any`` cannot be addressed.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from halimede.errors import InvalidFieldError
from halimede.messages.blobs import DIGEST_PATTERN
from halimede.models.errors import FetchError, FetchReason, redact
from halimede.names import check_name

#: scheme of the addresses
SCHEME = "bus"
#: sources that are no nodes: any source, and GM
ANY, GM = "any", "gm"
#: the correction of an invalid address
FORM = "write bus://NODE/sha256/DIGEST, with gm or any instead of a node"

_digest = re.compile(DIGEST_PATTERN, re.ASCII)


def bus_name_of(node: str) -> str:
    """Return the bus name of a node or ``gm``: ``lc.edge0`` of ``edge0``."""
    return GM if node == GM else f"lc.{node}"


def node_of(bus_name: str) -> str:
    """Return the node, or ``gm``, that has a bus name: ``edge0`` of ``lc.edge0``."""
    return bus_name.removeprefix("lc.")


def url(source: str, digest: str) -> str:
    """Return the URL of a file. ``source``: a node, ``gm`` or ``any``; ``digest``: its SHA-256 in hexadecimal."""
    return f"{SCHEME}://{source}/sha256/{digest}"


def check_digest(field: str, value: str) -> str:
    """Return ``value``, a SHA-256 in lower-case hexadecimal. Raises InvalidFieldError, which names ``field``."""
    if _digest.fullmatch(value):
        return value
    raise InvalidFieldError(field, value, "write 64 lower-case hexadecimal digits")


def parse_url(text: str) -> tuple[str, str]:
    """Return source (a node, ``gm`` or ``any``) and digest of a URL. Raises FetchError for any other URL."""
    try:
        parts = urlsplit(text)
        source = check_name("host", parts.netloc)
    except (ValueError, InvalidFieldError):
        raise FetchError(FetchReason.INVALID_URL, f"{redact(text)}: {FORM}") from None
    kind, _, digest = parts.path.removeprefix("/").partition("/")
    if parts.scheme != SCHEME or kind != "sha256" or not _digest.fullmatch(digest) or parts.query or parts.fragment:
        raise FetchError(FetchReason.INVALID_URL, f"{redact(text)}: {FORM}")
    return source, digest
