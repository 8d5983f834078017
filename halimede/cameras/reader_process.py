"""``python -m halimede.cameras.reader_process``: reads one source, in a process of its own that may die of it.

A decoder of FFmpeg's is a large program that a hostile stream talks to. Here it has no credentials but the source's
own, bounded memory, writes no files, and takes nobody along when it breaks. It ends with whoever started it.
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
from halimede.errors import DecodeError
from halimede.system.child_process import end_with_parent

#: seconds beyond a deadline of FFmpeg's own after which it counts as hanging
GRACE_S = 3.0
MAX_JOB = 64 * 1024
#: bytes of data that FFmpeg may have
MAX_MEMORY = 1024 * 1024 * 1024
T = TypeVar("T")


def main() -> None:
    """Do the job on standard input; leave without clearing up, for FFmpeg may hang in another thread."""
    said = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else writes to standard output must not get between messages
    with os.fdopen(os.dup(0), "rb", buffering=0) as asked:  # unbuffered: what follows the job is for others
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
        code = 1  # nobody listens any more
    os._exit(code)


class PictureSender:
    """Sends a picture for each ask, and a sign of life in between."""

    def __init__(self, box: LatestValue[FrameEncoder], reading: SourceReader, out: BinaryIO) -> None:
        self._box = box
        self._reading = reading
        self._out = out
        self._asked = 0
        self._told = 0.0

    def run(self) -> None:
        """Send until the source is over, or nobody asks any more."""
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
                self._write(Beat(counts=self._counts()))

    def _asks(self, wait_s: float) -> bool:
        """Count what is asked for; return False once the pipe is closed."""
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
            self._reading.refuse(str(error) or type(error).__name__)
            return
        self._asked -= 1
        self._write(
            CapturedPicture(
                taken_ns=shot.taken_ns,
                encoding=made.encoding,
                codec=shot.codec,
                width=made.width,
                height=made.height,
                counts=self._counts(),
                data=made.data,
            )
        )

    def _over(self, reason: str, message: str) -> None:
        self._write(Over(reason=reason, message=message, counts=self._counts()))

    def _counts(self) -> ipc_messages.ReaderCounts:
        self._reading.counts.skipped = self._box.skipped
        return self._reading.counts

    def _write(self, said: ipc_messages.Said) -> None:
        self._out.write(ipc_messages.pack(said))
        self._out.flush()
        self._told = time.monotonic()


def _read(camera: CameraSettings, box: LatestValue[FrameEncoder], reading: SourceReader) -> None:
    try:
        for shot in shots(camera, reading):
            box.put(shot)
        box.close(SourceError(ipc_messages.ENDED, "it ended"))
    except SourceError as error:
        box.close(error)
    except MemoryError:
        box.close(SourceError(ipc_messages.GARBAGE, f"it takes more than {MAX_MEMORY >> 20} MB of memory"))
    except Exception as error:  # noqa: BLE001 - its text may hold the address
        box.close(SourceError(ipc_messages.FAILED, f"reading it failed: {type(error).__name__}"))


def _limit() -> None:
    """Bound what the process may take: memory of its own, files it writes, dumps of its memory."""
    for what, most in (
        (resource.RLIMIT_DATA, MAX_MEMORY),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (least, least))


class LatestValue(Generic[T]):
    """Holds one thing, between threads. ``patient``: ``put`` waits for an empty box instead of replacing."""

    def __init__(self, *, patient: bool) -> None:
        self._patient = patient
        self._changed = threading.Condition()
        self._thing: T | None = None
        self._over: Exception | None = None
        self.skipped = 0

    def put(self, thing: T) -> None:
        """Put a thing in. What it replaces is counted as skipped."""
        with self._changed:
            while self._patient and self._thing is not None:
                self._changed.wait()
            self.skipped += self._thing is not None
            self._thing = thing
            self._changed.notify_all()

    def close(self, error: Exception) -> None:
        """Say that nothing more comes, and why."""
        with self._changed:
            self._over = error
            self._changed.notify_all()

    def take(self, timeout_s: float) -> T | None:
        """Return what is in the box, None if nothing came in time; once it is empty and closed, raise why."""
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
