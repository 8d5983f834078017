"""Cameras for tests: real servers of RTSP and of MJPEG over HTTP on loopback, and what one can get from them.

Pictures carry their number, in the brightness of their left half, so that a test can tell which one arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import re
import secrets
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from PIL import Image

#: what a server does with a connection that may see pictures: writes until it is done
Show = Callable[["Viewer"], Awaitable[None]]
USER, PASSWORD = "viewer", "s3cr3t-p4ss"


def jpeg(number: int = 0, width: int = 64, height: int = 48) -> bytes:
    """Return a JPEG that carries a number of 0 to 15, of an encoder's usual tables (as RFC 2435 has them)."""
    pixels = np.full((height, width, 3), 40, np.uint8)
    pixels[:, : width // 2] = number * 16 + 8
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="JPEG", quality=75, subsampling=2)
    return out.getvalue()


def number_of(data: bytes) -> int:
    """Return the number that a picture carries."""
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("L"))
    return int(pixels[:, : pixels.shape[1] // 4].mean()) // 16


def video(
    path: Path,
    frames: int = 25,
    *,
    fps: int = 25,
    codec: str = "libx264",
    size: tuple[int, int] = (64, 48),
    keys: int = 0,
) -> Path:
    """Write a video file whose frames carry their numbers; each ``keys``-th is a keyframe, if given."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.options = {"g": str(keys)} if keys else {}
        for number in range(frames):
            picture = Image.open(io.BytesIO(jpeg(number % 16, *size)))
            for packet in stream.encode(av.VideoFrame.from_image(picture)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def cut_off(source: Path, target: Path, *numbers: int) -> Path:
    """Copy a video; the packets of these numbers lose all but their first bytes."""
    import av

    with av.open(str(source)) as whole, av.open(str(target), "w") as container:
        stream = container.add_stream_from_template(whole.streams.video[0])
        for number, packet in enumerate(packet for packet in whole.demux(video=0) if packet.size):
            copy = av.Packet(bytes(packet)[:10]) if number in numbers else packet
            copy.pts, copy.dts, copy.time_base = packet.pts, packet.dts, packet.time_base
            copy.is_keyframe, copy.stream = packet.is_keyframe, stream
            container.mux(copy)
    return target


class Viewer:
    """A connection that has asked for pictures."""

    def __init__(self, writer: asyncio.StreamWriter, send: Callable[[Viewer, bytes], None]) -> None:
        self.writer = writer
        self._send = send
        self.sequence = secrets.randbelow(1000)
        self.timestamp = 0

    async def picture(self, data: bytes) -> None:
        """Send a picture as the server does it."""
        self._send(self, data)
        await self.writer.drain()

    async def bytes(self, data: bytes) -> None:
        """Send anything."""
        self.writer.write(data)
        await self.writer.drain()


def counting(fps: float = 25, size: tuple[int, int] = (64, 48)) -> Show:
    """Return what shows numbered pictures for ever."""

    async def show(viewer: Viewer) -> None:
        number = 0
        while True:
            await viewer.picture(jpeg(number % 16, *size))
            number += 1
            await asyncio.sleep(1 / fps)

    return show


class Camera:
    """A server with one stream, at ``url``. ``password``: what it wants to hear before it shows anything."""

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
        raise NotImplementedError

    def allowed(self, method: str, uri: str, headers: dict[str, str]) -> bool:
        """Check HTTP digest authentication (RFC 2617 without quality of protection)."""
        if not self.password:
            return True
        said = dict(re.findall(r'(\w+)="?([^",]*)"?', headers.get("authorization", "")))
        first = _md5(f"{USER}:test:{self.password}")
        second = _md5(f"{method}:{said.get('uri', uri)}")
        allowed = said.get("response") == _md5(f"{first}:{self._nonce}:{second}")
        self.refused += not allowed and "authorization" in headers
        return allowed

    @property
    def challenge(self) -> str:
        return f'WWW-Authenticate: Digest realm="test", nonce="{self._nonce}", algorithm=MD5\r\n'


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
        line, *rest = head.strip().split("\r\n")
        method, uri = line.split()[:2]
        yield method, uri, {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in rest)}


class MjpegCamera(Camera):
    """MJPEG over HTTP: one part a picture."""

    scheme = "http"
    boundary = b"frame"
    content_type = b"multipart/x-mixed-replace; boundary=frame"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for method, uri, headers in requests(reader):
            if not self.allowed(method, uri, headers):
                writer.write(f"HTTP/1.1 401 Unauthorized\r\n{self.challenge}Content-Length: 0\r\n\r\n".encode())
                continue
            if not uri.startswith("/stream"):
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: " + self.content_type + b"\r\n\r\n")
            await self.show(Viewer(writer, self.part))
            return

    def part(self, viewer: Viewer, data: bytes) -> None:
        head = f"--{self.boundary.decode()}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
        viewer.writer.write(head.encode() + data + b"\r\n")


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
            sdp = ["v=0", "o=- 0 0 IN IP4 127.0.0.1", "s=test", "t=0 0", "m=video 0 RTP/AVP 26", "a=control:track1"]
            return "200 OK", f"Content-Base: {uri}/\r\n", "\r\n".join(sdp) + "\r\n"
        if method == "SETUP":
            transport = headers.get("transport", "")
            self.transports.append(transport)
            if "TCP" not in transport:
                return "461 Unsupported Transport", "", ""
            return "200 OK", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nSession: 1;timeout=60\r\n", ""
        return "200 OK", "Session: 1\r\n", ""


def send_rtp(viewer: Viewer, data: bytes, size: int = 1400) -> None:
    """Write a JPEG as RTP packets (RFC 2435, tables in the first one), interleaved on channel 0."""
    tables, width, height, scan = b"", 0, 0, b""
    at = 2
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
            scan = data[at:-2]
            break
    viewer.timestamp = (viewer.timestamp + 3600) & 0xFFFFFFFF
    offset = 0
    while offset < len(scan):
        head = struct.pack(">BBHBBBB", 0, offset >> 16, offset & 0xFFFF, 1, 255, width // 8, height // 8)
        if offset == 0:
            head += struct.pack(">BBH", 0, 0, len(tables)) + tables
        piece = scan[offset : offset + size]
        offset += len(piece)
        last = 0x80 if offset == len(scan) else 0
        viewer.sequence = (viewer.sequence + 1) & 0xFFFF
        rtp = struct.pack(">BBHII", 0x80, 26 | last, viewer.sequence, viewer.timestamp, 7) + head + piece
        viewer.writer.write(b"$" + struct.pack(">BH", 0, len(rtp)) + rtp)
