"""The pictures of one source, read by a child process: requested one by one, so that each is the newest."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

import halimede
from halimede.cameras import ipc_messages
from halimede.cameras.ipc_messages import LENGTH, MAX_MESSAGE, ReaderEnd, ReaderJob, ReaderMessage, SourceError
from halimede.system.child_process import last_line, reap

#: variables that the child inherits: no credentials, and no proxy that would receive the source's
INHERITED = frozenset({"LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TZ"})
#: variables that keep the child small
SMALL = {"MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
#: seconds until a child's first message, and without a further one, after which it counts as stuck
START_S, SILENT_S = 30.0, 10.0
#: seconds for a killed child to end
ENDING_S = 5.0
#: bytes of the child's messages that are buffered
BUFFER_BYTES = 1024 * 1024


class ReaderClient:
    """One reader process. ``async with`` starts and ends it; iterate over its messages, and ``request`` pictures."""

    def __init__(self, job: ReaderJob) -> None:
        self._job = job
        self._child: subprocess.Popen[bytes] | None = None
        self._output = asyncio.StreamReader(limit=BUFFER_BYTES)
        self._pipes: list[asyncio.ReadTransport] = []
        self._errors: asyncio.Task[str] | None = None

    async def __aenter__(self) -> Self:
        """Start the child. The job with its secrets goes through a pipe, so that no process list shows it.

        Raises SourceError if no process can be started.
        """
        loop = asyncio.get_running_loop()
        try:
            child = self._child = _start()
        except OSError as error:
            text = f"no process could be started to read it: {error.strerror}"
            raise SourceError(ipc_messages.CRASHED, text) from error
        stderr = asyncio.StreamReader()
        for reader, pipe in ((self._output, child.stdout), (stderr, child.stderr)):
            transport, _ = await loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe)
            self._pipes.append(transport)
        self._errors = asyncio.create_task(last_line(stderr), name="errors of a camera's reader")
        self._write(msgspec.json.encode(self._job) + b"\n")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the child in any state. Only this object reaps it, so its group id stays valid until then."""
        assert self._child is not None  # noqa: S101
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        try:
            await self._wait_exit()
        finally:
            for transport in self._pipes:
                transport.close()
            if self._child.stdin:
                with contextlib.suppress(OSError):
                    self._child.stdin.close()
            if self._errors:
                self._errors.cancel()

    @property
    def pid(self) -> int:
        """The child's process id, 0 before the start."""
        return self._child.pid if self._child else 0

    def request(self, count: int = 1) -> None:
        """Request ``count`` more pictures."""
        self._write(ipc_messages.REQUEST * count)

    def _write(self, data: bytes) -> None:
        """Write a few bytes, for which a pipe always has capacity; other code detects a dead child."""
        assert self._child is not None  # noqa: S101
        assert self._child.stdin is not None  # noqa: S101
        with contextlib.suppress(OSError):
            os.write(self._child.stdin.fileno(), data)

    async def __aiter__(self) -> AsyncIterator[ReaderMessage]:
        """Yield the child's messages. Raises SourceError at the end, with the reason."""
        timeout_s = START_S + self._job.camera.open_s
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    message = await self._next()
            except TimeoutError:
                raise SourceError(ipc_messages.STUCK, f"its reader has sent nothing for {timeout_s:g} s") from None
            timeout_s = SILENT_S
            yield message
            if isinstance(message, ReaderEnd):
                raise SourceError(message.reason, message.message)

    async def _next(self) -> ReaderMessage:
        """Return the child's next message. Raises SourceError if it ends or sends something else."""
        try:
            (length,) = LENGTH.unpack(await self._output.readexactly(LENGTH.size))
            if length > MAX_MESSAGE:
                raise SourceError(ipc_messages.CRASHED, "its reader sent an invalid message")
            return ipc_messages.unpack(await self._output.readexactly(length))
        except asyncio.IncompleteReadError:
            raise SourceError(ipc_messages.CRASHED, await self._end()) from None
        except (msgspec.DecodeError, ConnectionError):
            raise SourceError(ipc_messages.CRASHED, "its reader sent an invalid message") from None

    async def _end(self) -> str:
        """Return how the child ended, and its last output."""
        code = await self._wait_exit()
        if code is None:
            return "its reader closed the connection"
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        last = await self._errors if self._errors else ""
        return f"its reader ended ({how}){last and f': {last}'}"

    async def _wait_exit(self) -> int | None:
        """Wait for the child's end and reap it; None: it hangs in the kernel, for example in a device."""
        assert self._child is not None  # noqa: S101
        if self._child.returncode is not None:
            return self._child.returncode
        try:
            async with asyncio.timeout(ENDING_S):
                return await reap(self._child)
        except TimeoutError:
            return None


def _start() -> subprocess.Popen[bytes]:
    """Return the started child, with three pipes and its own process group. Raises OSError."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "halimede.cameras.reader_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env=environment(os.environ),
        process_group=0,
    )
    assert child.stdin is not None  # noqa: S101
    os.set_blocking(child.stdin.fileno(), False)
    return child


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a reader from that of this process."""
    home = str(Path(halimede.__file__).parents[1])
    env = {name: value for name, value in own.items() if name in INHERITED}
    return {**env, **SMALL, "PYTHONPATH": os.pathsep.join(filter(None, [home, env.get("PYTHONPATH", "")]))}
