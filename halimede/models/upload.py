"""Uploads files to a store (results, weights, hard samples): to a folder, an S3 store, or an HTTP server by PUT.

A file is hashed before it is sent and again while it is sent. If it changes meanwhile, the upload fails before its last
block, so the store keeps the earlier file: no reader sees a partial file. A store that can verify a SHA-256 receives
the digest; a digest that it returns is compared. Errors show neither secrets of a URL nor texts of libraries, which
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
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit, urlunsplit

import structlog

from halimede.errors import cause_of, hide_secrets
from halimede.models.address_policy import AddressPolicy
from halimede.models.cache import BLOCK, in_thread
from halimede.models.errors import FetchError, FetchReason, disk_error, redact, retry_temporary
from halimede.models.http_source import REDIRECTS, TEMPORARY_STATUSES, Guard
from halimede.models.s3_source import NOT_INSTALLED, Access, bucket_and_key, store_access
from halimede.models.source_registry import local_path
from halimede.models.source_types import TransferLimits
from halimede.system.files import replacement_file, sync_folder

if TYPE_CHECKING:
    from aiohttp import ClientResponse
    from obstore.store import S3Store

log = structlog.get_logger()
#: called with the bytes of all files that were sent, and their total
Progress = Callable[[int, int], None]
#: seconds for which temporary failures are retried
PATIENCE_S = 120.0
#: most files of a folder
MAX_FILES = 100_000
#: least bytes of a part of a multipart upload, and most parts (a store accepts 10,000)
MIN_PART_BYTES, MAX_PARTS = 8 * 1024**2, 9000
#: parts that are sent at a time
PARALLEL_PARTS = 4
#: HTTP statuses of a denied upload, and of a file that is too large
DENIED_STATUSES, TOO_LARGE_STATUS = frozenset({401, 403}), 413


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A file that is in the store.

    Attributes:
        url: where it is, without secrets.
        size: in bytes.
        sha256: its digest in hexadecimal.

    """

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
    """Send a file, or all files of a folder one after the other, and return them when all are in the store.

    A file is stored as ``url`` itself, or below it by its own name if ``url`` ends with a slash. The files of a folder
    keep their paths below ``url``; links are left out. ``limits``: of each file. ``policy``: the addresses that HTTP
    may connect to; None: any. ``patience_s``: how long temporary failures of a file are retried. Raises FetchError for
    the first file that cannot be sent; those before it are in the store.
    """
    targets = await in_thread(_targets, path, url)
    total, sent_before = sum(size for _, _, size in targets), 0
    uploads = []
    for file, file_url, size in targets:

        def report(sent: int, sent_before: int = sent_before) -> None:  # bound here: the loop changes it
            """Tell ``progress`` the bytes of all files, from those of this one."""
            if progress:
                progress(sent_before + sent, total)

        attempt = _Upload(file, file_url, limits or TransferLimits(), policy, report).attempt
        uploads.append(await retry_temporary(attempt, patience_s))
        sent_before += size
    return uploads


@dataclass(frozen=True, slots=True)
class _Upload:
    """One file on its way to ``url``. ``report`` is called with the number of its bytes that were sent.

    ``limits``: of this transfer. ``policy``: the addresses that HTTP may connect to; None: any.
    """

    file: Path
    url: str
    limits: TransferLimits
    policy: AddressPolicy | None
    report: Callable[[int], None]

    async def attempt(self) -> Uploaded:
        """Send the file once. Raises FetchError."""
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
        """Send the file by the scheme of its URL. Raises FetchError."""
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
        """Yield the file in blocks, the last one only if the whole file still has ``sha256``.

        Each block that the store accepts restarts the timeout ``silence``.
        """
        digest, sent, loop = hashlib.sha256(), 0, asyncio.get_running_loop()
        with self.file.open("rb") as file:
            block = await in_thread(file.read, BLOCK)
            while block:
                digest.update(block)
                following = await in_thread(file.read, BLOCK)
                if not following and digest.hexdigest() != sha256:
                    raise FetchError(FetchReason.INTERRUPTED, f"{self.file} changed while it was sent", temporary=True)
                yield block
                silence.reschedule(loop.time() + self.limits.inactivity_s)
                sent += len(block)
                self.report(sent)
                block = following


def _targets(path: Path, url: str) -> list[tuple[Path, str, int]]:
    """Return each file, the URL that it becomes, and its size in bytes. Raises FetchError."""
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
    """Return a URL with a name appended to its path, and escaped except in S3 keys and local paths."""
    parts = urlsplit(url)
    if parts.scheme in {"", "s3"}:
        return f"{url.rstrip('/')}/{name}"
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}"))


def _measure(file: Path) -> tuple[int, str]:
    """Return the size of a file in bytes, and its SHA-256 in hexadecimal."""
    with file.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
        return opened.tell(), sha256


@dataclass(frozen=True, slots=True)
class Sending:
    """A file that is being sent.

    Attributes:
        blocks: its content; the last block comes only if the whole content has the digest.
        size: in bytes.
        sha256: its digest in hexadecimal.
        shown: the URL as errors show it.
        limits: of the transfer.

    """

    blocks: AsyncIterator[bytes]
    size: int
    sha256: str
    shown: str
    limits: TransferLimits


async def put_file(path: Path, sending: Sending) -> None:
    """Write a local file under a temporary name in its folder, then rename it. Raises FetchError."""
    try:
        await in_thread(lambda: path.parent.mkdir(parents=True, exist_ok=True))
        with replacement_file(path, shared=True) as new, new.open("xb") as file:
            async for block in sending.blocks:
                await in_thread(file.write, block)
            await in_thread(file.flush)
            await in_thread(os.fsync, file.fileno())
        await in_thread(sync_folder, path.parent)
    except OSError as error:
        raise disk_error(str(path), error, FetchReason.NOT_WRITABLE) from error


async def put_http(url: str, sending: Sending, policy: AddressPolicy | None) -> None:
    """Send a file by PUT. ``policy``: the addresses to connect to; None: any. Raises FetchError.

    A redirect is an error, because it comes when the body was already sent.
    """
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
            async with session.put(url, data=sending.blocks, headers=headers, allow_redirects=False) as response:
                _check_response(response, shown, digest)
    except (aiohttp.ClientError, ValueError) as error:
        if guard and guard.has_refused_all:
            raise FetchError(FetchReason.FORBIDDEN_ADDRESS, f"{shown} is not allowed: {guard.refusal}") from None
        if isinstance(error, ValueError) and not isinstance(error, OSError):
            raise FetchError(FetchReason.INVALID_URL, f"{shown} is not a valid URL") from None
        text = f"{shown} cannot be reached, or the connection was lost ({hide_secrets(cause_of(error))})"
        raise FetchError(FetchReason.UNREACHABLE, text, temporary=True) from None


def _check_response(response: ClientResponse, shown: str, digest: str) -> None:
    """Raise FetchError if a server did not store the content of ``digest`` (SHA-256 in base 64)."""
    status = response.status
    if status in REDIRECTS:
        raise FetchError(FetchReason.HTTP_STATUS, f"{shown} redirects (HTTP status {status}): use the other address")
    if status in DENIED_STATUSES:
        raise FetchError(FetchReason.ACCESS_DENIED, f"{shown} denied the upload (HTTP status {status})")
    if status == TOO_LARGE_STATUS:
        raise FetchError(FetchReason.TOO_LARGE, f"{shown} does not accept files of that size (HTTP status {status})")
    if not 200 <= status < 300:
        is_temporary = status in TEMPORARY_STATUSES or status >= 500
        text = f"{shown} answered with HTTP status {status}"
        raise FetchError(FetchReason.HTTP_STATUS, text, temporary=is_temporary)
    repr_digest = response.headers.get("Repr-Digest", "")
    if "sha-256=:" in repr_digest and f"sha-256=:{digest}:" not in repr_digest:
        text = f"{shown} reports different content than was sent"
        raise FetchError(FetchReason.DIGEST_MISMATCH, text, temporary=True)


async def put_s3(url: str, sending: Sending) -> None:
    """Send a file to an S3 store, in parts if it is large, each with its SHA-256. Raises FetchError.

    The environment has the address of the store and the credentials.
    """
    bucket, key = bucket_and_key(url)
    access = store_access()
    shown = f"{sending.shown} at {access.endpoint or 'Amazon S3'}"
    try:
        import obstore  # noqa: PLC0415  # not everybody has a store
        from obstore import exceptions  # noqa: PLC0415
    except ImportError:
        raise FetchError(FetchReason.NOT_INSTALLED, f"{shown}: {NOT_INSTALLED}") from None
    try:
        store = _store(bucket, access, sending.limits)
        await obstore.put_async(
            store,
            key,
            sending.blocks,
            attributes={"sha256": sending.sha256},
            use_multipart=sending.size > MIN_PART_BYTES,
            chunk_size=max(MIN_PART_BYTES, -(-sending.size // MAX_PARTS)),
            max_concurrency=PARALLEL_PARTS,
        )
        stored = await obstore.head_async(store, key)
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
        credentials = "these credentials" if access.key_id else "no credentials"
        raise FetchError(FetchReason.ACCESS_DENIED, f"{shown} denied the upload with {credentials}") from None
    except FileNotFoundError:
        raise FetchError(FetchReason.NOT_FOUND, f"{shown}: there is no such bucket") from None
    except (exceptions.InvalidPathError, ValueError):
        raise FetchError(FetchReason.INVALID_URL, f"{shown} cannot be requested") from None
    except exceptions.BaseError:  # its text has the whole request
        text = f"{shown} cannot be reached, or the connection was lost"
        raise FetchError(FetchReason.UNREACHABLE, text, temporary=True) from None
    if stored["size"] != sending.size:
        text = f"{shown} has {stored['size']} bytes of {sending.size}"
        raise FetchError(FetchReason.DIGEST_MISMATCH, text, temporary=True)


def _store(bucket: str, access: Access, limits: TransferLimits) -> S3Store:
    """Return obstore's client of a bucket. Raises ValueError, and obstore's errors."""
    from obstore.store import S3Store  # noqa: PLC0415

    return S3Store(
        bucket,
        config=access.config | {"checksum_algorithm": "sha256"},  # type: ignore[arg-type]
        client_options={
            "allow_http": access.endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=limits.connect_s),
            "timeout": timedelta(seconds=limits.total_s),
        },
        retry_config={"max_retries": 2},
    )
