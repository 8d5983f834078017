"""The sources of models: a file of the node, an HTTP server, S3, or one that a caller adds. Each is a stream of blocks.

An origin is the place that a URL names. A validator is a text that changes with the origin's content: a file's size,
modification time and inode, or what the server sent. It shows later whether the origin still has the same content.
Errors of libraries are never passed on, because their texts contain whole URLs.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from halimede.models.address_policy import AddressPolicy
from halimede.models.cache import BLOCK, in_thread
from halimede.models.errors import FetchError, FetchReason, redact
from halimede.models.http_source import SCHEMES, open_http
from halimede.models.s3_source import open_s3, s3_requester
from halimede.models.source_types import Requester, SourceOpener, SourceRequest, Stream, TransferLimits

#: files below these paths are refused: they are interfaces of the kernel to processes, their environments and devices
KERNEL_FOLDERS = ("/proc/", "/sys/")


def local_path(url: str) -> Path | None:
    """Return the local path that a URL names, or None if it is not local. Raises FetchError."""
    if url.startswith("/"):
        return Path(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise FetchError(FetchReason.INVALID_URL, f"{redact(url)} is not a valid URL") from None
    if parts.scheme != "file":
        return None
    path = unquote(parts.path)
    if parts.netloc not in {"", "localhost"} or not path.startswith("/") or "\0" in path:
        raise FetchError(FetchReason.INVALID_URL, f"{redact(url)}: write file:/// with an absolute path")
    return Path(path)


def requester_of(url: str) -> Requester:
    """Return who requests a URL, as the cache sees it: the URL, and for ``s3://`` the store and the credentials.

    Raises FetchError.
    """
    if local_path(url) is None and urlsplit(url).scheme == "s3":
        return s3_requester(url)
    return Requester(url)


def open_source(
    url: str, request: SourceRequest, limits: TransferLimits, policy: AddressPolicy, openers: Mapping[str, SourceOpener]
) -> AbstractAsyncContextManager[Stream]:
    """Return the context manager that opens a URL by its scheme. Raises FetchError, as does opening and reading.

    ``policy``: the addresses that HTTP and S3 may connect to. ``openers``: by scheme, for those that this module does
    not know.
    """
    path = local_path(url)
    if path is not None:
        return open_file(path, request)
    scheme = urlsplit(url).scheme
    if scheme in SCHEMES:
        return open_http(url, request, limits, policy)
    if scheme == "s3":
        return open_s3(url, request, limits, policy)
    if opener := openers.get(scheme):
        return opener(url, request.if_none_match, limits, request.offset)
    schemes = ", ".join(f"{known_scheme}://" for known_scheme in ("file", *sorted(SCHEMES), "s3", *openers))
    text = f"{redact(url)}: use an absolute path, or a URL with one of {schemes}"
    raise FetchError(FetchReason.UNSUPPORTED_SCHEME if scheme else FetchReason.INVALID_URL, text)


@contextlib.asynccontextmanager
async def open_file(path: Path, request: SourceRequest) -> AsyncIterator[Stream]:
    """Open a regular file of this node until the end of the block. Raises FetchError.

    An offset holds only if the file is still that of ``request.if_range``; else the stream starts at 0.
    """
    try:
        file, file_status = await in_thread(_open, path)
    except (FileNotFoundError, NotADirectoryError):
        raise FetchError(FetchReason.NOT_FOUND, f"{path} does not exist on this node") from None
    except OSError as error:
        raise FetchError(FetchReason.NOT_READABLE, f"{path}: {error.strerror}") from error
    with file:
        validator = file_validator(file_status)
        offset = request.offset if validator == request.if_range else 0
        file.seek(offset)
        blocks = None if validator == request.if_none_match else _read(file, path, validator)
        yield Stream(validator, file_status.st_size, blocks, offset)


def _open(path: Path) -> tuple[BinaryIO, os.stat_result]:
    """Open a file and return it with its status. Raises OSError, and FetchError if it is not a regular file."""
    # non-blocking: opening a named pipe would otherwise wait for a writer
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    file_status = os.fstat(descriptor)
    # a link in the path may lead anywhere: check the opened file
    is_kernel_file = str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith(KERNEL_FOLDERS)
    if is_kernel_file or not stat.S_ISREG(file_status.st_mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(file_status.st_mode) else "not a regular file"
        raise FetchError(FetchReason.NOT_A_FILE, f"{path} is {kind}: give the path of the model file")
    return os.fdopen(descriptor, "rb", buffering=0), file_status


async def _read(opened: BinaryIO, path: Path, validator: str) -> AsyncIterator[bytes]:
    """Yield the file in blocks. Raises FetchError if it cannot be read, or at its end if it was changed meanwhile."""
    try:
        while block := await in_thread(opened.read, BLOCK):
            yield block
        if file_validator(os.fstat(opened.fileno())) != validator:
            raise FetchError(FetchReason.INTERRUPTED, f"{path} changed while it was read", temporary=True)
    except OSError as error:
        raise FetchError(FetchReason.NOT_READABLE, f"{path}: {error.strerror}", temporary=True) from error


def file_validator(file_status: os.stat_result) -> str:
    """Return the validator of a file: it changes whenever the file is written or replaced."""
    return f"{file_status.st_size}-{file_status.st_mtime_ns}-{file_status.st_ino}"
