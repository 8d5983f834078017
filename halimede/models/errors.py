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
    """Why a transfer, or the use of what it brought, failed: the ``reason`` of a condition."""

    #: the URL, or a setting of its store, is not valid
    INVALID_URL = "InvalidURL"
    UNSUPPORTED_SCHEME = "UnsupportedScheme"
    #: the origin does not have the content
    NOT_FOUND = "NotFound"
    #: a path of the node is a folder, a device or a pipe
    NOT_A_FILE = "NotAFile"
    EMPTY_FILE = "EmptyFile"
    #: a file of the node cannot be read
    NOT_READABLE = "NotReadable"
    #: the server answered with a status that no other reason has
    HTTP_STATUS = "HTTPStatus"
    #: the operator has not allowed the address (``address_policy``)
    FORBIDDEN_ADDRESS = "ForbiddenAddress"
    #: a redirect leads away from HTTP, or from HTTPS to HTTP
    FORBIDDEN_REDIRECT = "ForbiddenRedirect"
    #: it was not complete in time, or another process held its lock for too long
    TIMEOUT = "Timeout"
    #: bytes arrived at less than ``TransferLimits.min_rate``
    TOO_SLOW = "TooSlow"
    UNREACHABLE = "Unreachable"
    #: the transfer ended early, or the content changed meanwhile
    INTERRUPTED = "Interrupted"
    #: a limit of bytes or of files is exceeded
    TOO_LARGE = "TooLarge"
    #: the content has another SHA-256 than was given or sent
    DIGEST_MISMATCH = "DigestMismatch"
    #: the folder of the node's cache cannot be used
    CACHE_FAILED = "CacheFailed"
    DISK_FULL = "DiskFull"
    #: the archive has a member, or the model a data file, that could harm this machine
    UNSAFE_ARCHIVE = "UnsafeArchive"
    #: the archive is damaged, or of a kind that is not unpacked
    BAD_ARCHIVE = "BadArchive"
    #: the archive has no model, or several
    NO_MODEL_FILE = "NoModelFile"
    #: the target of a delivery or an upload cannot be written
    NOT_WRITABLE = "NotWritable"
    #: the store refused the credentials
    ACCESS_DENIED = "AccessDenied"
    #: a Python package for the scheme is missing
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

    Raises the first FetchError that is not temporary, or the last one.
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
