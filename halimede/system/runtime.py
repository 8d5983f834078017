"""Settings of halimede's own processes: signals, a faster start, garbage collection without pauses, freed memory.

They do not apply to programs that import the library, because they change the whole process.

Most objects of a process live long: its modules, a GM's cluster, a worker's records of frames. With 500 services a full
collection stops GM's loop for 0.15 s; in a cloud worker full collections took a sixth of its processor time (both
measured). So objects that exist at the start, or that have survived a collection, are frozen, and a collection checks
only new ones. Of the frozen objects only those in reference cycles can become garbage that is never freed: hence all of
them are checked again, rarely, if the process continues to freeze objects.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

#: structlog imports it if it is installed, only to format tracebacks, which halimede does not use: a sixth of the start
UNUSED = "rich"
#: full collections between two that check all objects
EVERYTHING_EVERY = 100
#: new objects before a young collection: reference counts free nearly all of them first
YOUNG = 10_000
#: parameters of mallopt(3) by their variables in the environment, and values in bytes: glibc's own adaptation ends
#: there, once the process has freed a block of 32 MiB
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": (-1, 64 * 1024 * 1024), "MALLOC_MMAP_THRESHOLD_": (-3, 32 * 1024 * 1024)}


def stop_on_signal() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set instead of ending this process."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def own_process() -> None:
    """Import structlog without rich, and keep modules out of collections, because they all stay.

    At its end the interpreter would check all objects again and free each one: that took as long as a quarter of the
    start. Open files are closed by their owners, not by collections.
    """
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)
    plain_log_lines()


def plain_log_lines() -> None:
    """Import structlog as if rich were not installed; later imports of rich work."""
    modules: dict[str, Any] = sys.modules
    if UNUSED in modules:
        return
    modules[UNUSED] = None
    try:
        import structlog  # noqa: F401, PLC0415  # it looks for rich only at its import
    finally:
        del modules[UNUSED]


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> None:
    """Let glibc keep up to 64 MiB of freed memory for the arrays of the next frames.

    Otherwise it returns them to the kernel after each frame, and each page is a fault again: up to a fifth of the
    processor time of a JPEG of 1920 x 1080. The environment has precedence. Another C library is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt and not ALLOCATOR.keys() & environ.keys():
        for parameter, size in ALLOCATOR.values():
            mallopt(parameter, size)


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Freeze all objects before the block, which are mostly modules; inside it collect young objects less often.

    For processes that create few long-lived objects: cycles among objects that are frozen later would never be freed.
    """
    before = gc.get_threshold()
    gc.set_threshold(YOUNG, *before[1:])
    gc.freeze()  # including the little garbage of imports: collecting it takes a tenth of a start
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@contextlib.contextmanager
def brief_collections() -> Iterator[None]:
    """Freeze surviving objects inside the block; afterwards collections work as before."""
    count = 0

    def set_aside(phase: str, info: dict[str, int]) -> None:
        nonlocal count
        if info["generation"] < 2:
            return
        if phase == "stop":
            gc.freeze()
            return
        count += 1
        if count % EVERYTHING_EVERY == 0:
            gc.unfreeze()

    before = gc.get_threshold()
    gc.set_threshold(YOUNG, *before[1:])
    gc.callbacks.append(set_aside)
    try:
        yield
    finally:
        gc.callbacks.remove(set_aside)
        gc.set_threshold(*before)
        gc.unfreeze()
