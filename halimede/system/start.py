"""What our own processes do before they import the rest: start and end at two thirds of the processor time.

A program that imports the library is left alone: all of this concerns the whole process.
"""

from __future__ import annotations

import atexit
import gc
import sys
from typing import Any

from halimede.system.garbage_collection import YOUNG

#: structlog loads it where it is installed, for tracebacks as we never show them: a sixth of a service's start
UNUSED = "rich"


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
