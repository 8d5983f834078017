"""Addresses of files on the bus: ``bus://<node-or-gm>/sha256/<digest>``, ``bus://any/...`` for any source.

On the bus a source has its user's name at the broker (``gm``, ``lc.edge0``), because the broker's access rules can
verify that. So no node can have the names ``gm`` and ``any`` here.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from halimede.errors import InvalidFieldError
from halimede.messages.blobs import DIGEST_PATTERN
from halimede.models.errors import FetchError, FetchReason, redact
from halimede.names import check_name

SCHEME = "bus"
ANY, GM = "any", "gm"
FORM = "write bus://NODE/sha256/DIGEST, with gm or any instead of a node"

_digest = re.compile(DIGEST_PATTERN, re.ASCII)


def party(node: str) -> str:
    """Return the name on the bus of ``gm`` or a node."""
    return GM if node == GM else f"lc.{node}"


def node_of(party_: str) -> str:
    """Return ``gm`` or the node of a name on the bus."""
    return party_.removeprefix("lc.")


def url(source: str, digest: str) -> str:
    """Return the URL of a file of ``gm``, a node, or ``any``."""
    return f"{SCHEME}://{source}/sha256/{digest}"


def check_digest(field: str, value: str) -> str:
    """Return ``value`` if it is a SHA-256 in lower-case hexadecimal, else raise InvalidFieldError."""
    if _digest.fullmatch(value):
        return value
    raise InvalidFieldError(field, value, "write 64 lower-case hexadecimal digits")


def read_url(text: str) -> tuple[str, str]:
    """Return source (``gm``, ``any`` or a node) and digest of a URL. Raises FetchError."""
    try:
        parts = urlsplit(text)
        source = check_name("host", parts.netloc)
    except (ValueError, InvalidFieldError):
        raise FetchError(FetchReason.INVALID_URL, f"{redact(text)}: {FORM}") from None
    kind, _, digest = parts.path.removeprefix("/").partition("/")
    if parts.scheme != SCHEME or kind != "sha256" or not _digest.fullmatch(digest) or parts.query or parts.fragment:
        raise FetchError(FetchReason.INVALID_URL, f"{redact(text)}: {FORM}")
    return source, digest
