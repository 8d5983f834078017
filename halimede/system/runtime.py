"""Settings of halimede's own processes: signals, a faster start, garbage collection without pauses, freed memory.

Only main programs call these functions, because they change the whole process. To freeze objects (``gc.freeze``) means
that collections no longer check them.

Most objects of a process live long: its modules, a GM's cluster, a worker's records of frames. With 500 services a full
collection stops GM's loop for 0.15 s; in a cloud worker full collections took a sixth of its processor time (both
measured). So objects that exist at the start, or that have survived a collection, are frozen, and a collection checks
only new ones. Frozen objects in reference cycles would never be freed: so a process that continues to freeze objects
checks all of them again, rarely.
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

#: package that structlog imports if it is installed, only to format tracebacks, which halimede does not use: the import
#: takes a sixth of the start
UNUSED = "rich"
#: of so many full collections, one also checks the frozen objects
EVERYTHING_EVERY = 100
#: new objects before a collection of young ones: reference counts free nearly all of them first
YOUNG = 10_000
#: variables in the environment, each with its parameter of mallopt(3) and a value in bytes: the values that glibc sets
#: itself once the process has freed a block of 32 MiB
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": (-1, 64 * 1024 * 1024), "MALLOC_MMAP_THRESHOLD_": (-3, 32 * 1024 * 1024)}


def stop_on_signal() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set instead of ending this process. Call it in the event loop."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def own_process() -> None:
    """Make the start and the end of this process faster: call it before other imports.

    structlog is imported without rich, and young objects are collected less often. At the end all objects are frozen:
    the interpreter would check and free each one, which took as long as a quarter of the start. Open files are closed
    by their owners, not by collections.
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

    Otherwise glibc returns the memory to the kernel after each frame, and each page of the next frame is a page fault:
    up to a fifth of the processor time of a JPEG of 1920 x 1080. Nothing changes if ``environ`` has one of the
    variables of ALLOCATOR, or with another C library.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt and not ALLOCATOR.keys() & environ.keys():
        for parameter, size in ALLOCATOR.values():
            mallopt(parameter, size)


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Freeze all objects before the block, mostly modules; inside the block collect young objects less often.

    For processes that create few long-lived objects. Afterwards collections work as before.
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
    """Inside the block, freeze the objects that survive a full collection; afterwards collections work as before.

    For processes that create many long-lived objects, such as GM.
    """
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
