"""HTTP servers as sources of models: ``open_http``.

Redirects are followed here, and the address of every connection is checked when its socket is made. So the policy also
holds for redirects, and for a name whose address changes between two lookups. Proxies of the environment are not used,
because behind a proxy the final address of a connection is unknown. A validator is the ETag or the date of a response.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import socket
import zlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from halimede.errors import cause_of
from halimede.models.address_policy import AddressPolicy
from halimede.models.archive import GZIP_WINDOW
from halimede.models.cache import BLOCK
from halimede.models.errors import FetchError, FetchReason, redact
from halimede.models.partial_download import is_strong
from halimede.models.source_types import SourceRequest, Stream, TransferLimits

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession
    from yarl import URL

#: HTTP statuses after which a request may succeed later: timeout, too early, too many requests
TEMPORARY_STATUSES = frozenset({408, 425, 429})
#: HTTP statuses
PARTIAL_CONTENT, NOT_MODIFIED, UNSATISFIABLE = 206, 304, 416
#: HTTP statuses of redirects
REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: most redirects of a request
MAX_REDIRECTS = 5
#: begin of a validator that is made of a date, without an ETag: weak, since a file may change twice within a second
DATE_VALIDATOR = "W/Last-Modified "
#: the header Content-Range: first byte, last byte, size of the whole content or ``*``
CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
#: the schemes of URLs that are opened here
SCHEMES = frozenset({"http", "https"})
#: begin of an ETag of which equal ones do not mean equal bytes
WEAK = "W/"
#: values of the header Content-Encoding, and ends of names whose content is compressed itself
GZIP_ENCODINGS, COMPRESSED_NAMES = frozenset({"gzip", "x-gzip"}), (".gz", ".tgz")


@contextlib.asynccontextmanager
async def open_http(
    url: str,
    request: SourceRequest,
    limits: TransferLimits,
    policy: AddressPolicy,
    shown: str = "",
    *,
    encoded: bool = False,
) -> AsyncIterator[Stream]:
    """Request a URL from an HTTP server, and yield its stream, which is open until the end of the block.

    ``shown``: the URL as errors show it; empty: without its secrets. ``encoded``: the URL is signed, and is sent
    unchanged. Raises FetchError, also while blocks are read, without its cause, whose text may contain secrets.
    """
    import aiohttp  # noqa: PLC0415  # 14 MB that an LC without HTTP models does not need
    from yarl import URL  # noqa: PLC0415

    timeout = aiohttp.ClientTimeout(
        total=limits.total_s, connect=limits.connect_s, sock_connect=limits.connect_s, sock_read=limits.inactivity_s
    )
    shown = shown or redact(url)
    guard = Guard(policy)
    try:
        async with (
            aiohttp.TCPConnector(socket_factory=guard, use_dns_cache=False) as connector,
            aiohttp.ClientSession(
                connector=connector,
                timeout=timeout,
                auto_decompress=False,  # ``_is_compressed`` decides what is decompressed
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=BLOCK,
            ) as session,
        ):
            hops = _Hops(session, guard, shown, limits.connect_s + limits.inactivity_s)
            yield await hops.open(URL(url, encoded=encoded), request)
    except TimeoutError:
        raise FetchError(FetchReason.TIMEOUT, f"{shown} did not answer in time", temporary=True) from None
    except (aiohttp.ClientError, ValueError) as error:  # ValueError: host names that cannot be encoded
        raise _as_fetch_error(error, shown, guard) from None


class Guard:
    """Creates the sockets of one transfer for aiohttp, and refuses addresses by a policy.

    Attributes:
        policy: the addresses that are allowed.
        host: of the present request.
        shown: the URL of the present request as errors show it.
        refusal: why an address of the host was refused; empty: none was.

    """

    def __init__(self, policy: AddressPolicy) -> None:
        self.policy = policy
        self.host = self.shown = ""
        self.refusal = ""
        self._sockets = 0

    def expect(self, host: str, shown: str) -> None:
        """Check the following connections as connections to this host. Raises FetchError if it is no host."""
        self.policy.check_host(host, shown)
        self.host, self.shown, self.refusal, self._sockets = host, shown, "", 0

    @property
    def has_refused_all(self) -> bool:
        """Whether addresses of the host were tried and all of them were refused."""
        return bool(self.refusal) and not self._sockets

    def __call__(self, address_info: tuple[Any, ...]) -> socket.socket:
        """Return a socket for an address in the form of ``getaddrinfo``. Raises PermissionError if it is refused."""
        family, kind, protocol, _, address = address_info
        if refusal := self.policy.refusal(self.host, address[0]):
            self.refusal = refusal
            raise PermissionError(errno.EACCES, refusal)  # another address of the host may be allowed
        self._sockets += 1
        return socket.socket(family, kind, protocol)


class _Hops:
    """Requests of one session that follow redirects themselves, so that each host is checked.

    ``guard``: makes the session's sockets. ``shown``: the URL as errors show it. ``patience_s``: seconds for the
    headers of each response.
    """

    def __init__(self, session: ClientSession, guard: Guard, shown: str, patience_s: float) -> None:
        self._session = session
        self._guard = guard
        self._shown = shown
        self._patience_s = patience_s

    async def open(self, url: URL, request: SourceRequest) -> Stream:
        """Return the stream of a URL, which starts at the offset of the request or at 0. Raises FetchError."""
        response = await self._follow_redirects(url, _headers(request))
        validator = _validator(response)
        if response.status == NOT_MODIFIED and request.if_none_match:
            return Stream(request.if_none_match, None, None)
        is_compressed = _is_compressed(response)
        if request.offset and response.status in {PARTIAL_CONTENT, UNSATISFIABLE}:
            size = None if is_compressed else _continued_size(response, request, validator)
            if size is not None:
                return Stream(
                    validator or request.if_range, size or None, response.content.iter_chunked(BLOCK), request.offset
                )
            response.close()
            return await self.open(url, SourceRequest(request.if_none_match))
        self._check_status(response.status)
        if is_compressed:  # its bytes have another position in each encoding, so it is not resumed
            weak = WEAK + validator if is_strong(validator) else validator
            return Stream(weak, None, _decompress(response.content.iter_chunked(BLOCK), self._shown))
        return Stream(validator, response.content_length, response.content.iter_chunked(BLOCK))

    async def _follow_redirects(self, url: URL, headers: dict[str, str]) -> ClientResponse:
        """Return the first response that is no redirect. Raises FetchError, TimeoutError, and aiohttp's errors."""
        from aiohttp import encode_basic_auth  # noqa: PLC0415

        current, shown = url, self._shown
        if url.user or url.password:
            headers = headers | {"Authorization": encode_basic_auth(url.user or "", url.password or "")}
            current = url.with_user(None)
        for _ in range(MAX_REDIRECTS + 1):
            self._guard.expect(current.raw_host or "", shown)
            async with asyncio.timeout(self._patience_s):  # a socket timeout never ends headers that come byte by byte
                response = await self._session.get(current, headers=headers, allow_redirects=False)
            if response.status not in REDIRECTS:
                return response
            location = response.headers.get("Location", "")
            response.close()  # its body is not needed
            target = self._redirect_target(current, location)
            if target.origin() != current.origin():
                headers.pop("Authorization", None)  # the credentials are for the first host only
            current, shown = target, f"{self._shown}, which redirects to {redact(str(target))}"
        raise FetchError(FetchReason.HTTP_STATUS, f"{self._shown} redirects more than {MAX_REDIRECTS} times")

    def _redirect_target(self, current: URL, location: str) -> URL:
        """Return the URL of a redirect, without user and password. Raises FetchError if it must not be followed."""
        from yarl import URL  # noqa: PLC0415

        try:
            target = current.join(URL(location))
            _ = target.port
        except ValueError:
            target = URL()
        shown = f"{self._shown} redirects to {redact(str(target)) or 'nowhere'}"
        if target.scheme not in SCHEMES or not target.host:
            raise FetchError(FetchReason.FORBIDDEN_REDIRECT, f"{shown}: only http:// and https:// are allowed")
        if current.scheme == "https" and target.scheme == "http":
            raise FetchError(FetchReason.FORBIDDEN_REDIRECT, f"{shown}: a redirect from https to http is not followed")
        return target.with_user(None) if target.user or target.password else target

    def _check_status(self, status: int) -> None:
        """Raise FetchError for any other status than 200."""
        if status != 200:
            is_temporary = status in TEMPORARY_STATUSES or status >= 500
            reason = FetchReason.NOT_FOUND if status in {404, 410} else FetchReason.HTTP_STATUS
            text = f"{self._shown} answered with HTTP status {status}"
            raise FetchError(reason, text, temporary=is_temporary, status=status)


def _headers(request: SourceRequest) -> dict[str, str]:
    """Return the headers of a request: its validators as conditions, and its offset as a range."""
    headers = {"Accept-Encoding": "identity"}
    if request.if_none_match.startswith(DATE_VALIDATOR):
        headers["If-Modified-Since"] = request.if_none_match.removeprefix(DATE_VALIDATOR)
    elif request.if_none_match:
        headers["If-None-Match"] = request.if_none_match
    if request.offset:
        headers["Range"] = f"bytes={request.offset}-"
        if is_strong(request.if_range):
            headers["If-Range"] = request.if_range
    return headers


def _is_compressed(response: ClientResponse) -> bool:
    """Whether the server compressed the content for the transfer, although the request forbids it.

    Some servers send the header also for a file whose name ends with .gz: then the compressed file is the content.
    """
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    return encoding in GZIP_ENCODINGS and not response.url.path.lower().endswith(COMPRESSED_NAMES)


async def _decompress(blocks: AsyncIterator[bytes], shown: str) -> AsyncIterator[bytes]:
    """Yield the decompressed content of gzip blocks, in blocks of limited size. Raises FetchError."""
    gunzip = zlib.decompressobj(GZIP_WINDOW)
    damaged = FetchError(
        FetchReason.INTERRUPTED, f"{shown} sends a body that is no whole gzip, as its header states", temporary=True
    )
    async for block in blocks:
        compressed, length = block, BLOCK
        while length == BLOCK and not gunzip.eof:  # a full block: there may be more of it
            try:
                content = gunzip.decompress(compressed, BLOCK)
            except zlib.error:
                raise damaged from None
            compressed, length = gunzip.unconsumed_tail, len(content)
            if content:
                yield content
    if not gunzip.eof:
        raise damaged


def _validator(response: ClientResponse) -> str:
    """Return the ETag or the date of a response, which shows later whether the content has changed; empty: neither."""
    dated = response.headers.get("Last-Modified", "")
    return response.headers.get("ETag", "") or (DATE_VALIDATOR + dated if dated else "")


def _continued_size(response: ClientResponse, request: SourceRequest, validator: str) -> int | None:
    """Return the bytes of the whole content if a response continues the partial content; else None. 0: not known."""
    content_range = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status != PARTIAL_CONTENT or content_range is None or int(content_range[1]) != request.offset:
        return None
    if request.if_range and validator and validator != request.if_range:
        return None  # the content has changed, and the server does not support If-Range
    return 0 if content_range[3] == "*" else int(content_range[3])


def _as_fetch_error(error: Exception, shown: str, guard: Guard) -> FetchError:
    """Return the FetchError for a failure of aiohttp, without the text of that failure."""
    import aiohttp  # noqa: PLC0415

    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return FetchError(FetchReason.INVALID_URL, f"{shown} is not a valid URL")
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return FetchError(FetchReason.UNREACHABLE, f"{shown}: its TLS certificate or handshake is not valid")
    if isinstance(error, aiohttp.ClientOSError):
        if isinstance(error, aiohttp.ClientConnectorError) and guard.has_refused_all:
            return FetchError(FetchReason.FORBIDDEN_ADDRESS, f"{guard.shown} is not allowed: {guard.refusal}")
        return FetchError(FetchReason.UNREACHABLE, f"{shown} cannot be reached: {cause_of(error)}", temporary=True)
    text = f"{shown} was interrupted (the server ended the transfer early)"
    return FetchError(FetchReason.INTERRUPTED, text, temporary=True)
