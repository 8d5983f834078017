"""Pictures over HTTP as cameras send them: MJPEG in any of its forms, and a snapshot, which is requested again.

FFmpeg reads a stream only if it is exactly as RFC 2046 has it. Many cameras omit the first boundary or the type of a
part, or have a type of their own. Browsers read them all, and so does this module: a picture begins with the first
bytes of a JPEG. It ends after the length that its part states, else with its own end, else at the next boundary.
"""

from __future__ import annotations

import math
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from socket import socket
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import (
    HTTPDigestAuthHandler,
    HTTPPasswordMgrWithDefaultRealm,
    Request,
    parse_http_list,
    parse_keqv_list,
)

from halimede.cameras import ipc_messages
from halimede.cameras.ipc_messages import NOT_FOUND, TEXTS, UNAUTHORIZED, SourceError
from halimede.cameras.settings import CameraSettings
from halimede.errors import DecodeError
from halimede.image_headers import END, end_of_jpeg
from halimede.picture_files import JPEG_MAGIC

#: bytes that are read at once
BLOCK = 64 * 1024
#: most bytes without a picture: before the first picture more are an error; later only the last ``BLOCK_BETWEEN`` of
#: them are kept, in which the headers of the next part are
MAX_BETWEEN, BLOCK_BETWEEN = 64 * 1024, 4096
#: most bytes of a delimiter besides its boundary: the end of the line, and dashes
MAX_DASHES = 64
#: most ends that are tried in one picture: a thumbnail and tables have one each
MAX_ENDS = 64
#: most requests of a snapshot in a second
SNAPSHOT_FPS = 10.0
#: redirects that are followed, and their statuses
MAX_REDIRECTS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: characters of a path and a query that are sent as they are written
SAFE = "%/?:@-._~!$&'()*+,;=[]"
#: the begin of a type with several parts, and the length in the headers of a part
MULTIPART = "multipart/"
_length = re.compile(rb"content-length\s*:\s*(\d{1,12})", re.IGNORECASE)

#: reasons of failures by the status of the response
REASONS = {401: UNAUTHORIZED, 403: UNAUTHORIZED, 404: NOT_FOUND, 410: NOT_FOUND}


def unverified_tls() -> ssl.SSLContext:
    """Return a TLS context that accepts any certificate, as FFmpeg does: those of cameras are usually self-signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class PictureSplitter:
    """Splits the body of a response into its pictures (JPEG). Pure.

    Args:
        boundary: of a multipart body, without dashes; empty: there is none.
        length: bytes of the first picture; None: it is not known yet.
        max_bytes: most bytes of a picture; a longer one is skipped.
        refuse: called with the reason for each skipped picture.

    """

    def __init__(self, boundary: bytes, length: int | None, max_bytes: int, refuse: Callable[[str], None]) -> None:
        # senders omit the CR, and dashes that begin a boundary are not the same in the header
        self._delimiter = re.compile(rb"\r?\n--+" + re.escape(boundary)) if boundary else None
        self._longest_delimiter = len(boundary) + MAX_DASHES
        self._length = length
        self._max_bytes = max_bytes
        self._refuse = refuse
        self._buffer = bytearray()
        self._inside = self._has_begun = False
        self._skip = 0
        self._searched = self._ends = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the pictures that are complete with these bytes.

        Raises SourceError if more than ``MAX_BETWEEN`` bytes come before the first picture.
        """
        self._buffer += data
        while self._has_picture():
            picture = self._complete()
            if picture is None:
                return
            self._inside, self._length = False, None
            self._searched = self._ends = 0
            if picture:
                yield picture

    def close(self) -> Iterator[bytes]:
        """Yield what began as a picture and was not complete at the end of the body."""
        if self._inside and self._buffer:
            yield bytes(self._buffer)

    def _has_picture(self) -> bool:
        """Drop the bytes before the next picture, and remember the length that they state; return whether it has begun.

        Raises SourceError as ``feed`` does.
        """
        if self._skip:
            dropped = min(self._skip, len(self._buffer))
            del self._buffer[:dropped]
            self._skip -= dropped
        if self._inside:
            return True
        begin = -1 if self._skip else self._buffer.find(JPEG_MAGIC)
        if begin < 0:
            if len(self._buffer) > MAX_BETWEEN:
                if not self._has_begun:
                    text = f"it sends {MAX_BETWEEN >> 10} KB without a JPEG: give the address of its MJPEG stream"
                    raise SourceError(ipc_messages.GARBAGE, text)
                del self._buffer[:-BLOCK_BETWEEN]
            return False
        if lengths := _length.findall(self._buffer, 0, begin):
            self._length = int(lengths[-1]) or None
        del self._buffer[:begin]
        self._inside = self._has_begun = True
        return True

    def _complete(self) -> bytes | None:
        """Remove and return the picture at the begin, empty if it is too long; None: it is not complete."""
        end = self._length or self._end()
        size = end or len(self._buffer)
        if size > self._max_bytes:
            self._refuse(f"a frame of {size} bytes is more than {self._max_bytes}")
            self._skip = size
            return b""
        if not end or len(self._buffer) < end:
            return None
        picture = bytes(self._buffer[:end])
        del self._buffer[:end]
        return picture

    def _end(self) -> int:
        """Return the length of the picture by its own end, or by the next boundary; 0: it is not complete."""
        if self._ends < MAX_ENDS and self._buffer.find(END, max(self._searched - 1, 0)) >= 0:
            self._ends += 1
            try:
                end = end_of_jpeg(bytes(self._buffer))
            except DecodeError:
                end, self._ends = 0, MAX_ENDS
            if end:
                return end
        begin, self._searched = max(self._searched - self._longest_delimiter, 0), len(self._buffer)
        match = self._delimiter.search(self._buffer, begin) if self._delimiter else None
        return match.start() if match else 0


class HttpPictures:
    """The pictures of one address, read with blocking calls.

    Args:
        url: with user and password, if there are any.
        host: of the camera, if ``url`` is that of a relay, which follows no redirects; else empty.
        camera: its deadlines, most bytes of a picture, and most requests of a snapshot in a second.
        expect: called with the seconds within which the next bytes must arrive; infinity: any time.
        refuse: called with the reason for each picture that is not read.

    Attributes:
        received_s: when bytes arrived last (monotonic clock); minus infinity before.

    """

    def __init__(
        self,
        url: str,
        host: str,
        camera: CameraSettings,
        *,
        expect: Callable[[float], None],
        refuse: Callable[[str], None],
    ) -> None:
        self._url = url
        self._host = host
        self._camera = camera
        self._expect = expect
        self._refuse = refuse
        self._socket: socket
        self.received_s = -math.inf

    def read(self) -> Iterator[bytes]:
        """Yield pictures until the end of a stream; a snapshot is requested again and again, without an end.

        Raises SourceError, OSError, ValueError and HTTPException.
        """
        step_s, due = 1 / min(self._camera.fps or SNAPSHOT_FPS, SNAPSHOT_FPS), time.monotonic()
        while True:
            self._expect(self._camera.open_s)
            response = self._response()
            try:
                count = 0
                for picture in self._pictures(response):
                    count += 1
                    yield picture
            finally:
                response.close()
            kind = response.headers.get_content_type()
            if not count:
                text = f"it sends no picture, but {kind}: give the address of its MJPEG stream or of a JPEG"
                raise SourceError(ipc_messages.GARBAGE, text)
            if count > 1 or kind.startswith(MULTIPART):
                return
            now = time.monotonic()
            due = max(due, now - 2 * step_s) + step_s  # a late answer delays the next requests only for a moment
            time.sleep(max(0.0, due - now))

    def _pictures(self, response: HTTPResponse) -> Iterator[bytes]:
        """Yield the pictures of one response. Raises SourceError, and OSError (TimeoutError: no picture in time)."""
        headers = response.headers
        boundary = str(headers.get_boundary("")).lstrip("-").encode("latin-1", "replace")
        length = response.length if headers.get_content_maintype() == "image" else None
        splitter = PictureSplitter(boundary, length, self._camera.max_bytes, self._refuse)
        until = time.monotonic() + self._camera.open_s
        while True:
            remaining_s = until - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            self._expect(remaining_s)
            self._socket.settimeout(remaining_s)
            data = response.read1(BLOCK)
            self.received_s = time.monotonic()
            for picture in splitter.feed(data) if data else splitter.close():
                self._expect(math.inf)
                yield picture
                until = time.monotonic() + self._camera.stall_s
            if not data:
                return

    def _response(self) -> HTTPResponse:
        """Return the response with the body, after redirects and authentication.

        Raises SourceError for any status but 200 at the end, and what ``_request`` raises.
        """
        url, authorization = self._url, ""
        for _ in range(1 if self._host else MAX_REDIRECTS + 1):
            response = self._request(url, authorization)
            if response.status == 401 and (authorization := self._authorization(url, response)):
                response.close()
                response = self._request(url, authorization)
            if response.status == 200:
                return response
            response.close()
            if response.status not in REDIRECTS:
                break
            url, authorization = urljoin(url, response.headers.get("Location", "")), ""
        reason = REASONS.get(response.status, ipc_messages.UNREACHABLE)
        raise SourceError(reason, f"{TEXTS[reason]} (HTTP status {response.status})")

    def _request(self, url: str, authorization: str) -> HTTPResponse:
        """Request a URL once; return the response.

        Raises SourceError for an unusable URL, OSError and HTTPException.
        """
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        connection: HTTPConnection
        if parts.scheme == "https":
            connection = HTTPSConnection(host, port, timeout=self._camera.open_s, context=unverified_tls())
        elif parts.scheme == "http" and host:
            connection = HTTPConnection(host, port, timeout=self._camera.open_s)
        else:
            raise SourceError(ipc_messages.INVALID, "it redirects to an address that is not http:// or https://")
        headers = {"User-Agent": "halimede", "Accept": "*/*", "Connection": "close"}
        headers |= {"Host": self._host} if self._host else {}
        headers |= {"Authorization": authorization} if authorization else {}
        path = quote(parts._replace(scheme="", netloc="", fragment="").geturl(), safe=SAFE) or "/"
        connection.request("GET", path, headers=headers)
        self._socket = connection.sock
        return connection.getresponse()

    def _authorization(self, url: str, response: HTTPResponse) -> str:
        """Return the header that answers a challenge; empty without a user, for another host, and for other schemes."""
        own, parts = urlsplit(self._url), urlsplit(url)
        if not own.username or (own.hostname, own.port) != (parts.hostname, parts.port):
            return ""
        user, password = unquote(own.username), unquote(own.password or "")
        target = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        passwords = HTTPPasswordMgrWithDefaultRealm()
        passwords.add_password(None, target, user, password)
        for challenge in response.headers.get_all("WWW-Authenticate", []):
            scheme, _, fields = challenge.partition(" ")
            if scheme.lower() == "digest":
                values = parse_keqv_list([field for field in parse_http_list(fields) if "=" in field])
                answer = HTTPDigestAuthHandler(passwords).get_authorization(Request(target), values)  # noqa: S310  # not opened
                return f"Digest {answer}" if answer else ""
            if scheme.lower() == "basic":
                return "Basic " + b64encode(f"{user}:{password}".encode()).decode()
        return ""
