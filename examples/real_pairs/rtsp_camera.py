"""A camera that serves Motion JPEG over RTSP on loopback: what demos and tests have in place of a device.

It speaks RTP over the connection of RTSP (RFC 2326, section 10.12; RFC 2435), and asks for a password if it has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import secrets
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import NamedTuple, Self

#: what a camera does with a connection that may see pictures: writes until it is done
Show = Callable[["Viewer"], Awaitable[None]]
USER, REALM = "viewer", "test"
#: ticks of RTP in a second, payload type of JPEG, and most bytes of a picture in a packet
CLOCK, JPEG, PIECE = 90_000, 26, 1400


class JpegParts(NamedTuple):
    """What RTP carries of a JPEG: tables of quantization, size in pixels, and compressed data without the end mark."""

    tables: bytes
    width: int
    height: int
    scan: bytes


def split_jpeg(data: bytes) -> JpegParts:
    """Split a baseline JPEG of an encoder's usual Huffman tables."""
    tables, width, height, at = b"", 0, 0, 2
    while at < len(data):
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4])
        segment = data[at + 4 : at + 2 + length]
        at += 2 + length
        if marker == 0xDB:
            while segment:
                tables, segment = tables + segment[1:65], segment[65:]
        elif marker == 0xC0:
            height, width = struct.unpack(">HH", segment[1:5])
        elif marker == 0xDA:
            break
    return JpegParts(tables, width, height, data[at:].removesuffix(b"\xff\xd9"))


class Viewer:
    """A connection that has asked for pictures."""

    def __init__(self, writer: asyncio.StreamWriter, send: Callable[[Viewer, bytes], None]) -> None:
        self.writer = writer
        self._send = send
        self.sequence = secrets.randbelow(1000)

    async def picture(self, data: bytes) -> None:
        """Send a picture as the server does it."""
        self._send(self, data)
        await self.writer.drain()

    async def bytes(self, data: bytes) -> None:
        """Send anything."""
        self.writer.write(data)
        await self.writer.drain()


class Camera:
    """A server with one stream, at ``url``. ``password``: what a viewer must give; empty: nothing."""

    scheme = ""

    def __init__(self, show: Show, *, password: str = "", port: int = 0) -> None:
        self.show = show
        self.password = password
        self.connections = 0
        self.refused = 0
        self.port = port
        self._nonce = secrets.token_hex(8)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def url(self, user: str = "", path: str = "/stream") -> str:
        """Return its address, with ``user:password`` in it if given."""
        return f"{self.scheme}://{user and f'{user}@'}127.0.0.1:{self.port}{path}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        self.connections += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self.serve(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        raise NotImplementedError

    def allowed(self, method: str, uri: str, headers: dict[str, str]) -> bool:
        """Check HTTP digest authentication (RFC 2617 without quality of protection)."""
        if not self.password:
            return True
        given = dict(re.findall(r'(\w+)="?([^",]*)"?', headers.get("authorization", "")))
        first = _md5(f"{USER}:{REALM}:{self.password}")
        second = _md5(f"{method}:{given.get('uri', uri)}")
        allowed = given.get("response") == _md5(f"{first}:{self._nonce}:{second}")
        self.refused += not allowed and "authorization" in headers
        return allowed

    @property
    def challenge(self) -> str:
        """The header that asks for a password."""
        return f'WWW-Authenticate: Digest realm="{REALM}", nonce="{self._nonce}", algorithm=MD5\r\n'


def _md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


async def requests(reader: asyncio.StreamReader) -> AsyncIterator[tuple[str, str, dict[str, str]]]:
    """Yield requests of HTTP or RTSP; what comes in between on an interleaved channel is left out."""
    while True:
        first = await reader.readexactly(1)
        if first == b"$":
            _, length = struct.unpack(">BH", await reader.readexactly(3))
            await reader.readexactly(length)
            continue
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode()
        request, *headers = head.strip().split("\r\n")
        method, uri = request.split()[:2]
        pairs = (header.partition(":") for header in headers)
        yield method, uri, {name.lower(): value.strip() for name, _, value in pairs}


class RtspCamera(Camera):
    """RTSP with MJPEG (RFC 2435) over the same TCP connection; over UDP it does not speak."""

    scheme = "rtsp"

    def __init__(self, show: Show, *, password: str = "") -> None:
        super().__init__(show, password=password)
        self.transports: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for method, uri, headers in requests(reader):
            status, more, body = self._answer(method, uri, headers)
            text = f"RTSP/1.0 {status}\r\nCSeq: {headers.get('cseq', '0')}\r\n{more}"
            text += f"Content-Type: application/sdp\r\nContent-Length: {len(body)}\r\n" if body else ""
            writer.write(f"{text}\r\n{body}".encode())
            if method == "PLAY" and status.startswith("200"):
                task = asyncio.create_task(self._play(writer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            if method == "TEARDOWN":
                return

    async def _play(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await self.show(Viewer(writer, send_rtp))
        writer.close()

    def _answer(self, method: str, uri: str, headers: dict[str, str]) -> tuple[str, str, str]:
        if method == "OPTIONS":
            return "200 OK", "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN, GET_PARAMETER\r\n", ""
        if not self.allowed(method, uri, headers):
            return "401 Unauthorized", self.challenge, ""
        if "/stream" not in uri:
            return "404 Not Found", "", ""
        if method == "DESCRIBE":
            sdp = ["v=0", "o=- 0 0 IN IP4 127.0.0.1", "s=camera", "t=0 0", "m=video 0 RTP/AVP 26", "a=control:track1"]
            return "200 OK", f"Content-Base: {uri}/\r\n", "\r\n".join(sdp) + "\r\n"
        if method == "SETUP":
            transport = headers.get("transport", "")
            self.transports.append(transport)
            if "TCP" not in transport:
                return "461 Unsupported Transport", "", ""
            return "200 OK", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nSession: 1;timeout=60\r\n", ""
        return "200 OK", "Session: 1\r\n", ""


def send_rtp(viewer: Viewer, data: bytes) -> None:
    """Write a JPEG as RTP packets (RFC 2435, tables in the first one), interleaved on channel 0."""
    tables, width, height, scan = split_jpeg(data)
    timestamp = round(time.monotonic() * CLOCK) & 0xFFFFFFFF
    offset = 0
    while offset < len(scan):
        head = struct.pack(">BBHBBBB", 0, offset >> 16, offset & 0xFFFF, 1, 255, width // 8, height // 8)
        if offset == 0:
            head += struct.pack(">BBH", 0, 0, len(tables)) + tables
        piece = scan[offset : offset + PIECE]
        offset += len(piece)
        marker = 0x80 if offset == len(scan) else 0
        viewer.sequence = (viewer.sequence + 1) & 0xFFFF
        rtp = struct.pack(">BBHII", 0x80, JPEG | marker, viewer.sequence, timestamp, 7) + head + piece
        viewer.writer.write(b"$" + struct.pack(">BH", 0, len(rtp)) + rtp)
