"""Reads a source to its end: frame by frame at the source's own pace, or a file at the configured pace.

``read_frames`` yields the frames; it runs in a thread of a reader's process. JPEG frames of a source are sent
unchanged; other frames are encoded, and scaled if required.
"""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import av
import av.error
from av import CodecContext, Packet, VideoCodecContext, VideoFrame
from av.container import InputContainer
from PIL import Image

from halimede.cameras import ipc_messages
from halimede.cameras.frame_rate import JITTER_S, Brake, FrameThinner, Timeline
from halimede.cameras.http_pictures import HttpPictures
from halimede.cameras.ipc_messages import TEXTS, ReaderCounts, SourceError
from halimede.cameras.relay import CameraRelay
from halimede.cameras.settings import CameraSettings
from halimede.errors import DecodeError, cause_of
from halimede.frames import decode
from halimede.frames.encodings import Pixels
from halimede.frames.orientation import upright
from halimede.frames.payloads import open_payload
from halimede.hidden_names import is_hidden
from halimede.image_headers import MAX_SIDE, read_jpeg
from halimede.models import AddressPolicy

#: encoded data from a source: a frame, or a part of one
AnyPacket: TypeAlias = "Packet[Any]"
#: endings of the pictures of a folder
SUFFIXES = {".jpg", ".jpeg", ".png"}
#: frames per second of a folder, unless configured
FOLDER_FPS = 25.0
#: seconds per frame of a file without times
STEP_S = 0.04
#: FFmpeg's name of the codec of JPEG frames
JPEG = "mjpeg"
#: bytes and microseconds of a live source that FFmpeg analyzes before the first frame
PROBE = {"probesize": "500000", "analyzeduration": "1000000", "fflags": "nobuffer"}
#: most pixels of a frame, checked by FFmpeg before it allocates one
MAX_PIXELS = 64 * 1024 * 1024
#: options of decoders; formats of files that FFmpeg may read; options by kind of source that restrict it to what is
#: expected
DECODER = {"max_pixels": str(MAX_PIXELS)}
FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,mjpeg,h264,hevc,ivf,flv,asf,ogg,nut,m4v"
WHITELISTS = {
    "rtsp": {"protocol_whitelist": "rtsp,rtp,tcp,tls,udp"},
    "file": {"protocol_whitelist": "file", "format_whitelist": FORMATS},
}


#: reason of a frame that is missing behind a broken one
DEPENDENT = "a frame depends on one that cannot be decoded"
#: more packets than any decoder takes before it returns the frame of the first
MAX_DELAY = 64
#: JPEG's marker of Huffman tables, without which a picture is not readable alone
DHT = 0xC4


@dataclass(slots=True)
class ReadProgress:
    """The progress of one reading of a source: ``read_frames`` writes it in its thread, and a watchdog reads it."""

    #: frames so far
    counts: ReaderCounts = field(default_factory=ReaderCounts)
    #: deadline of the next progress (monotonic clock); infinity: there is none
    until_s: float = float("inf")
    #: presentation time of a packet that could not be decoded, until a later frame comes
    broken: int | None = None
    #: presentation times of the packets behind it that have given no frame
    behind: list[int] = field(default_factory=list)

    def refuse(self, why: str) -> None:
        """Count a frame that is not sent, with the reason."""
        self.counts.refused += 1
        self.counts.why = why[:512]

    def refuse_packet(self, packet: AnyPacket, why: str) -> None:
        """Count a packet that cannot be decoded; frames that depend on it are counted by ``follow``."""
        self.refuse(why)
        if self.broken is None:
            self.broken = packet.pts

    def follow(self, packet: AnyPacket, frames: Sequence[VideoFrame]) -> None:
        """Count the packets behind a broken one that give no frame: FFmpeg drops what depends on it without an error.

        ``frames``: those that the decoder gave for ``packet``. Frames come in the order of their times, also if the
        decoder takes several packets first.
        """
        if self.broken is None:
            return
        arrived = [frame.pts for frame in frames if frame.pts is not None]
        if packet.size and packet.pts is not None:
            self.behind.append(packet.pts)
        self.behind = [pts for pts in self.behind if pts not in arrived]
        latest = max(arrived, default=self.broken)
        recovered = latest > self.broken
        if recovered or not packet.size or len(self.behind) > MAX_DELAY:
            for pts in self.behind:
                if not recovered or pts < latest:
                    self.refuse(DEPENDENT)
            self.behind = []
        if recovered:
            self.broken = None

    def garbage(self) -> SourceError:
        """Return the error of a source that sends, but nothing that can be used."""
        return SourceError(ipc_messages.GARBAGE, self.counts.why or TEXTS[ipc_messages.GARBAGE])

    def expect(self, seconds: float) -> None:
        """Set the deadline of the next progress, in seconds from now."""
        self.until_s = time.monotonic() + seconds


def read_frames(camera: CameraSettings, reading: ReadProgress) -> Iterator[FrameEncoder]:
    """Yield the selected frames of a source, live or a file; blocks until they are due.

    ``reading`` receives the progress. Raises SourceError, at the end of the source as well.
    """
    folder = Path(camera.address.target)
    if camera.address.kind == "file" and folder.is_dir():
        return _folder(camera, folder, reading)
    return _file(camera, reading) if camera.address.kind == "file" else _live(camera, reading)


# --- live ---------------------------------------------------------------------------------------------------------


def _live(camera: CameraSettings, reading: ReadProgress) -> Iterator[FrameEncoder]:
    """Yield the frames of a live source, no more than ``fps``. Raises SourceError, at the end of the source as well."""
    thinner, brake = FrameThinner(camera.fps, JITTER_S), Brake()
    reading.expect(camera.open_s)
    with _open(camera, reading) as (decoder, packets):
        last_frame_s = time.monotonic()
        for packet in packets:
            now = time.monotonic()
            for frame in _frames_of(camera, packet, decoder, reading):
                last_frame_s = now
                if thinner.accepts(now):
                    yield replace(frame, taken_ns=time.time_ns())
                else:
                    reading.counts.skipped += 1
            if now - last_frame_s > camera.stall_s:
                raise reading.garbage()
            if pause := brake.pause(now):
                time.sleep(pause)
    raise SourceError(ipc_messages.ENDED, "it ended the stream")


@contextmanager
def _open(camera: CameraSettings, reading: ReadProgress) -> Iterator[tuple[VideoCodecContext, Iterator[AnyPacket]]]:
    """Open a live source: yield the decoder of its packets, and the packets. Raises SourceError."""
    if camera.address.kind == "http":
        decoder = cast("VideoCodecContext", CodecContext.create(JPEG, "r"))
        decoder.options = DECODER
        yield decoder, _http_packets(camera, reading)
        return
    with open_source(camera) as container:
        yield container.streams.video[0].codec_context, _packets(camera, container, reading)


def _http_packets(camera: CameraSettings, reading: ReadProgress) -> Iterator[AnyPacket]:
    """Yield the pictures of an HTTP source as packets. Raises SourceError."""
    relay = _relay(camera)
    url, host = (relay.start(), relay.host) if relay else (camera.address.target, "")
    pictures = HttpPictures(url, host, camera, expect=reading.expect, refuse=reading.refuse)
    opening = True
    try:
        for data in pictures.read():
            opening = False
            yield Packet(data)
    except (HTTPException, OSError, ValueError) as error:
        if isinstance(error, TimeoutError) and time.monotonic() - pictures.received_s < camera.stall_s / 2:
            raise reading.garbage() from None
        raise (relay and relay.error) or as_error(error, opening=opening) from None


def _packets(camera: CameraSettings, container: InputContainer, reading: ReadProgress) -> Iterator[AnyPacket]:
    """Yield the packets of a container. Raises SourceError."""
    packets = container.demux(video=0)
    while True:
        reading.expect(camera.stall_s)
        try:
            packet = next(packets, None)
        except (av.error.FFmpegError, OSError) as error:
            raise as_error(error, opening=False) from None
        finally:
            reading.until_s = float("inf")
        if packet is None:
            return
        yield packet


def _frames_of(
    camera: CameraSettings, packet: AnyPacket, decoder: VideoCodecContext, reading: ReadProgress
) -> Iterator[FrameEncoder]:
    """Yield the frames of a packet: a JPEG unchanged if it fits, else decoded.

    A frame that is too large or unreadable is counted as refused.
    """
    name = decoder.name
    if packet.size:
        reading.counts.received += 1
    if name == JPEG and packet.size:
        if packet.size > camera.max_bytes:
            reading.refuse(f"a frame of {packet.size} bytes is more than {camera.max_bytes}")
            return
        data = bytes(packet)
        try:
            width, height = size_of(data)
        except NoTablesError:
            pass  # FFmpeg's decoder knows the missing tables
        except DecodeError as error:
            reading.refuse(str(error))
            return
        else:
            if fit_size(camera, width, height) == (width, height):
                encoded = EncodedFrame("jpeg", width, height, data)
                yield FrameEncoder(name, lambda: encoded, packet.pts)
                return
    try:
        frames = [frame for frame in decoder.decode(packet) if isinstance(frame, VideoFrame)]
    except (av.error.FFmpegError, MemoryError) as error:
        reading.refuse_packet(packet, f"a frame cannot be decoded: {cause_of(error)}")
        return
    reading.follow(packet, frames)
    for frame in frames:
        if frame.is_corrupt:
            reading.refuse("a frame is damaged")
        else:
            yield FrameEncoder(name, partial(from_frame, camera, frame), frame.pts)


# --- files --------------------------------------------------------------------------------------------------------


def _file(camera: CameraSettings, reading: ReadProgress) -> Iterator[FrameEncoder]:
    """Yield the frames of a video file, when they are due. Raises SourceError, after the last time it is played too."""
    timeline: Timeline | None = None
    thinner, wait = FrameThinner(camera.fps), _waiter(camera)
    for _ in range(camera.plays) if camera.plays else itertools.repeat(0):
        reading.expect(camera.open_s)
        count = 0
        with open_source(camera) as container:
            stream = container.streams.video[0]
            rate = float(stream.average_rate or 0) or 1 / STEP_S
            if timeline is None:
                timeline = Timeline(camera.pace, camera.start_ns or time.time_ns(), 1 / rate)
            for packet in _packets(camera, container, reading):
                for frame in _frames_of(camera, packet, stream.codec_context, reading):
                    count += 1
                    due = timeline.due_ns(_seconds(frame.pts, stream.time_base))
                    if thinner.accepts((due - timeline.start_ns) / 1e9):
                        wait(due)
                        yield replace(frame, taken_ns=due)
                    else:
                        reading.counts.skipped += 1
        if not count:
            text = reading.counts.why or "it has no readable picture: give JPEG or PNG files"
            raise SourceError(ipc_messages.GARBAGE, text)
        timeline.again()
    raise SourceError(ipc_messages.ENDED, "it has been played to its end")


def _seconds(pts: int | None, unit: Fraction | None) -> float | None:
    """Return a presentation time in seconds, None if it or its unit is unknown."""
    return float(pts * unit) if pts is not None and unit else None


def _folder(camera: CameraSettings, folder: Path, reading: ReadProgress) -> Iterator[FrameEncoder]:
    """Yield the pictures of a folder, when they are due. Raises SourceError, after the last time it is played too."""
    pace = camera.pace if camera.pace >= 0 else (camera.fps or FOLDER_FPS)
    timeline = Timeline(pace, camera.start_ns or time.time_ns(), 1 / (pace or FOLDER_FPS))
    wait = _waiter(camera)
    for _ in range(camera.plays) if camera.plays else itertools.repeat(0):
        try:
            paths = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not is_hidden(path.name)]
        except OSError as error:
            raise as_error(error, opening=True) from None
        has_picture = False
        for path in sorted(paths):
            reading.counts.received += 1
            try:
                encoded, name = _picture(camera, path)
            except (DecodeError, OSError) as error:
                reading.refuse(f"{path.name}: {error.strerror if isinstance(error, OSError) else error}")
                continue
            has_picture = True
            due = timeline.due_ns(None)
            wait(due)
            yield FrameEncoder(name, partial(_identity, encoded), taken_ns=due)
        if not has_picture:
            raise SourceError(ipc_messages.GARBAGE, reading.counts.why or "there is no JPEG or PNG in it")
        timeline.again()
    raise SourceError(ipc_messages.ENDED, "it has been played to its end")


def _identity(encoded: EncodedFrame) -> EncodedFrame:
    """Return a frame that is encoded already."""
    return encoded


def _picture(camera: CameraSettings, path: Path) -> tuple[EncodedFrame, str]:
    """Return the picture of a file, encoded as it is sent, and its original encoding.

    Raises DecodeError and OSError.
    """
    with path.open("rb") as file:
        data = upright(file.read(camera.max_bytes + 1))
    if len(data) > camera.max_bytes:
        raise DecodeError(f"more than {camera.max_bytes} bytes")
    frame = open_payload(data, "")
    if frame.encoding == "raw":
        raise DecodeError("neither a JPEG nor a PNG")
    pixels = decode(frame)  # refuse a broken one here, not at each receiver
    height, width = pixels.shape[:2]
    if fit_size(camera, width, height) == (width, height):
        return EncodedFrame(frame.encoding, width, height, data), frame.encoding
    return from_pixels(camera, pixels), frame.encoding


def _waiter(camera: CameraSettings) -> Callable[[int], None]:
    """Return a function that waits until a frame is due, or not at all if the camera's pace is 0.

    The wall clock is read only here, so a clock that is set later changes no pause.
    """
    ahead_ns = time.time_ns() - time.monotonic_ns()

    def wait(due_ns: int) -> None:
        while camera.pace != 0 and (remaining_s := (due_ns - ahead_ns - time.monotonic_ns()) / 1e9) > 0:
            time.sleep(min(remaining_s, 1.0))

    return wait


def open_source(camera: CameraSettings) -> InputContainer:
    """Return an RTSP stream, a device or a video file, opened. Raises SourceError."""
    timeout = (camera.open_s, camera.stall_s)
    options: dict[str, str] = dict(WHITELISTS.get(camera.address.kind, {}))
    relay = None
    try:
        if camera.address.kind == "rtsp":
            relay = _relay(camera)
            container = _stream(camera, relay, options, timeout)
        elif camera.address.kind == "device":
            container = _device(camera, timeout)
        else:
            container = av.open(f"file:{camera.address.target}", options=options, timeout=timeout)
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise (relay and relay.error) or as_error(error, opening=True) from None
    if not container.streams.video:
        container.close()
        raise SourceError(ipc_messages.GARBAGE, "it contains no video: give a video file or stream")
    context: VideoCodecContext | None = container.streams.video[0].codec_context
    if context is None:  # PyAV's types exclude this, but damaged files name unknown codecs
        container.close()
        raise SourceError(ipc_messages.INVALID, "its video codec is not supported: convert it, such as to H.264")
    # a hostile header must not allocate a picture that is too large to send
    context.options = DECODER
    return container


def _relay(camera: CameraSettings) -> CameraRelay | None:
    """Return the relay for a camera whose address is not the operator's. Raises InvalidFieldError."""
    if camera.allowed is None:
        return None
    return CameraRelay(camera.address.target, AddressPolicy.parse(camera.allowed), camera.open_s)


def _stream(
    camera: CameraSettings, relay: CameraRelay | None, options: dict[str, str], timeout: tuple[float, float]
) -> InputContainer:
    """Open a stream over RTSP, through the relay if there is one.

    ``options``: FFmpeg's, to which more are added here; ``timeout``: seconds to open it, and between two reads.
    """
    target = relay.start() if relay else camera.address.target
    options |= PROBE | {"rtsp_transport": "tcp", "allowed_media_types": "video"}
    options |= {"protocol_whitelist": "rtsp,tcp"} if relay else {}
    return av.open(target, options=options, timeout=timeout)


def _device(camera: CameraSettings, timeout: tuple[float, float]) -> InputContainer:
    """Open a V4L2 device, as JPEG if possible: such frames are sent unchanged. ``timeout``: as of ``_stream``."""
    rate: dict[str, str] = {"framerate": f"{camera.fps:g}"} if camera.fps else {}
    for options in ({"input_format": "mjpeg", **rate}, {"input_format": "mjpeg"}):
        try:
            return av.open(camera.address.target, format="v4l2", options=options, timeout=timeout)
        except (av.error.ArgumentError, av.error.InvalidDataError, av.error.OSError) as error:
            if isinstance(error, FileNotFoundError | PermissionError):
                raise
    return av.open(camera.address.target, format="v4l2", options={}, timeout=timeout)


def as_error(error: Exception, *, opening: bool) -> SourceError:
    """Return an error of FFmpeg or the system as a SourceError. ``opening``: the source had sent nothing yet.

    Its own text may contain the address: only the system's text is kept.
    """
    if isinstance(error, SourceError):
        return error
    reason = _reason(error, opening=opening)
    system_text = getattr(error, "strerror", None)
    text = TEXTS.get(reason, "it broke off")
    if reason == ipc_messages.STALLED:
        text = "nothing that can be used came from it in time"
    elif isinstance(system_text, str) and system_text:
        text += f" ({system_text})"
    return SourceError(reason, text)


def _reason(error: Exception, *, opening: bool) -> str:
    """Return the reason for an error in one word. ``opening``: the source had sent nothing yet."""
    kinds: list[tuple[Any, str]] = [
        ((av.error.HTTPUnauthorizedError, av.error.HTTPForbiddenError, PermissionError), ipc_messages.UNAUTHORIZED),
        ((av.error.HTTPNotFoundError, FileNotFoundError), ipc_messages.NOT_FOUND),
        ((av.error.ExitError, TimeoutError), ipc_messages.STALLED),
        ((av.error.EOFError,), ipc_messages.GARBAGE if opening else ipc_messages.ENDED),
        ((av.error.DemuxerNotFoundError, av.error.ProtocolNotFoundError), ipc_messages.INVALID),
        ((av.error.DecoderNotFoundError, av.error.PatchWelcomeError), ipc_messages.INVALID),
        ((av.error.InvalidDataError, av.error.ArgumentError, ValueError, HTTPException), ipc_messages.GARBAGE),
    ]
    for types, reason in kinds:
        if isinstance(error, types):
            return reason
    return ipc_messages.UNREACHABLE if opening else ipc_messages.ENDED


class NoTablesError(DecodeError):
    """A JPEG frame of a video without its standard tables: it cannot be sent unchanged."""


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """An encoded picture, ready to send: its encoding, width and height in pixels, and the file's data."""

    encoding: Literal["jpeg", "png"]
    width: int
    height: int
    data: bytes


@dataclass(frozen=True, slots=True)
class FrameEncoder:
    """A frame to send, which ``make`` encodes when it is requested; it raises DecodeError if that fails.

    ``codec``: of the source. ``pts``: its presentation time, in the source's own unit; None: the source has none.
    ``taken_ns``: nanoseconds since 1970.
    """

    codec: str
    make: Callable[[], EncodedFrame]
    pts: int | None = None
    taken_ns: int = 0


def size_of(data: bytes) -> tuple[int, int]:
    """Return width and height in pixels of a JPEG that is readable alone.

    Raises DecodeError, NoTablesError without tables.
    """
    picture = read_jpeg(memoryview(data))
    picture.check()
    if not any(segment[1] == DHT for segment in picture.parts[1:-1]):
        raise NoTablesError("a jpeg without its tables")
    return picture.width, picture.height


def fit_size(camera: CameraSettings, width: int, height: int) -> tuple[int, int]:
    """Return the size in pixels of the sent picture: as wide as the camera allows, with even sides if it is scaled."""
    if not camera.max_width or width <= camera.max_width:
        return width, height
    narrow = max(camera.max_width // 2 * 2, 2)
    return narrow, max(round(height * narrow / width / 2) * 2, 2)


def from_frame(camera: CameraSettings, frame: VideoFrame) -> EncodedFrame:
    """Return a decoded frame as a JPEG in the size to send. Raises DecodeError for one that cannot be sent."""
    if not (0 < frame.width <= MAX_SIDE and 0 < frame.height <= MAX_SIDE):
        raise DecodeError(f"{frame.width} x {frame.height} pixels: a side has 1 to {MAX_SIDE}")
    width, height = fit_size(camera, frame.width, frame.height)
    # Pillow stores four bytes a pixel: it encodes such a plane without a copy. Threads cost more than they save here
    plane: Any = frame.reformat(width=width, height=height, format="rgb0", threads=1).planes[0]
    return _encode(camera, Image.frombuffer("RGBX", (width, height), plane, "raw", "RGBX", plane.line_size, 1))


def from_pixels(camera: CameraSettings, pixels: Pixels) -> EncodedFrame:
    """Return pixels, ``(height, width[, channels]) uint8``, as a JPEG in the size to send. Raises DecodeError."""
    image = Image.fromarray(pixels)
    size = fit_size(camera, *image.size)
    return _encode(camera, image if size == image.size else image.resize(size, Image.Resampling.BILINEAR))


def _encode(camera: CameraSettings, image: Image.Image) -> EncodedFrame:
    """Return an image as a JPEG. Raises DecodeError if it has too many bytes."""
    out = io.BytesIO()
    image.save(out, format="JPEG", quality=camera.quality)
    data = out.getvalue()
    if len(data) > camera.max_bytes:
        raise DecodeError(f"{len(data)} bytes as a jpeg are more than {camera.max_bytes}: lower its width or quality")
    return EncodedFrame("jpeg", image.width, image.height, data)
