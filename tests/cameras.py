"""Cameras for tests: real servers of RTSP (the demos' own) and of MJPEG over HTTP on loopback, and their pictures.

Pictures carry their number, in the brightness of their left half, so that a test can tell which one arrived.
"""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from examples.real_pairs.rtsp_camera import USER, Camera, RtspCamera, Show, Viewer, requests
from halimede.cameras.ipc_messages import CapturedPicture, ReaderCounts

__all__ = ["USER", "Camera", "RtspCamera", "Viewer"]  # of the demos, and used by tests beside those below
PASSWORD = "s3cr3t-p4ss"


def jpeg(number: int = 0, width: int = 64, height: int = 48) -> bytes:
    """Return a JPEG that carries a number of 0 to 15, of an encoder's usual tables (as RFC 2435 has them)."""
    pixels = np.full((height, width, 3), 40, np.uint8)
    pixels[:, : width // 2] = number * 16 + 8
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format="JPEG", quality=75, subsampling=2)
    return out.getvalue()


def captured(data: bytes, **changes: Any) -> CapturedPicture:
    """Return a picture as a reader gives it."""
    picture = CapturedPicture(
        taken_ns=1, encoding="jpeg", codec="mjpeg", width=64, height=48, counts=ReaderCounts(), data=data
    )  # fmt: skip
    return msgspec.structs.replace(picture, **changes)


def without_tables(data: bytes) -> bytes:
    """Return a JPEG without its Huffman tables, as some cameras send it."""
    at, stripped = 2, b"\xff\xd8"
    while data[at + 1] != 0xDA:
        length = int.from_bytes(data[at + 2 : at + 4])
        stripped += b"" if data[at + 1] == 0xC4 else data[at : at + 2 + length]
        at += 2 + length
    return stripped + data[at:]


def number_of(data: bytes) -> int:
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


def counting(fps: float = 25, size: tuple[int, int] = (64, 48)) -> Show:
    """Return what shows numbered pictures for ever."""

    async def show(viewer: Viewer) -> None:
        number = 0
        while True:
            await viewer.picture(jpeg(number % 16, *size))
            number += 1
            await asyncio.sleep(1 / fps)

    return show


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
