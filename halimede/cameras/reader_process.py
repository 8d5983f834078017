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
    said = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other output to standard output must not mix with messages
    with os.fdopen(os.dup(0), "rb", buffering=0) as asked:  # unbuffered: later bytes are requests
        job = msgspec.json.decode(asked.readline(MAX_JOB), type=ReaderJob)
    if not end_with_parent(job.parent):
        return
    _limit()
    logging.set_level(None)
    reading = SourceReader()
    box: LatestValue[FrameEncoder] = LatestValue(patient=not job.camera.address.live)
    threading.Thread(target=_read, args=(job.camera, box, reading), name="reader", daemon=True).start()
    code = 0
    try:
        PictureSender(box, reading, said).run()
    except (BrokenPipeError, KeyboardInterrupt):
        code = 1  # the parent has closed the pipe
    os._exit(code)


class PictureSender:
    """Sends a picture for each request, and heartbeats in between."""

    def __init__(self, box: LatestValue[FrameEncoder], reading: SourceReader, out: BinaryIO) -> None:
        self._box = box
        self._reading = reading
        self._out = out
        self._asked = 0
        self._told = 0.0

    def run(self) -> None:
        """Send until the end of the source, or until the pipe is closed."""
        while True:
            if not self._asks(0.0 if self._asked else BEAT_S):
                return
            try:
                shot = self._box.take(BEAT_S) if self._asked else None
            except SourceError as error:
                self._over(error.reason, error.message)
                return
            if shot:
                self._send(shot)
            if time.monotonic() > self._reading.until_s + GRACE_S:
                self._over(ipc_messages.STALLED, "it hangs")
                return
            if time.monotonic() - self._told >= BEAT_S:
                self._write(Beat(counts=self._reading.counts))

    def _asks(self, wait_s: float) -> bool:
        """Count requests; return False once the pipe is closed."""
        ready, _, _ = select.select([0], [], [], wait_s)
        if ready:
            asks = os.read(0, 4096)
            self._asked += len(asks)
            return bool(asks)
        return True

    def _send(self, shot: FrameEncoder) -> None:
        try:
            made = shot.make()
        except (DecodeError, MemoryError, ValueError, OSError) as error:
            self._reading.refuse(cause_of(error))
            return
        self._asked -= 1
        self._write(
            CapturedPicture(
                taken_ns=shot.taken_ns,
                encoding=made.encoding,
                codec=shot.codec,
                width=made.width,
                height=made.height,
                counts=self._reading.counts,
                data=made.data,
            )
        )

    def _over(self, reason: str, message: str) -> None:
        self._write(Over(reason=reason, message=message, counts=self._reading.counts))

    def _write(self, said: ipc_messages.Said) -> None:
        self._out.write(ipc_messages.pack(said))
        self._out.flush()
        self._told = time.monotonic()


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
        self._thing: T | None = None
        self._over: Exception | None = None

    def put(self, thing: T) -> T | None:
        """Store a value; return the one that it replaces."""
        with self._changed:
            while self._patient and self._thing is not None:
                self._changed.wait()
            replaced, self._thing = self._thing, thing
            self._changed.notify_all()
            return replaced

    def close(self, error: Exception) -> None:
        """End the stream with its reason."""
        with self._changed:
            self._over = error
            self._changed.notify_all()

    def take(self, timeout_s: float) -> T | None:
        """Return the value, None if none arrived in time; raise the reason when it is empty and closed."""
        until = time.monotonic() + timeout_s
        with self._changed:
            while self._thing is None:
                if self._over is not None:
                    raise self._over
                left = until - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            thing, self._thing = self._thing, None
            self._changed.notify_all()
            return thing


if __name__ == "__main__":
    main()
