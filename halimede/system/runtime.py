"""How our own processes run Python: a start at two thirds of the processor time, garbage collection without pauses.

A program that imports the library is left alone: all of this concerns the whole process.

What a process knows lives long: its modules, a GM's cluster, a worker's book of frames. With 500 services a look at all
of it stops GM's loop for 0.15 s; in a cloud worker such looks were a sixth of its processor time (both measured). What
was there at the start, or has survived a collection, is therefore set aside, and a collection checks only what is new.
Of the rest, only what refers to itself in a circle could become garbage that nobody finds: hence, where that goes on,
all of it is looked at again, rarely.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import Any

#: structlog loads it where it is installed, for tracebacks as we never show them: a sixth of a service's start
UNUSED = "rich"
#: full collections from one that looks at everything to the next
EVERYTHING_EVERY = 100
#: objects more than before from which on the youngest are looked at: reference counts free nearly all of them first
YOUNG = 10_000


def own_process() -> None:
    """Import log lines without what they do not need, and spare the collector looks at modules, which all stay.

    At its end the interpreter would look at all objects once more, and take apart each by itself: that took as long as
    a quarter of the start. What is open is closed by whoever opened it, not by collections.
    """
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)
    plain_log_lines()


def plain_log_lines() -> None:
    """Import structlog as if rich were not installed; whoever wants that for tables finds it afterwards."""
    modules: dict[str, Any] = sys.modules
    if UNUSED in modules:
        return
    modules[UNUSED] = None
    try:
        import structlog  # noqa: F401, PLC0415  # it looks for rich now, and never again
    finally:
        del modules[UNUSED]


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Set aside what is there before the block, which is nearly all modules; inside it look at the youngest less often.

    For processes that make little that lives long: of what they set aside later, circles would stay behind.
    """
    before = gc.get_threshold()
    gc.set_threshold(YOUNG, *before[1:])
    gc.freeze()  # with the little garbage that imports leave: looking for it takes a tenth of a start
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@contextlib.contextmanager
def brief_collections() -> Iterator[None]:
    """Set survivors aside inside the block; afterwards collections are as they were."""
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
