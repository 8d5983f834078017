"""Opens a source with FFmpeg, with deadlines, and with only the protocols and formats that its kind needs.

A stream can name other files and addresses (playlists do): what is opened here leads nowhere else. Every failure
becomes a ``SourceError`` that names the reason in one word, and whose text holds nothing of the address.
"""

from __future__ import annotations

from typing import Any

import av
import av.error
from av import VideoCodecContext
from av.container import InputContainer

from halimede.cameras import ipc_messages
from halimede.cameras.ipc_messages import ReaderJob, SourceError

#: bytes and microseconds of a live source that FFmpeg looks at before the first frame comes
PROBE = {"probesize": "500000", "analyzeduration": "1000000", "fflags": "nobuffer"}
#: pixels of a frame, checked by FFmpeg before it makes room for one
MAX_PIXELS = 64 * 1024 * 1024
FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,mjpeg,h264,hevc,ivf,flv,asf,ogg,nut,m4v"
WHITELISTS = {
    "rtsp": {"protocol_whitelist": "rtsp,rtp,tcp,tls,udp"},
    "http": {"protocol_whitelist": "http,https,tcp,tls", "format_whitelist": "mpjpeg,mjpeg"},
    "file": {"protocol_whitelist": "file", "format_whitelist": FORMATS},
}

TEXTS = {
    ipc_messages.UNAUTHORIZED: "it refuses us: check user and password",
    ipc_messages.NOT_FOUND: "there is nothing of that name: check the address",
    ipc_messages.GARBAGE: "what it sends is no video that can be read",
    ipc_messages.UNREACHABLE: "it cannot be reached",
    ipc_messages.INVALID: "it is no source of a kind that can be read here",
}


def open_source(job: ReaderJob) -> InputContainer:
    """Open a stream, a device or a video file. Raises SourceError."""
    timeout = (job.open_s, job.stall_s)
    options: dict[str, str] = dict(WHITELISTS.get(job.kind, {}))
    try:
        if job.kind == "rtsp":
            options |= PROBE | {"rtsp_transport": "tcp", "allowed_media_types": "video"}
            container = av.open(job.target, options=options, timeout=timeout)
        elif job.kind == "http":
            options |= PROBE | {"max_redirects": "3"}
            container = av.open(job.target, format="mpjpeg", options=options, timeout=timeout)
        elif job.kind == "device":
            container = _device(job, timeout)
        else:
            container = av.open(f"file:{job.target}", options=options, timeout=timeout)
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise as_error(error, opening=True) from None
    if not container.streams.video:
        container.close()
        raise SourceError(ipc_messages.GARBAGE, "there is no video in it")
    context: VideoCodecContext | None = container.streams.video[0].codec_context
    if context is None:  # PyAV's types say that it cannot be, but damaged files name codecs that nobody knows
        container.close()
        raise SourceError(ipc_messages.INVALID, "the video in it is of a codec that nobody here knows")
    # a hostile header must not make room for a picture that nobody can take
    context.options = {"max_pixels": str(MAX_PIXELS)}
    return container


def _device(job: ReaderJob, timeout: tuple[float, float]) -> InputContainer:
    """Open a V4L2 device, as JPEG where it can: such frames are passed on as they are."""
    wanted: dict[str, str] = {"framerate": f"{job.fps:g}"} if job.fps else {}
    attempts: list[dict[str, str]] = [{"input_format": "mjpeg", **wanted}, {"input_format": "mjpeg"}, {}]
    for last, options in enumerate(attempts, 1 - len(attempts)):
        try:
            return av.open(job.target, format="v4l2", options=options, timeout=timeout)
        except (av.error.ArgumentError, av.error.InvalidDataError, av.error.OSError) as error:
            if last == 0 or isinstance(error, FileNotFoundError | PermissionError):
                raise
    raise AssertionError("unreachable")


def as_error(error: Exception, *, opening: bool) -> SourceError:
    """Return what an error of FFmpeg's means. Its own text may hold the address: only the system's words are kept."""
    if isinstance(error, SourceError):
        return error
    reason = _reason(error, opening=opening)
    said = getattr(error, "strerror", None)
    text = TEXTS.get(reason, "it broke off")
    if reason == ipc_messages.STALLED:
        text = "nothing that can be used came from it in time"
    elif isinstance(said, str) and said:
        text += f" ({said})"
    return SourceError(reason, text)


def _reason(error: Exception, *, opening: bool) -> str:
    kinds: list[tuple[Any, str]] = [
        ((av.error.HTTPUnauthorizedError, av.error.HTTPForbiddenError, PermissionError), ipc_messages.UNAUTHORIZED),
        ((av.error.HTTPNotFoundError, FileNotFoundError), ipc_messages.NOT_FOUND),
        ((av.error.ExitError, TimeoutError), ipc_messages.STALLED),
        ((av.error.EOFError,), ipc_messages.GARBAGE if opening else ipc_messages.ENDED),
        ((av.error.DemuxerNotFoundError, av.error.ProtocolNotFoundError), ipc_messages.INVALID),
        ((av.error.DecoderNotFoundError, av.error.PatchWelcomeError), ipc_messages.INVALID),
        ((av.error.InvalidDataError, av.error.ArgumentError, ValueError), ipc_messages.GARBAGE),
    ]
    for types, reason in kinds:
        if isinstance(error, types):
            return reason
    return ipc_messages.UNREACHABLE if opening else ipc_messages.ENDED
