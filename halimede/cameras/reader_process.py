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
from halimede.cameras.ipc_messages import BEAT_S, Beat, CapturedPicture, Over, ReaderJob, SourceError
from halimede.cameras.settings import CameraSettings
from halimede.cameras.source_reader import FrameEncoder, SourceReader, shots
from halimede.errors import DecodeError, cause_of, hide_secrets
from halimede.system.prctl import end_with_parent

#: seconds after FFmpeg's own deadline until it counts as hanging
GRACE_S = 3.0
MAX_JOB = 64 * 1024
#: most bytes of data for FFmpeg
MAX_MEMORY = 1024 * 1024 * 1024
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
    reading = SourceReader()
    box: LatestValue[FrameEncoder] = LatestValue(patient=not job.camera.address.live)
    threading.Thread(target=_read, args=(job.camera, box, reading), name="reader", daemon=True).start()
    code = 0
    try:
        PictureSender(box, reading, out).run()
    except (BrokenPipeError, KeyboardInterrupt):
        code = 1  # the parent has closed the pipe
    os._exit(code)


class PictureSender:
    """Sends a picture for each request, and heartbeats in between."""

    def __init__(self, box: LatestValue[FrameEncoder], reading: SourceReader, out: BinaryIO) -> None:
        self._box = box
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
                shot = self._box.take(BEAT_S) if self._requested else None
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
        """Count requests; whether the pipe is still open."""
        ready, _, _ = select.select([0], [], [], wait_s)
        if ready:
            requests = os.read(0, 4096)
            self._requested += len(requests)
            return bool(requests)
        return True

    def _send(self, shot: FrameEncoder) -> None:
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
        self._write(Over(reason=reason, message=message, counts=self._reading.counts))

    def _write(self, message: ipc_messages.ReaderMessage) -> None:
        self._out.write(ipc_messages.pack(message))
        self._out.flush()
        self._written_s = time.monotonic()


def _read(camera: CameraSettings, box: LatestValue[FrameEncoder], reading: SourceReader) -> None:
    try:
        for shot in shots(camera, reading):
            reading.counts.skipped += box.put(shot) is not None
        box.close(SourceError(ipc_messages.ENDED, "it ended"))
    except SourceError as error:
        box.close(error)
    except MemoryError:
        box.close(SourceError(ipc_messages.GARBAGE, f"it takes more than {MAX_MEMORY >> 20} MB of memory"))
    except Exception as error:  # noqa: BLE001  # its text may contain the address
        box.close(SourceError(ipc_messages.FAILED, f"reading it failed: {hide_secrets(cause_of(error))}"))


def _limit() -> None:
    """Limit the process: memory, files that it writes, core dumps."""
    for what, most in (
        (resource.RLIMIT_DATA, MAX_MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (least, least))


class LatestValue(Generic[T]):
    """Holds one value, between threads. ``patient``: ``put`` waits for an empty slot instead of replacing."""

    def __init__(self, *, patient: bool) -> None:
        self._patient = patient
        self._changed = threading.Condition()
        self._value: T | None = None
        self._error: Exception | None = None

    def put(self, value: T) -> T | None:
        """Store a value; return the one that it replaces."""
        with self._changed:
            while self._patient and self._value is not None:
                self._changed.wait()
            replaced, self._value = self._value, value
            self._changed.notify_all()
            return replaced

    def close(self, error: Exception) -> None:
        """End the stream with its reason."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def take(self, timeout_s: float) -> T | None:
        """Return the value, None if none arrived in time; raise the reason when it is empty and closed."""
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
