"""The sources of models: a file of the node, an HTTP server, S3, or one that a caller adds. Each is a stream of blocks.

Its validator (size and modification time, or what the server sent) shows later whether the origin still has the same
content. Errors of libraries are never passed on: their texts contain whole URLs.
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
from halimede.models.s3_source import open_s3, s3_asker
from halimede.models.source_types import Requester, SourceOpener, SourceRequest, Stream, TransferLimits

#: files below these paths are interfaces of the kernel to processes, their environments and devices
KERNEL = ("/proc/", "/sys/")


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


def asker(url: str) -> Requester:
    """Return the requester of a URL, as its origin distinguishes requesters. Raises FetchError."""
    if local_path(url) is None and urlsplit(url).scheme == "s3":
        return s3_asker(url)
    return Requester(url)


@contextlib.asynccontextmanager
async def open_source(
    url: str, ask: SourceRequest, limits: TransferLimits, policy: AddressPolicy, openers: Mapping[str, SourceOpener]
) -> AsyncIterator[Stream]:
    """Open a URL. Raises FetchError."""
    path = local_path(url)
    scheme = "file" if path else urlsplit(url).scheme
    opened: AbstractAsyncContextManager[Stream]
    if path is not None:
        opened = open_file(path, ask)
    elif scheme in SCHEMES:
        opened = open_http(url, ask, limits, policy)
    elif scheme == "s3":
        opened = open_s3(url, ask, limits, policy)
    elif opener := openers.get(scheme):
        opened = opener(url, ask.if_none_match, limits, ask.offset)
    else:
        schemes = ", ".join(f"{other}://" for other in ("file", *sorted(SCHEMES), "s3", *openers))
        text = f"{redact(url)}: use an absolute path, or a URL with one of {schemes}"
        raise FetchError(FetchReason.UNSUPPORTED_SCHEME if scheme else FetchReason.INVALID_URL, text)
    async with opened as stream:
        yield stream


@contextlib.asynccontextmanager
async def open_file(path: Path, ask: SourceRequest) -> AsyncIterator[Stream]:
    """Open a regular file of this node."""
    try:
        file, facts = await in_thread(_open, path)
    except (FileNotFoundError, NotADirectoryError):
        raise FetchError(FetchReason.NOT_FOUND, f"{path} does not exist on this node") from None
    except OSError as error:
        raise FetchError(FetchReason.NOT_READABLE, f"{path}: {error.strerror}") from error
    with file:
        validator = file_validator(facts)
        offset = ask.offset if validator == ask.if_range else 0
        file.seek(offset)
        blocks = None if validator == ask.if_none_match else _read(file, path, validator)
        yield Stream(validator, facts.st_size, blocks, offset)


def _open(path: Path) -> tuple[BinaryIO, os.stat_result]:
    # non-blocking: opening a named pipe would otherwise wait for a writer
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    facts = os.fstat(fd)
    # a link in the path may lead anywhere: check the opened file
    kernel = str(Path(f"/proc/self/fd/{fd}").readlink()).startswith(KERNEL)
    if kernel or not stat.S_ISREG(facts.st_mode):
        os.close(fd)
        what = "a folder" if stat.S_ISDIR(facts.st_mode) else "not a regular file"
        raise FetchError(FetchReason.NOT_A_FILE, f"{path} is {what}: give the path of the model file")
    return os.fdopen(fd, "rb", buffering=0), facts


async def _read(file: BinaryIO, path: Path, validator: str) -> AsyncIterator[bytes]:
    try:
        while block := await in_thread(file.read, BLOCK):
            yield block
        if file_validator(os.fstat(file.fileno())) != validator:
            raise FetchError(FetchReason.INTERRUPTED, f"{path} changed while it was read", temporary=True)
    except OSError as error:
        raise FetchError(FetchReason.NOT_READABLE, f"{path}: {error.strerror}", temporary=True) from error


def file_validator(facts: os.stat_result) -> str:
    """Return the validator of a file: it changes whenever the file is written or replaced."""
    return f"{facts.st_size}-{facts.st_mtime_ns}-{facts.st_ino}"
