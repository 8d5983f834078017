"""A profile of all threads of a process: the event loop's and the model's, each with a table of its own."""

from __future__ import annotations

import cProfile
import io
import pstats
import threading
from types import FrameType
from typing import Any, TextIO

LINES = 40
#: calls of another thread that did nothing worth showing
IDLE = 5_000


class Profiles:
    """Profiles the thread that calls ``begin`` and those that start after it."""

    def __init__(self) -> None:
        self._own = cProfile.Profile()
        self._others: list[tuple[str, cProfile.Profile]] = []

    def begin(self) -> None:
        """Begin, before other threads do."""
        threading.setprofile(self._enter)
        self._own.enable()

    def end(self) -> None:
        """End, in the thread that began."""
        self._own.disable()
        threading.setprofile(None)

    def show(self, out: TextIO) -> None:
        """Print where time went, by time in the functions themselves."""
        for name, profile in [("event loop", self._own), *self._others]:
            text = io.StringIO()
            profile.create_stats()
            if profile is self._own or sum(entry.callcount for entry in profile.getstats()) > IDLE:
                pstats.Stats(profile, stream=text).strip_dirs().sort_stats("tottime").print_stats(LINES)
                print(f"--- thread: {name}\n{text.getvalue().strip()}\n", file=out, flush=True)

    def _enter(self, _frame: FrameType, _event: str, _argument: Any) -> None:
        """Take the first event of a thread: from here on the C profiler sees to it."""
        profile = cProfile.Profile()
        self._others.append((threading.current_thread().name, profile))
        profile.enable()
