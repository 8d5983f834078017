"""Files go back to a store: results, weights, hard samples. To a folder, an S3 store, or an HTTP server by PUT.

A file is hashed before it is sent and again while it is: what arrives is what was there at the beginning, or nothing.
Where a store can check a SHA-256 it is told to; where it says one, it is compared. Secrets of a URL are never shown.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import structlog

from halimede.models.address_policy import AddressPolicy
from halimede.models.cache import BLOCK, in_thread
from halimede.models.errors import FetchError, FetchReason, redact, retry_temporary
from halimede.models.source_registry import local_path
from halimede.models.source_types import TransferLimits
from halimede.models.upload_targets import Sending, put_file, put_http, put_s3

log = structlog.get_logger()

#: gets the bytes that have gone, and how many there are
Progress = Callable[[int, int], None]
#: seconds for which failures that may pass are tried again
PATIENCE_S = 120.0
MAX_FILES = 100_000


@dataclass(frozen=True, slots=True)
class Uploaded:
    """One file that is in the store now. ``url`` shows no secret."""

    url: str
    size: int
    sha256: str


async def upload(
    path: Path,
    url: str,
    *,
    progress: Progress | None = None,
    limits: TransferLimits | None = None,
    policy: AddressPolicy | None = None,
    patience_s: float = PATIENCE_S,
) -> list[Uploaded]:
    """Send a file, or all files of a folder, and return what has arrived. Raises FetchError.

    A file becomes ``url`` itself, or a name below it if that ends with a slash; the files of a folder keep their paths
    below ``url``. Links are not followed. ``policy`` judges the addresses that HTTP connects to; None: whoever calls
    has chosen the URL. The bounds are those of one file.
    """
    pairs = await in_thread(_pairs, path, url)
    whole, before = sum(size for _, _, size in pairs), 0
    done = []
    for file, to, size in pairs:

        def report(sent: int, before: int = before) -> None:
            if progress:
                progress(before + sent, whole)

        one = _Upload(file, to, limits or TransferLimits(), policy, report)
        done.append(await retry_temporary(one.attempt, patience_s))
        before += size
    return done


@dataclass(frozen=True, slots=True)
class _Upload:
    file: Path
    url: str
    limits: TransferLimits
    policy: AddressPolicy | None
    report: Callable[[int], None]

    async def attempt(self) -> Uploaded:
        shown = redact(self.url)
        try:
            size, sha256 = await in_thread(_measure, self.file)
            if size > self.limits.max_bytes:
                text = f"{self.file} has {size} bytes: the limit is {self.limits.max_bytes}"
                raise FetchError(FetchReason.TOO_LARGE, text)
            async with asyncio.timeout(self.limits.total_s), asyncio.timeout(self.limits.inactivity_s) as silence:
                sending = Sending(self._blocks(sha256, silence), size, sha256, shown, self.limits)
                await self._put(sending)
        except TimeoutError:
            raise FetchError(FetchReason.TIMEOUT, f"{shown} did not take {self.file} in time", temporary=True) from None
        except OSError as error:
            raise FetchError(
                FetchReason.NOT_READABLE, f"{self.file}: {error.strerror or type(error).__name__}"
            ) from None
        self.report(size)
        log.info("file sent", url=shown, size=size, digest=sha256)
        return Uploaded(shown, size, sha256)

    async def _put(self, sending: Sending) -> None:
        if path := local_path(self.url):
            return await put_file(path, sending)
        match urlsplit(self.url).scheme:
            case "http" | "https":
                return await put_http(self.url, sending, self.policy)
            case "s3":
                return await put_s3(self.url, sending)
        text = f"{sending.shown}: use an absolute path, file://, http://, https:// or s3://"
        raise FetchError(FetchReason.UNSUPPORTED_SCHEME, text)

    async def _blocks(self, sha256: str, silence: asyncio.Timeout) -> AsyncIterator[bytes]:
        """The file, once more. Every block that is taken begins a new wait; the last comes when all is known."""
        again, sent, loop = hashlib.sha256(), 0, asyncio.get_running_loop()
        with self.file.open("rb") as file:
            block = await in_thread(file.read, BLOCK)
            while block:
                again.update(block)
                following = await in_thread(file.read, BLOCK)
                if not following and again.hexdigest() != sha256:
                    raise FetchError(FetchReason.INTERRUPTED, f"{self.file} changed while it was sent", temporary=True)
                yield block
                silence.reschedule(loop.time() + self.limits.inactivity_s)
                sent += len(block)
                self.report(sent)
                block = following


def _pairs(path: Path, url: str) -> list[tuple[Path, str, int]]:
    """Return each file, where it goes, and its size."""
    if path.is_file():
        return [(path, _below(url, path.name) if urlsplit(url).path.endswith("/") else url, path.stat().st_size)]
    if not path.is_dir():
        raise FetchError(FetchReason.NOT_FOUND, f"{path} does not exist: name a file or a folder")
    files = sorted(each for each in path.rglob("*") if each.is_file() and not each.is_symlink())
    if not files:
        raise FetchError(FetchReason.NOT_FOUND, f"{path} has no files")
    if len(files) > MAX_FILES:
        raise FetchError(FetchReason.TOO_LARGE, f"{path} has more than {MAX_FILES} files: send an archive of it")
    return [(each, _below(url, each.relative_to(path).as_posix()), each.stat().st_size) for each in files]


def _below(url: str, name: str) -> str:
    """Return the URL of a name below another, before its query; S3 keys and paths are not escaped."""
    parts = urlsplit(url)
    if parts.scheme in {"", "s3"}:
        return f"{url.rstrip('/')}/{name}"
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}"))


def _measure(file: Path) -> tuple[int, str]:
    with file.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
        return opened.tell(), sha256
