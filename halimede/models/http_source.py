"""HTTP servers as sources. Redirects are followed here, and every connection is checked at its socket.

So the policy also holds for a name whose address changes between two lookups, and for redirects. Proxies of the
environment are not used: behind a proxy the final address of a connection is unknown.
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
from halimede.models.archive import GZIP
from halimede.models.cache import BLOCK
from halimede.models.errors import FetchError, FetchReason, redact
from halimede.models.partial_download import strong
from halimede.models.source_types import SourceRequest, Stream, TransferLimits

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession
    from yarl import URL

#: HTTP statuses that may succeed later: timeout, too early, too many requests
PASSING = frozenset({408, 425, 429})
PARTIAL, NOT_MODIFIED, UNSATISFIABLE = 206, 304, 416
REDIRECTS = frozenset({301, 302, 303, 307, 308})
MAX_REDIRECTS = 5
#: the begin of the validator of content without an ETag: weak, because a server may change a file twice within a second
DATED = "W/Last-Modified "
CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
SCHEMES = frozenset({"http", "https"})
WEAK = "W/"
GZIP_ENCODINGS, COMPRESSED_NAMES = frozenset({"gzip", "x-gzip"}), (".gz", ".tgz")


@contextlib.asynccontextmanager
async def open_http(
    url: str,
    ask: SourceRequest,
    limits: TransferLimits,
    policy: AddressPolicy,
    shown: str = "",
    *,
    encoded: bool = False,
) -> AsyncIterator[Stream]:
    """Request a URL from an HTTP server. Failures are raised without their cause, whose text may contain secrets.

    ``shown`` replaces the URL in errors; an ``encoded`` URL, which is signed, is sent unchanged.
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
                auto_decompress=False,  # see ``_is_encoded``
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=BLOCK,
            ) as session,
        ):
            hops = _Hops(session, guard, shown, limits.connect_s + limits.inactivity_s)
            yield await hops.open(URL(url, encoded=encoded), ask)
    except TimeoutError:
        raise FetchError(FetchReason.TIMEOUT, f"{shown} did not answer in time", temporary=True) from None
    except (aiohttp.ClientError, ValueError) as error:  # ValueError: host names that cannot be encoded
        raise _explain(error, shown, guard) from None


class Guard:
    """Creates the sockets of one download, and refuses addresses by the policy."""

    def __init__(self, policy: AddressPolicy) -> None:
        self.policy = policy
        self.host = self.shown = ""
        self.refused = ""
        self._sockets = 0

    def expect(self, host: str, shown: str) -> None:
        """Check connections for this host from now on. Raises FetchError."""
        self.policy.check_host(host, shown)
        self.host, self.shown, self.refused, self._sockets = host, shown, "", 0

    @property
    def refused_all(self) -> bool:
        """Whether all addresses of the host were refused."""
        return bool(self.refused) and not self._sockets

    def __call__(self, info: tuple[Any, ...]) -> socket.socket:
        """Create a socket for an address, in the form of ``getaddrinfo``."""
        family, kind, protocol, _, address = info
        if why := self.policy.refusal(self.host, address[0]):
            self.refused = why
            raise PermissionError(errno.EACCES, why)  # another address of the host may be allowed
        self._sockets += 1
        return socket.socket(family, kind, protocol)


class _Hops:
    """Follows redirects from a URL to the server that answers."""

    def __init__(self, session: ClientSession, guard: Guard, shown: str, patience_s: float) -> None:
        self._session = session
        self._guard = guard
        self._shown = shown
        self._patience_s = patience_s

    async def open(self, url: URL, ask: SourceRequest) -> Stream:
        response = await self._answer(url, _headers(ask))
        validator = _validator(response)
        if response.status == NOT_MODIFIED and ask.if_none_match:
            return Stream(ask.if_none_match, None, None)
        encoded = _is_encoded(response)
        if ask.offset and response.status in {PARTIAL, UNSATISFIABLE}:
            size = None if encoded else _continues(response, ask, validator)
            if size is not None:
                return Stream(validator or ask.if_range, size or None, response.content.iter_chunked(BLOCK), ask.offset)
            response.close()
            return await self.open(url, SourceRequest(ask.if_none_match))
        self._judge(response.status)
        if encoded:  # its bytes have another position in each encoding, so it is not resumed
            weak = validator if validator.startswith(WEAK) or not validator else WEAK + validator
            return Stream(weak, None, _decoded(response.content.iter_chunked(BLOCK), self._shown))
        return Stream(validator, response.content_length, response.content.iter_chunked(BLOCK))

    async def _answer(self, url: URL, headers: dict[str, str]) -> ClientResponse:
        from aiohttp import encode_basic_auth  # noqa: PLC0415

        at, shown = url, self._shown
        if url.user or url.password:
            headers = headers | {"Authorization": encode_basic_auth(url.user or "", url.password or "")}
            at = url.with_user(None)
        for _ in range(MAX_REDIRECTS + 1):
            self._guard.expect(at.raw_host or "", shown)
            async with asyncio.timeout(self._patience_s):  # a socket timeout never ends headers that come byte by byte
                response = await self._session.get(at, headers=headers, allow_redirects=False)
            if response.status not in REDIRECTS:
                return response
            location = response.headers.get("Location", "")
            response.close()  # its body is not needed
            to = self._next(at, location)
            if to.origin() != at.origin():
                headers.pop("Authorization", None)  # the credentials are for the first host only
            at, shown = to, f"{self._shown}, which redirects to {redact(str(to))}"
        raise FetchError(FetchReason.HTTP_STATUS, f"{self._shown} redirects more than {MAX_REDIRECTS} times")

    def _next(self, at: URL, location: str) -> URL:
        from yarl import URL  # noqa: PLC0415

        try:
            to = at.join(URL(location))
            _ = to.port
        except ValueError:
            to = URL()
        shown = f"{self._shown} redirects to {redact(str(to)) or 'nowhere'}"
        if to.scheme not in SCHEMES or not to.host:
            raise FetchError(FetchReason.FORBIDDEN_REDIRECT, f"{shown}: only http:// and https:// are allowed")
        if at.scheme == "https" and to.scheme == "http":
            raise FetchError(FetchReason.FORBIDDEN_REDIRECT, f"{shown}: a redirect from https to http is not followed")
        return to.with_user(None) if to.user or to.password else to

    def _judge(self, status: int) -> None:
        if status != 200:
            passing = status in PASSING or status >= 500
            reason = FetchReason.NOT_FOUND if status in {404, 410} else FetchReason.HTTP_STATUS
            text = f"{self._shown} answered with HTTP status {status}"
            raise FetchError(reason, text, temporary=passing, status=status)


def _headers(ask: SourceRequest) -> dict[str, str]:
    headers = {"Accept-Encoding": "identity"}
    if ask.if_none_match.startswith(DATED):
        headers["If-Modified-Since"] = ask.if_none_match.removeprefix(DATED)
    elif ask.if_none_match:
        headers["If-None-Match"] = ask.if_none_match
    if ask.offset:
        headers["Range"] = f"bytes={ask.offset}-"
        if strong(ask.if_range):
            headers["If-Range"] = ask.if_range
    return headers


def _is_encoded(response: ClientResponse) -> bool:
    """Whether the server compressed the content for the transfer, although it was asked not to.

    Of a name that ends with .gz some servers send this header as well: there the compressed file is the content, which
    the digest is of.
    """
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    return encoding in GZIP_ENCODINGS and not response.url.path.lower().endswith(COMPRESSED_NAMES)


async def _decoded(blocks: AsyncIterator[bytes], shown: str) -> AsyncIterator[bytes]:
    """Yield the content of compressed blocks, in blocks of limited size. Raises FetchError."""
    gunzip = zlib.decompressobj(GZIP)
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
    """Return what shows later whether the content has changed; empty if the server tells nothing."""
    dated = response.headers.get("Last-Modified", "")
    return response.headers.get("ETag", "") or (DATED + dated if dated else "")


def _continues(response: ClientResponse, ask: SourceRequest, validator: str) -> int | None:
    """Return the total size (0: unknown) if a response continues the partial content, None if it does not."""
    content_range = CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status != PARTIAL or content_range is None or int(content_range[1]) != ask.offset:
        return None
    if ask.if_range and validator and validator != ask.if_range:
        return None  # its content has changed, and it does not support If-Range
    return 0 if content_range[3] == "*" else int(content_range[3])


def _explain(error: Exception, shown: str, guard: Guard) -> FetchError:
    import aiohttp  # noqa: PLC0415

    if isinstance(error, ValueError) and not isinstance(error, OSError):
        return FetchError(FetchReason.INVALID_URL, f"{shown} is not a valid URL")
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return FetchError(FetchReason.UNREACHABLE, f"{shown}: its TLS certificate or handshake is not valid")
    if isinstance(error, aiohttp.ClientOSError):
        if isinstance(error, aiohttp.ClientConnectorError) and guard.refused_all:
            return FetchError(FetchReason.FORBIDDEN_ADDRESS, f"{guard.shown} is not allowed: {guard.refused}")
        return FetchError(FetchReason.UNREACHABLE, f"{shown} cannot be reached: {cause_of(error)}", temporary=True)
    text = f"{shown} was interrupted (the server ended the transfer early)"
    return FetchError(FetchReason.INTERRUPTED, text, temporary=True)
