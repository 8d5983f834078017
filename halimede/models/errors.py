"""What can go wrong with a download, in words that callers tell apart, and URLs that are fit to be shown."""

from __future__ import annotations

from enum import StrEnum
from urllib.parse import urlsplit

from halimede.errors import HalimedeError


class Reason(StrEnum):
    """Why a download failed: the ``reason`` of a condition."""

    INVALID_URL = "InvalidURL"
    UNSUPPORTED_SCHEME = "UnsupportedScheme"
    NOT_FOUND = "NotFound"
    NOT_A_FILE = "NotAFile"
    EMPTY_FILE = "EmptyFile"
    NOT_READABLE = "NotReadable"
    HTTP_STATUS = "HTTPStatus"
    TIMEOUT = "Timeout"
    UNREACHABLE = "Unreachable"
    INTERRUPTED = "Interrupted"
    TOO_LARGE = "TooLarge"
    DIGEST_MISMATCH = "DigestMismatch"
    CACHE_FAILED = "CacheFailed"
    NOT_WRITABLE = "NotWritable"
    ACCESS_DENIED = "AccessDenied"
    NOT_INSTALLED = "NotInstalled"


class FetchError(HalimedeError):
    """A model could not be brought to this node. The text holds no secret.

    Attributes:
        reason: which of the known failures it was.
        temporary: whether the same request may succeed a little later, with nothing changed by anyone.

    """

    def __init__(self, reason: Reason, message: str, *, temporary: bool = False) -> None:
        self.reason = reason
        self.temporary = temporary
        super().__init__(message)


def redact(url: str) -> str:
    """Return a URL without what may be secret: user and password, and the values of its query."""
    try:
        parts = urlsplit(url)
        if not parts.scheme:
            return url
        host = parts.netloc.rpartition("@")[2]
        _ = parts.port  # what is no number there is the beginning of a password with a slash in it
    except ValueError:
        return "<unreadable URL>"
    user = "***@" if "@" in parts.netloc else ""
    query = "?***" if parts.query else ""
    return f"{parts.scheme}://{user}{host}{parts.path}{query}"
