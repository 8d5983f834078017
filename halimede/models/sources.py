"""Where models come from: a file of the node, an HTTP server, or S3. Each source is a stream of blocks with a mark.

The mark (size and modification time, or the ETag) tells later whether the origin still has the same content. Errors of
libraries are never passed on: their texts hold whole URLs.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from halimede.models.cache import BLOCK, in_thread
from halimede.models.errors import FetchError, Reason, redact
from halimede.models.s3 import open_s3, s3_asker
from halimede.models.stream import Asker, Limits, Stream

#: HTTP statuses that may be better later: time-out, too early, too many requests
PASSING = frozenset({408, 425, 429})
NOT_MODIFIED = 304
MAX_REDIRECTS = 5


def local_path(url: str) -> Path | None:
    """Return the path that a URL names on this node, or None if it is not a local one. Raises FetchError."""
    if url.startswith("/"):
        return Path(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise FetchError(Reason.INVALID_URL, f"{redact(url)} is not a URL") from None
    if parts.scheme != "file":
        return None
    path = unquote(parts.path)
    if parts.netloc not in {"", "localhost"} or not path.startswith("/") or "\0" in path:
        raise FetchError(Reason.INVALID_URL, f"{redact(url)}: write file:/// and an absolute path")
    return Path(path)


def asker(url: str) -> Asker:
    """Return who asks for a URL, as far as its origin can tell. Raises FetchError."""
    if local_path(url) is None and urlsplit(url).scheme == "s3":
        return s3_asker(url)
    return Asker(url)


@contextlib.asynccontextmanager
async def open_source(url: str, known: str, limits: Limits) -> AsyncIterator[Stream]:
    """Open a URL. ``known`` is the mark of the content that the cache has, or empty. Raises FetchError."""
    path = local_path(url)
    if path is not None:
        async with open_file(path, known) as stream:
            yield stream
        return
    scheme = urlsplit(url).scheme
    if scheme in {"http", "https"}:
        async with open_http(url, known, limits) as stream:
            yield stream
        return
    if scheme == "s3":
        async with open_s3(url, known, limits) as stream:
            yield stream
        return
    text = f"{redact(url)}: use an absolute path, file://, http://, https:// or s3://"
    raise FetchError(Reason.UNSUPPORTED_SCHEME if scheme else Reason.INVALID_URL, text)


@contextlib.asynccontextmanager
async def open_file(path: Path, known: str) -> AsyncIterator[Stream]:
    """Open a regular file of this node."""
    try:
        file, facts = await in_thread(_open, path)
    except (FileNotFoundError, NotADirectoryError):
        raise FetchError(Reason.NOT_FOUND, f"{path} does not exist on this node") from None
    except OSError as error:
        raise FetchError(Reason.NOT_READABLE, f"{path}: {error.strerror}") from error
    with file:
        mark = _mark(facts)
        yield Stream(mark, facts.st_size, None if mark == known else _read(file, path, mark))


def _open(path: Path) -> tuple[BinaryIO, os.stat_result]:
    # not blocking: opening a named pipe would otherwise wait for a writer
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode):
        os.close(fd)
        what = "a folder" if stat.S_ISDIR(facts.st_mode) else "not a regular file"
        raise FetchError(Reason.NOT_A_FILE, f"{path} is {what}: name the model file itself")
    return os.fdopen(fd, "rb", buffering=0), facts


async def _read(file: BinaryIO, path: Path, mark: str) -> AsyncIterator[bytes]:
    try:
        while block := await in_thread(file.read, BLOCK):
            yield block
        if _mark(os.fstat(file.fileno())) != mark:
            raise FetchError(Reason.INTERRUPTED, f"{path} changed while it was read", temporary=True)
    except OSError as error:
        raise FetchError(Reason.NOT_READABLE, f"{path}: {error.strerror}", temporary=True) from error


def _mark(facts: os.stat_result) -> str:
    return f"{facts.st_size}-{facts.st_mtime_ns}-{facts.st_ino}"


@contextlib.asynccontextmanager
async def open_http(url: str, known: str, limits: Limits) -> AsyncIterator[Stream]:
    """Ask an HTTP server. Every failure is raised without its cause, whose text may hold the URL's secrets."""
    import aiohttp  # noqa: PLC0415  # 14 MB that an LC without HTTP models does not need

    timeout = aiohttp.ClientTimeout(
        total=limits.total_s, connect=limits.connect_s, sock_connect=limits.connect_s, sock_read=limits.inactivity_s
    )
    headers = {"Accept-Encoding": "identity"} | ({"If-None-Match": known} if known else {})
    shown = redact(url)
    try:
        async with (
            # a compressed body would be hashed as something that nobody published
            aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session,
            session.get(url, headers=headers, max_redirects=MAX_REDIRECTS) as response,
        ):
            mark = response.headers.get("ETag", "")
            if response.status == NOT_MODIFIED and known:
                yield Stream(known, None, None)
                return
            _judge(response.status, shown)
            yield Stream(mark, response.content_length, response.content.iter_chunked(BLOCK))
    except TimeoutError:
        raise FetchError(Reason.TIMEOUT, f"{shown} did not answer in time", temporary=True) from None
    except (aiohttp.ClientError, ValueError) as error:  # ValueError: host names that cannot be encoded
        raise _explain(error, shown) from None


def _judge(status: int, shown: str) -> None:
    if status != 200:
        passing = status in PASSING or status >= 500
        reason = Reason.NOT_FOUND if status in {404, 410} else Reason.HTTP_STATUS
        raise FetchError(reason, f"{shown} answered with HTTP status {status}", temporary=passing)


def _explain(error: Exception, shown: str) -> FetchError:
    import aiohttp  # noqa: PLC0415

    if isinstance(error, ValueError):
        return FetchError(Reason.INVALID_URL, f"{shown} is not a URL that can be asked")
    if isinstance(error, aiohttp.TooManyRedirects):
        return FetchError(Reason.HTTP_STATUS, f"{shown} redirects more than {MAX_REDIRECTS} times")
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return FetchError(Reason.UNREACHABLE, f"{shown}: its TLS certificate or handshake was not accepted")
    if isinstance(error, aiohttp.ClientOSError):
        text = error.strerror or type(error).__name__
        return FetchError(Reason.UNREACHABLE, f"{shown} cannot be reached: {text}", temporary=True)
    return FetchError(Reason.INTERRUPTED, f"{shown} broke off ({type(error).__name__})", temporary=True)
