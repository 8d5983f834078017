"""One system per folder: a lock that dies with its holder, and run.json, by which the CLI finds the broker."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from halimede.errors import HalimedeError
from halimede.system.files import write_atomic


@contextlib.contextmanager
def usable(path: Path) -> Iterator[None]:
    """Raise HalimedeError that says what to do where a file of the system cannot be used."""
    try:
        yield
    except OSError as error:
        raise HalimedeError(
            f"{error.filename or path} cannot be used ({error.strerror}): "
            "move it away or make room, or choose another folder with HALIMEDE_HOME or --home"
        ) from error


class RunFile:
    """``run.json`` in ``home`` and its lock, held from ``async with`` to its end."""

    def __init__(self, home: Path) -> None:
        self.path = home / "run.json"
        self._home = home
        self._lock = home / "lock"
        self._handle: int | None = None

    def __enter__(self) -> Self:
        """Take the folder; raise HalimedeError when another process holds it."""
        try:
            self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise HalimedeError(
                f"{self._home} cannot be used ({error.strerror}): set HALIMEDE_HOME or --home to a folder of yours"
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(handle, 32).decode(errors="replace").strip() or "?"
            os.close(handle)
            raise HalimedeError(
                f"a system already runs in {self._home} (pid {holder}): stop it first, or choose another --home"
            ) from error
        self._handle = handle
        with usable(self.path):
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
            self.path.unlink(missing_ok=True)  # of one that was killed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the file, then let the folder go. The lock file stays: removing it would let two in."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def write(self, broker: str, nodes: list[str], credentials: Path | None = None) -> None:
        """Say where the broker is, and the folder of what to show it; a reader sees all of it or nothing."""
        content: dict[str, Any] = {"broker": broker}
        if credentials:
            content["credentials"] = str(credentials)
        content |= {"pid": os.getpid(), "nodes": nodes, "started": datetime.now(UTC).isoformat()}
        with usable(self.path):
            write_atomic(self.path, f"{json.dumps(content, indent=2)}\n".encode())
