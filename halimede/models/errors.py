"""Errors of transfers with their reasons, retries of temporary failures, and URLs without secrets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TypeVar
from urllib.parse import urlsplit

import structlog

from halimede.errors import HalimedeError, cause_of
from halimede.system.backoff import Backoff
from halimede.system.files import FULL

T = TypeVar("T")
log = structlog.get_logger()

#: seconds between two attempts: at first, and at most
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 15.0


class FetchReason(StrEnum):
    """Why a download failed: used as the ``reason`` of a condition."""

    INVALID_URL = "InvalidURL"
    UNSUPPORTED_SCHEME = "UnsupportedScheme"
    NOT_FOUND = "NotFound"
    NOT_A_FILE = "NotAFile"
    EMPTY_FILE = "EmptyFile"
    NOT_READABLE = "NotReadable"
    HTTP_STATUS = "HTTPStatus"
    FORBIDDEN_ADDRESS = "ForbiddenAddress"
    FORBIDDEN_REDIRECT = "ForbiddenRedirect"
    TIMEOUT = "Timeout"
    TOO_SLOW = "TooSlow"
    UNREACHABLE = "Unreachable"
    INTERRUPTED = "Interrupted"
    TOO_LARGE = "TooLarge"
    DIGEST_MISMATCH = "DigestMismatch"
    CACHE_FAILED = "CacheFailed"
    DISK_FULL = "DiskFull"
    UNSAFE_ARCHIVE = "UnsafeArchive"
    BAD_ARCHIVE = "BadArchive"
    NO_MODEL_FILE = "NoModelFile"
    NOT_WRITABLE = "NotWritable"
    ACCESS_DENIED = "AccessDenied"
    NOT_INSTALLED = "NotInstalled"


class FetchError(HalimedeError):
    """A file could not be downloaded, uploaded, unpacked or delivered. The message contains no secret.

    Attributes:
        reason: the kind of failure.
        temporary: the same request may succeed later without any change.
        status: of the HTTP response; 0: there was none.

    """

    def __init__(self, reason: FetchReason, message: str, *, temporary: bool = False, status: int = 0) -> None:
        self.reason = reason
        self.temporary = temporary
        self.status = status
        super().__init__(message)


async def retry_temporary(attempt: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """Return what ``attempt`` returns; repeat it for ``patience_s`` seconds while its FetchErrors are temporary.

    Raises the last FetchError.
    """
    loop = asyncio.get_running_loop()
    deadline, backoff = loop.time() + patience_s, Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
    while True:
        try:
            return await attempt()
        except FetchError as error:
            pause = backoff.fail()
            if not error.temporary or loop.time() + pause > deadline:
                raise
            log.warning("transfer repeated", seconds=pause, reason=error.reason.value, message=str(error))
        await asyncio.sleep(pause)


def disk_error(what: str, error: OSError, reason: FetchReason = FetchReason.CACHE_FAILED) -> FetchError:
    """Return the FetchError that ``what`` (a path, or a description) cannot be used; temporary unless the disk is full.

    ``reason``: of the error, unless the disk is full.
    """
    if error.errno in FULL:
        return FetchError(FetchReason.DISK_FULL, f"{what} cannot be written: the disk is full: free some space")
    return FetchError(reason, f"{what} cannot be used: {cause_of(error)}", temporary=True)


def redact(url: str) -> str:
    """Return a URL for messages: ``***`` stands for user and password, and for the query. Paths stay as they are."""
    try:
        parts = urlsplit(url)
        if not parts.scheme:
            return url
        host = parts.netloc.rpartition("@")[2]
        _ = parts.port  # an invalid port is the start of a password that contains a slash
    except ValueError:
        return "<unreadable URL>"
    user = "***@" if "@" in parts.netloc else ""
    query = "?***" if parts.query else ""
    return f"{parts.scheme}://{user}{host}{parts.path}{query}"
