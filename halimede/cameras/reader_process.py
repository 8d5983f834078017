"""``python -m halimede.cameras.reader_process``: reads one source in a separate process, which may crash.

FFmpeg's decoders are large programs that process input of a hostile stream. Here they have only the credentials of the
source, limited memory, write no files, and crash alone. The process ends with its parent.
"""

from __future__ import annotations

import os
import resource
import select
import threading
import time
from typing import BinaryIO, Generic, TypeVar

import msgspec
from av import logging

from halimede.cameras import ipc_messages
from halimede.cameras.ipc_messages import BEAT_S, Beat, CapturedPicture, ReaderEnd, ReaderJob, SourceError
from halimede.cameras.settings import CameraSettings
from halimede.cameras.source_reader import FrameEncoder, ReadProgress, read_frames
from halimede.errors import DecodeError, cause_of, hide_secrets
from halimede.system.prctl import end_with_parent

#: seconds after FFmpeg's own deadline until it counts as hanging
GRACE_S = 3.0
#: most bytes of a job
MAX_JOB = 64 * 1024
#: most bytes of data for FFmpeg
MAX_MEMORY = 1024 * 1024 * 1024
#: the type of the value that a ``LatestValue`` holds
T = TypeVar("T")


def main() -> None:
    """Run the job from standard input; exit without cleanup, because FFmpeg may hang in another thread."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other output to standard output must not mix with messages
    with os.fdopen(os.dup(0), "rb", buffering=0) as requests:  # unbuffered: later bytes are requests
        job = msgspec.json.decode(requests.readline(MAX_JOB), type=ReaderJob)
    if not end_with_parent(job.parent):
        return
    _limit()
    logging.set_level(None)
    reading = ReadProgress()
    latest: LatestValue[FrameEncoder] = LatestValue(patient=not job.camera.address.live)
    threading.Thread(target=_read, args=(job.camera, latest, reading), name="reader", daemon=True).start()
    code = 0
    try:
        PictureSender(latest, reading, out).run()
    except (BrokenPipeError, KeyboardInterrupt):
        code = 1  # the parent has closed the pipe
    os._exit(code)


class PictureSender:
    """Sends a picture for each request of the parent, and heartbeats in between.

    ``latest``: has the newest frame; ``reading``: the progress of the thread that reads; ``out``: the pipe.
    """

    def __init__(self, latest: LatestValue[FrameEncoder], reading: ReadProgress, out: BinaryIO) -> None:
        self._latest = latest
        self._reading = reading
        self._out = out
        self._requested = 0
        self._written_s = 0.0

    def run(self) -> None:
        """Send until the end of the source, or until the pipe is closed."""
        while True:
            if not self._is_open(0.0 if self._requested else BEAT_S):
                return
            try:
                shot = self._latest.take(BEAT_S) if self._requested else None
            except SourceError as error:
                self._over(error.reason, error.message)
                return
            if shot:
                self._send(shot)
            if time.monotonic() > self._reading.until_s + GRACE_S:
                self._over(ipc_messages.STALLED, "it hangs")
                return
            if time.monotonic() - self._written_s >= BEAT_S:
                self._write(Beat(counts=self._reading.counts))

    def _is_open(self, wait_s: float) -> bool:
        """Wait up to ``wait_s`` seconds for requests and count them; return whether the pipe is still open."""
        ready, _, _ = select.select([0], [], [], wait_s)
        if ready:
            requests = os.read(0, 4096)
            self._requested += len(requests)
            return bool(requests)
        return True

    def _send(self, shot: FrameEncoder) -> None:
        """Encode a frame and send it; a frame that cannot be encoded is counted instead."""
        try:
            encoded = shot.make()
        except (DecodeError, MemoryError, ValueError, OSError) as error:
            self._reading.refuse(cause_of(error))
            return
        self._requested -= 1
        self._write(
            CapturedPicture(
                taken_ns=shot.taken_ns,
                encoding=encoded.encoding,
                codec=shot.codec,
                width=encoded.width,
                height=encoded.height,
                counts=self._reading.counts,
                data=encoded.data,
            )
        )

    def _over(self, reason: str, message: str) -> None:
        """Send the final message."""
        self._write(ReaderEnd(reason=reason, message=message, counts=self._reading.counts))

    def _write(self, message: ipc_messages.ReaderMessage) -> None:
        """Write a message to the pipe."""
        self._out.write(ipc_messages.pack(message))
        self._out.flush()
        self._written_s = time.monotonic()


def _read(camera: CameraSettings, latest: LatestValue[FrameEncoder], reading: ReadProgress) -> None:
    """Read the source in a thread: put each frame into ``latest``, and close it with the reason of the end."""
    try:
        for shot in read_frames(camera, reading):
            reading.counts.skipped += latest.put(shot) is not None
        latest.close(SourceError(ipc_messages.ENDED, "it ended"))
    except SourceError as error:
        latest.close(error)
    except MemoryError:
        latest.close(SourceError(ipc_messages.GARBAGE, f"it takes more than {MAX_MEMORY >> 20} MB of memory"))
    except Exception as error:  # noqa: BLE001  # its text may contain the address
        latest.close(SourceError(ipc_messages.FAILED, f"reading it failed: {hide_secrets(cause_of(error))}"))


def _limit() -> None:
    """Limit the process: memory, files that it writes, core dumps."""
    for kind, allowed in ((resource.RLIMIT_DATA, MAX_MEMORY), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        limit = allowed if hard == resource.RLIM_INFINITY else min(allowed, hard)
        resource.setrlimit(kind, (limit, limit))


class LatestValue(Generic[T]):
    """Holds one value, between threads. ``patient``: ``put`` waits for an empty slot instead of replacing."""

    def __init__(self, *, patient: bool) -> None:
        self._patient = patient
        self._changed = threading.Condition()
        self._value: T | None = None
        self._error: Exception | None = None

    def put(self, value: T) -> T | None:
        """Store a value; return the one that it replaces, None without one."""
        with self._changed:
            while self._patient and self._value is not None:
                self._changed.wait()
            replaced, self._value = self._value, value
            self._changed.notify_all()
            return replaced

    def close(self, error: Exception) -> None:
        """Let ``take`` raise this error once there is no value."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def take(self, timeout_s: float) -> T | None:
        """Wait for the value and return it; None if none arrived in time. Raises the error of ``close``."""
        until = time.monotonic() + timeout_s
        with self._changed:
            while self._value is None:
                if self._error is not None:
                    raise self._error
                remaining_s = until - time.monotonic()
                if remaining_s <= 0:
                    return None
                self._changed.wait(remaining_s)
            value, self._value = self._value, None
            self._changed.notify_all()
            return value


if __name__ == "__main__":
    main()
