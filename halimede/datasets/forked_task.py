"""Part of a count in a forked process, which runs one task, returns its result, and exits.

For the one process that counts and has no other thread; whoever calls from a program of more threads gets nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

from halimede.system.child_process import end_with_parent


class ForkedTask:
    """A piece of work in a copy of this process."""

    def __init__(self, process: int, pipe: int) -> None:
        self._process = process
        self._pipe = pipe

    @classmethod
    def start(cls, work: Callable[[], bytes]) -> ForkedTask | None:
        """Start it, if there is a processor for it."""
        if len(os.sched_getaffinity(0)) < 2 or threading.active_count() > 1:
            return None
        parent = os.getpid()
        mine, its = os.pipe()
        try:
            process = os.fork()
        except OSError:
            os.close(mine)
            os.close(its)
            return None
        if process:
            os.close(its)
            return cls(process, mine)
        code = 1
        try:
            if end_with_parent(parent):
                os.close(mine)
                with os.fdopen(its, "wb") as pipe:
                    pipe.write(work())
                code = 0
        except BaseException as error:  # noqa: BLE001  # nothing of the copied program may go on
            print(f"counting beside broke: {type(error).__name__}", file=sys.stderr)
        finally:
            os._exit(code)  # nothing that is open belongs to a copy

    def result(self) -> bytes | None:
        """Wait for what came of it, None if it broke."""
        with os.fdopen(self._pipe, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(self._process, 0)
        return said if status == 0 else None

    def cancel(self) -> None:
        """End it."""
        os.kill(self._process, signal.SIGKILL)
        os.close(self._pipe)
        os.waitpid(self._process, 0)
