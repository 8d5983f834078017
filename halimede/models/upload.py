"""Uploads files to a store (results, weights, hard samples): to a folder, an S3 store, or an HTTP server by PUT.

A file is hashed before it is sent and again while it is sent: either its first content arrives, or nothing. If a store
can verify a SHA-256, it receives the digest; if it returns one, that is compared. A store accepts a whole file or keeps
the earlier one: no reader sees a partial file. Secrets of a URL are never shown, nor errors of libraries, whose texts
contain whole URLs.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit

import structlog

from halimede.errors import cause_of, hide_secrets
from halimede.models.address_policy import AddressPolicy
from halimede.models.cache import BLOCK, in_thread
from halimede.models.errors import FetchError, FetchReason, disk_error, redact, retry_temporary
from halimede.models.http_source import PASSING, REDIRECTS, Guard
from halimede.models.s3_source import MISSING, Access, bucket_and_key, store_access
from halimede.models.source_registry import local_path
from halimede.models.source_types import TransferLimits
from halimede.system.files import replacing, sync_folder

if TYPE_CHECKING:
    from aiohttp import ClientResponse
    from obstore.store import S3Store

log = structlog.get_logger()
#: called with the bytes sent, and the total
Progress = Callable[[int, int], None]
#: seconds for which temporary failures are retried
PATIENCE_S = 120.0
MAX_FILES = 100_000
#: the least bytes of one part of a multipart upload, and the most parts (a store accepts 10,000)
PART, MOST_PARTS = 8 * 1024**2, 9000
#: parts that are sent at a time
PARALLEL = 4
DENIED = frozenset({401, 403})
TOO_LARGE = 413


@dataclass(frozen=True, slots=True)
class Uploaded:
    """One file that is in the store. ``url`` shows no secret."""

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
    """Send a file, or all files of a folder, and return those that arrived. Raises FetchError.

    A file becomes ``url`` itself, or a name below it if that ends with a slash; the files of a folder keep their paths
    below ``url``. Links are not followed. ``policy`` checks the addresses that HTTP connects to; None: the caller has
    chosen the URL. The limits apply to each file.
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
            raise FetchError(FetchReason.TIMEOUT, f"{shown} timed out with {self.file}", temporary=True) from None
        except OSError as error:
            raise FetchError(FetchReason.NOT_READABLE, f"{self.file}: {cause_of(error)}") from None
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
        """Yield the file again. Each block that is taken restarts the timeout; the last comes after verification."""
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
    """Return each file, its target URL, and its size."""
    if path.is_file():
        return [(path, _below(url, path.name) if urlsplit(url).path.endswith("/") else url, path.stat().st_size)]
    if not path.is_dir():
        raise FetchError(FetchReason.NOT_FOUND, f"{path} does not exist: give a file or a folder")
    files = sorted(file for file in path.rglob("*") if file.is_file() and not file.is_symlink())
    if not files:
        raise FetchError(FetchReason.NOT_FOUND, f"{path} has no files")
    if len(files) > MAX_FILES:
        raise FetchError(FetchReason.TOO_LARGE, f"{path} has more than {MAX_FILES} files: upload it as an archive")
    return [(file, _below(url, file.relative_to(path).as_posix()), file.stat().st_size) for file in files]


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


@dataclass(frozen=True, slots=True)
class Sending:
    """One file that is being sent: its blocks and properties. ``shown`` replaces the URL in errors."""

    blocks: AsyncIterator[bytes]
    size: int
    sha256: str
    shown: str
    limits: TransferLimits


async def put_file(path: Path, sending: Sending) -> None:
    """Write a local file: first to a temporary name in the same folder. Raises FetchError."""
    try:
        await in_thread(lambda: path.parent.mkdir(parents=True, exist_ok=True))
        with replacing(path, shared=True) as new, new.open("xb", buffering=0) as file:
            async for block in sending.blocks:
                await in_thread(_write, file, block)
            await in_thread(os.fsync, file.fileno())
        await in_thread(sync_folder, path.parent)
    except OSError as error:
        raise disk_error(str(path), error, FetchReason.NOT_WRITABLE) from error


def _write(file: FileIO, block: bytes) -> None:
    remaining = memoryview(block)
    while remaining:
        remaining = remaining[file.write(remaining) :]


async def put_http(url: str, sending: Sending, policy: AddressPolicy | None) -> None:
    """Send a file by PUT. Raises FetchError. Redirects are not followed: the body was already sent by then."""
    import aiohttp  # noqa: PLC0415  # 14 MB that others do not need
    from yarl import URL  # noqa: PLC0415

    guard = Guard(policy) if policy else None
    limits, shown = sending.limits, sending.shown
    digest = base64.b64encode(bytes.fromhex(sending.sha256)).decode()
    headers = {
        "Content-Length": str(sending.size),
        "Content-Type": "application/octet-stream",
        "Content-Digest": f"sha-256=:{digest}:",  # RFC 9530
    }
    timeout = aiohttp.ClientTimeout(total=limits.total_s, connect=limits.connect_s, sock_connect=limits.connect_s)
    try:
        async with (
            aiohttp.TCPConnector(socket_factory=guard, use_dns_cache=False) as connector,
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        ):
            if guard:
                guard.expect(URL(url).raw_host or "", shown)
            answer = session.put(url, data=sending.blocks, headers=headers, allow_redirects=False)
            async with answer as response:
                _judge(response, shown, digest)
    except (aiohttp.ClientError, ValueError) as error:
        if guard and guard.refused_all:
            raise FetchError(FetchReason.FORBIDDEN_ADDRESS, f"{shown} is not allowed: {guard.refused}") from None
        if isinstance(error, ValueError) and not isinstance(error, OSError):
            raise FetchError(FetchReason.INVALID_URL, f"{shown} is not a valid URL") from None
        text = f"{shown} cannot be reached, or the connection was lost ({hide_secrets(cause_of(error))})"
        raise FetchError(FetchReason.UNREACHABLE, text, temporary=True) from None


def _judge(response: ClientResponse, shown: str, digest: str) -> None:
    status = response.status
    if status in REDIRECTS:
        raise FetchError(FetchReason.HTTP_STATUS, f"{shown} redirects (HTTP status {status}): use the other address")
    if status in DENIED:
        raise FetchError(FetchReason.ACCESS_DENIED, f"{shown} denied the upload (HTTP status {status})")
    if status == TOO_LARGE:
        raise FetchError(FetchReason.TOO_LARGE, f"{shown} does not accept files of that size (HTTP status {status})")
    if not 200 <= status < 300:
        passing = status in PASSING or status >= 500
        raise FetchError(FetchReason.HTTP_STATUS, f"{shown} answered with HTTP status {status}", temporary=passing)
    repr_digest = response.headers.get("Repr-Digest", "")
    if "sha-256=:" in repr_digest and f"sha-256=:{digest}:" not in repr_digest:
        text = f"{shown} reports different content than was sent"
        raise FetchError(FetchReason.DIGEST_MISMATCH, text, temporary=True)


async def put_s3(url: str, sending: Sending) -> None:
    """Send a file to an S3 store, in parts if it is large, each with its SHA-256. Raises FetchError."""
    bucket, key = bucket_and_key(url)
    access = store_access()
    shown = f"{sending.shown} at {access.endpoint or 'Amazon S3'}"
    try:
        import obstore  # noqa: PLC0415  # not everybody has a store
        from obstore import exceptions  # noqa: PLC0415
    except ImportError:
        raise FetchError(FetchReason.NOT_INSTALLED, f"{shown}: {MISSING}") from None
    try:
        store = _store(bucket, access, sending.limits)
        await obstore.put_async(
            store,
            key,
            sending.blocks,
            attributes={"sha256": sending.sha256},
            use_multipart=sending.size > PART,
            chunk_size=max(PART, -(-sending.size // MOST_PARTS)),
            max_concurrency=PARALLEL,
        )
        there = await obstore.head_async(store, key)
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
        how = "these credentials" if access.key_id else "no credentials"
        raise FetchError(FetchReason.ACCESS_DENIED, f"{shown} denied the upload with {how}") from None
    except FileNotFoundError:
        raise FetchError(FetchReason.NOT_FOUND, f"{shown}: there is no such bucket") from None
    except (exceptions.InvalidPathError, ValueError):
        raise FetchError(FetchReason.INVALID_URL, f"{shown} cannot be requested") from None
    except exceptions.BaseError:  # its text has the whole request
        text = f"{shown} cannot be reached, or the connection was lost"
        raise FetchError(FetchReason.UNREACHABLE, text, temporary=True) from None
    if there["size"] != sending.size:
        text = f"{shown} has {there['size']} bytes of {sending.size}"
        raise FetchError(FetchReason.DIGEST_MISMATCH, text, temporary=True)


def _store(bucket: str, access: Access, limits: TransferLimits) -> S3Store:
    from obstore.store import S3Store  # noqa: PLC0415

    who = {"access_key_id": access.key_id, "secret_access_key": access.secret}
    config = {
        "region": access.region,
        "checksum_algorithm": "sha256",
        **({"endpoint": access.endpoint} if access.endpoint else {}),
        **(who if access.key_id else {"skip_signature": "true"}),
    }
    return S3Store(
        bucket,
        config=config,  # type: ignore[arg-type]
        client_options={
            "allow_http": access.endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=limits.connect_s),
            "timeout": timedelta(seconds=limits.total_s),
        },
        retry_config={"max_retries": 2},
    )
