"""Decodes pictures in a process of its own, at each scale: a crash of native code ends that process, and is seen.

A child (``python -m tests.fuzz.decoder``) takes pictures from standard input, each behind its length, and answers with
the processor time that it took. Its memory is limited, and so is the time of a picture.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import struct
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import Self

import numpy as np

from halimede.errors import DecodeError
from halimede.frames.encodings import decode
from halimede.image_headers import read_jpeg
from halimede.messages import Frame
from tests.waiting import patience

COMMAND = (sys.executable, "-m", "tests.fuzz.decoder")
#: bytes of data of the child; a picture of a few KB has at most some megapixels
MEMORY = 512 * 1024 * 1024
#: seconds of processor time for a picture at all scales, and of waiting for the child
CPU_S, WAIT_S = 5.0, 30.0
LENGTH, TIME = struct.Struct(">I"), struct.Struct(">d")
SCALINGS = [(scale, grey) for scale in (1, 2, 4, 8) for grey in (False, True)]


class CrashedError(Exception):
    """The process that decodes ended, or hung, or took too long."""


class DecoderProcess:
    """A target of the fuzzer. Attributes: ``slowest``: seconds of processor time, and the picture that took them."""

    def __init__(self, command: tuple[str, ...] = COMMAND, wait_s: float = WAIT_S) -> None:
        self.slowest = (0.0, b"")
        self._command = command
        self._wait_s = wait_s
        self._child: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._errors.close()

    def __call__(self, data: bytes) -> None:
        """Decode a picture. Raises CrashedError if that is not done in time, or ends the process."""
        with contextlib.suppress(DecodeError):
            read_jpeg(memoryview(data))  # here its lines are counted
        seconds = self._ask(data)
        self.slowest = max(self.slowest, (seconds, data))
        if seconds > CPU_S:
            raise CrashedError(f"it takes {seconds:.1f} s of processor time")

    def _ask(self, data: bytes) -> float:
        if self._child is None:
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0
            )
        assert self._child.stdin
        assert self._child.stdout
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(LENGTH.pack(len(data)) + data)
        ready, _, _ = select.select([self._child.stdout], [], [], patience(self._wait_s))
        answer = self._child.stdout.read(TIME.size) if ready else b""
        if len(answer or b"") == TIME.size:
            return float(TIME.unpack(answer)[0])
        raise CrashedError(self._end() if ready else f"it hangs: {self._end()}")

    def _end(self) -> str:
        """End the child; return how it ended, with the last line of its errors."""
        if self._child is None:
            return ""
        child, self._child = self._child, None
        for pipe in (child.stdin, child.stdout):
            assert pipe
            pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1)
        child.kill()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        self._errors.truncate(0)
        return f"code {child.wait()} {lines[-1] if lines else ''}".rstrip()


def serve() -> None:
    """Decode what comes on standard input until it ends."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked, answers = os.fdopen(0, "rb"), os.fdopen(os.dup(1), "wb")
    while len(head := asked.read(LENGTH.size)) == LENGTH.size:
        data = asked.read(*LENGTH.unpack(head))
        began = time.process_time()
        decode_at_each_scale(data)
        answers.write(TIME.pack(time.process_time() - began))
        answers.flush()


def decode_at_each_scale(data: bytes) -> None:
    """Decode a JPEG at all scales, or have each refused: all pixels are written, and their sides are as claimed."""
    for scale, grey in SCALINGS:
        scaling = SimpleNamespace(grey=grey, scale=lambda *_, scale=scale: scale)
        frame = Frame(id=bytes(16), encoding="jpeg", data=memoryview(data))
        try:
            pixels = decode(frame, scaling)
            again = decode(frame, scaling)
        except DecodeError as error:
            if "memory" in str(error):
                raise
            continue
        claimed = read_jpeg(memoryview(data))
        if min(claimed.width, claimed.height) >= scale:
            assert pixels.shape[:2] == (-(-claimed.height // scale), -(-claimed.width // scale))
        assert np.array_equal(pixels, again), "some of its pixels are memory that nobody wrote"


if __name__ == "__main__":
    serve()
