"""Pictures over HTTP in the forms that cameras send: each form is read, and what is no picture is named."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import pytest

from halimede.cameras import ipc_messages
from halimede.cameras.address import parse
from halimede.cameras.http_pictures import MAX_BETWEEN, PictureSplitter
from halimede.cameras.ipc_messages import SourceError
from halimede.cameras.settings import CameraSettings
from halimede.cameras.source_reader import EncodedFrame, ReadProgress, read_frames
from tests.cameras import PASSWORD, USER, MjpegCamera, Viewer, jpeg, number_of, without_tables
from tests.waiting import patience

PICTURES = [jpeg(number) for number in range(12)]
BOUNDARY = b"e8b8c539-047d-4777-a985-fbba6edff11e"


def part(data: bytes, *headers: str, length: bool = True, end: str = "\r\n") -> bytes:
    """Return headers and a picture, as a camera writes them."""
    stated = [f"Content-Length: {len(data)}"] if length else []
    return "".join(f"{header}{end}" for header in [*headers, *stated, ""]).encode() + data


def written(
    *headers: str, before: bytes = b"--" + BOUNDARY + b"\r\n", after: bytes = b"\r\n", **how: Any
) -> list[bytes]:
    """Return all pictures, each with its headers between two marks."""
    return [before + part(picture, *headers, **how) + after for picture in PICTURES]


TYPE, AFTER = "Content-Type: image/jpeg", b"\r\n--" + BOUNDARY + b"\r\n"
#: how cameras write a stream of pictures
FORMS = {
    "as RFC 2046 has it": written(TYPE),
    # arendst/Tasmota#12376, yoursunny/esp32cam#67: the boundary follows each picture, and none is before the first
    "no first boundary": written(TYPE, before=b"", after=AFTER),
    # espressif/arduino-esp32#3720: the same, and no length
    "no first boundary and no length": written(TYPE, before=b"", after=AFTER, length=False),
    "image/jpg": written("Content-Type: image/jpg"),
    "image/jpeg with a parameter": written(f"{TYPE};size=1"),
    "no type": written(),
    "no header": written(length=False),
    # nadjieb/cpp-mjpeg-streamer#36: a boundary that is not the declared one
    "another boundary": written(TYPE, before=b"--other\r\n"),
    # AlexxIT/go2rtc#545: single line ends, headers of its own, a boundary with dashes behind
    "single line ends": written(TYPE, "X-FrameRate: 15.0", before=b"--data-boundary--\n", after=b"", end="\n"),
    # iEvgeny/cctv-viewer#23: pictures one after the other
    "no multipart at all": PICTURES,
    "padded": [part(p + bytes(300), TYPE) for p in PICTURES],
    "a length of 0": [b"--" + BOUNDARY + b"\r\nContent-Length: 0\r\n\r\n" + p + b"\r\n" for p in PICTURES],
}


def split(
    body: bytes, size: int, boundary: bytes = BOUNDARY, max_bytes: int = 100_000
) -> tuple[list[bytes], list[str]]:
    """Return the pictures of a body that arrives in blocks, and the reasons for those that were refused."""
    refused: list[str] = []
    splitter = PictureSplitter(boundary, None, max_bytes, refused.append)
    blocks = [body[at : at + size] for at in range(0, len(body), size)]
    pictures = [picture for block in blocks for picture in splitter.feed(block)]
    return [*pictures, *splitter.close()], refused


@pytest.mark.parametrize("size", [1, 7, 700, 1_000_000])
@pytest.mark.parametrize("mark", [b"\r\n--", b"\n--", b"\n----"])
def test_a_picture_without_an_end_ends_at_any_boundary(mark: bytes, size: int) -> None:
    pictures, _ = split(b"".join(picture[:-2] + mark + BOUNDARY + b"\r\n" for picture in PICTURES), size)
    assert pictures == [picture[:-2] for picture in PICTURES]


@pytest.mark.parametrize("size", [1, 7, 700, 1_000_000])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_its_pictures_however_it_is_cut(form: str, size: int) -> None:
    pictures, refused = split(b"".join(FORMS[form]), size)
    assert [picture.rstrip(b"\0") for picture in pictures] == PICTURES
    assert refused == []


@pytest.mark.parametrize("form", ["as RFC 2046 has it", "no multipart at all", "no header"])
def test_a_picture_arrives_with_its_last_byte_and_not_with_the_next_one(form: str) -> None:
    splitter = PictureSplitter(BOUNDARY, None, 100_000, pytest.fail)
    for data, picture in zip(FORMS[form], PICTURES, strict=True):
        end = data.index(picture) + len(picture)
        assert list(splitter.feed(data[: end - 1])) == []
        assert list(splitter.feed(data[end - 1 :])) == [picture]


def test_a_thumbnail_ends_no_picture() -> None:
    thumbnail = b"\xff\xe1" + (len(PICTURES[0]) + 8).to_bytes(2) + b"Exif\0\0" + PICTURES[0]
    whole = PICTURES[1][:2] + thumbnail + PICTURES[1][2:]
    assert split(whole + PICTURES[2], 50, boundary=b"") == ([whole, PICTURES[2]], [])


@pytest.mark.parametrize("length", [True, False])
def test_a_picture_that_is_too_long_is_refused_and_the_next_one_is_read(length: bool) -> None:
    large = jpeg(3, 640, 480)
    body = part(large, length=length) + b"\r\n--" + BOUNDARY + b"\r\n" + part(PICTURES[1])
    pictures, (refused,) = split(body, 500, max_bytes=2000)
    assert pictures == [PICTURES[1]]
    assert "bytes is more than 2000" in refused


def test_a_picture_without_an_end_does_not_hang_the_stream() -> None:
    """A broken frame has no end (sarxos/webcam-capture#269): the boundary ends it, and the next one is read."""
    cut = PICTURES[0][:-60]
    body = part(cut, length=False) + b"\r\n--" + BOUNDARY + b"\r\n" + part(PICTURES[1], length=False)
    assert split(body, 100) == ([cut, PICTURES[1]], [])


def test_bytes_without_a_picture_are_refused_early() -> None:
    with pytest.raises(SourceError, match="without a JPEG"):
        split(bytes(MAX_BETWEEN + 2), 1000)


MULTIPART = f"multipart/x-mixed-replace;boundary={BOUNDARY.decode()}"


class Written(MjpegCamera):
    """A camera that writes given bytes, at its own pace, and then ends or goes on."""

    def __init__(
        self, parts: list[bytes], content_type: str = MULTIPART, *, redirect: str = "", basic: bool = False
    ) -> None:
        super().__init__(self._write)
        self.content_type = content_type.encode()
        self._written, self._redirect, self._basic = parts, redirect, basic

    async def _write(self, viewer: Viewer) -> None:
        for data in self._written:
            await viewer.bytes(data)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        credentials = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self._basic and f"Authorization: Basic {credentials}" not in head:
            writer.write(b'HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm="test"\r\n\r\n')
        elif self._redirect and "GET /stream " in head:
            writer.write(f"HTTP/1.1 302 Found\r\nLocation: {self._redirect}\r\n\r\n".encode())
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: " + self.content_type + b"\r\n\r\n")
            await self.show(Viewer(writer, self.part))
        await writer.drain()


def frames(url: str, count: int, reading: ReadProgress | None = None, max_width: int = 0) -> list[EncodedFrame]:
    """Return the first frames of an address."""
    open_s = patience(10)
    camera = CameraSettings(name="c", address=parse(url), open_s=open_s, stall_s=open_s, max_width=max_width)
    reader: Iterator[object] = read_frames(camera, reading or ReadProgress())
    return [frame.make() for frame in islice(reader, count)]  # type: ignore[attr-defined]


def until_the_end(camera: CameraSettings, reading: ReadProgress) -> int:
    """Return how many frames pass until the source ends."""
    count = 0
    with suppress(SourceError):
        for _ in read_frames(camera, reading):
            count += 1
    return count


@pytest.mark.parametrize("form", FORMS)
async def test_a_camera_of_each_form_is_read_in_order(form: str) -> None:
    async with Written(FORMS[form]) as camera:
        read = await asyncio.to_thread(frames, camera.url(), len(PICTURES))
    assert [number_of(frame.data) for frame in read] == list(range(len(PICTURES)))


@pytest.mark.parametrize(("fps", "passes"), [(30.0, True), (1.0, False)])
async def test_a_burst_passes_within_the_tolerance_and_frames_above_it_are_counted(fps: float, passes: bool) -> None:
    burst, reading = [PICTURES[0]] * 15, ReadProgress()
    async with Written([part(data) for data in burst]) as camera:
        settings = CameraSettings(name="c", address=parse(camera.url()), fps=fps, open_s=patience(10))
        read = await asyncio.to_thread(until_the_end, settings, reading)
    assert (read == len(burst)) is passes
    assert reading.counts.received == read + reading.counts.skipped == len(burst)


async def test_a_snapshot_is_requested_again_and_again() -> None:
    async with Written([PICTURES[5]], "image/jpeg") as camera:
        read = await asyncio.to_thread(frames, camera.url(), 4)
        assert camera.connections >= 4
    assert [frame.data for frame in read] == [PICTURES[5]] * 4


async def test_a_stream_that_ends_is_no_snapshot() -> None:
    for data, content_type in ((FORMS["no header"][:1], MULTIPART), (PICTURES[:2], "video/x-motion-jpeg")):
        async with Written(data, content_type) as camera:
            with pytest.raises(SourceError) as caught:
                await asyncio.to_thread(frames, camera.url(), 9)
            assert (caught.value.reason, camera.connections) == (ipc_messages.ENDED, 1)


async def test_a_page_in_place_of_pictures_is_named() -> None:
    async with Written([b"<html>a page</html>"], "text/html") as camera:
        with pytest.raises(SourceError, match=f"{ipc_messages.GARBAGE}: it sends no picture, but text/html"):
            await asyncio.to_thread(frames, camera.url(), 1)


async def test_a_cut_picture_is_refused_with_its_cause_and_the_next_one_is_read() -> None:
    reading = ReadProgress()
    parts = [b"--" + BOUNDARY + b"\r\n" + part(data) for data in (PICTURES[0][:-40], PICTURES[1])]
    async with Written(parts) as camera:
        (frame,) = await asyncio.to_thread(frames, camera.url(), 1, reading)
    assert number_of(frame.data) == 1
    why = f"it is cut off after {len(PICTURES[0]) - 40} bytes: send the whole picture"
    assert (reading.counts.refused, reading.counts.why) == (1, why)


async def test_wide_pictures_are_scaled_and_those_without_tables_are_decoded() -> None:
    async with Written([part(without_tables(PICTURES[4])), part(PICTURES[4])]) as camera:
        read = await asyncio.to_thread(frames, camera.url(), 2, None, 32)
    assert [(frame.width, frame.height, number_of(frame.data)) for frame in read] == [(32, 24, 4)] * 2


async def test_a_user_is_sent_when_the_camera_requests_one_and_not_to_another_host() -> None:
    async with Written(PICTURES, basic=True) as camera:
        (frame,) = await asyncio.to_thread(frames, camera.url(f"{USER}:{PASSWORD}"), 1)
        assert frame.data == PICTURES[0]
        with pytest.raises(SourceError, match="Unauthorized: access denied"):
            await asyncio.to_thread(frames, camera.url(), 1)
        async with Written([], redirect=camera.url(path="/other")) as first:
            with pytest.raises(SourceError, match="Unauthorized: access denied"):
                await asyncio.to_thread(frames, first.url(f"{USER}:{PASSWORD}"), 1)


async def test_redirects_are_followed_to_http_alone_and_not_for_ever() -> None:
    async with Written(PICTURES, redirect="/moved") as camera:
        (frame,) = await asyncio.to_thread(frames, camera.url(), 1)
        assert frame.data == PICTURES[0]
    for redirect in ("file:///etc/passwd", "ftp://127.0.0.1/x", "/stream"):
        reason = ipc_messages.UNREACHABLE if redirect == "/stream" else ipc_messages.INVALID
        async with Written([], redirect=redirect) as camera:
            with pytest.raises(SourceError, match=f"^{reason}: "):
                await asyncio.to_thread(frames, camera.url(), 1)


async def test_a_camera_that_sends_nothing_has_stalled() -> None:
    stop = threading.Event()

    class Silent(MjpegCamera):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: image/jpeg\r\n\r\n")
            await asyncio.to_thread(stop.wait)

    async with Silent(lambda _: asyncio.sleep(0)) as camera:
        settings = CameraSettings(name="c", address=parse(camera.url()), open_s=0.5, stall_s=0.5)
        with pytest.raises(SourceError, match=f"^{ipc_messages.STALLED}: "):
            await asyncio.to_thread(next, read_frames(settings, ReadProgress()))
        stop.set()
