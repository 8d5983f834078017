"""Counts the Python calls that this process makes in ``halimede`` and ``services``, in every thread.

A call is a ``call`` event of ``sys.setprofile``: a function, a comprehension, a generator or a coroutine that is
entered or resumed. Calls of functions in C are not counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from bench.results import ROOT

PACKAGES = ("halimede", "services")
COUNTED = tuple(f"{ROOT / package}/" for package in PACKAGES)
#: where ONNX Runtime's Python calls are: which thread runs the model
RUNTIME = "/onnxruntime/"


@dataclass(frozen=True, slots=True)
class Function:
    """One function of the source: where it stands, and its name."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.name} (line {self.line})"


@dataclass(frozen=True, slots=True)
class Cost:
    """The calls of one window by function. ``inline`` and ``threaded`` count model calls on and off the event loop."""

    by_function: Counter[Function]
    seconds: float
    inline: int = 0
    threaded: int = 0

    @property
    def calls(self) -> int:
        """The number of calls."""
        return self.by_function.total()

    @property
    def functions(self) -> int:
        """The number of distinct functions."""
        return len(self.by_function)

    @property
    def files(self) -> int:
        """The number of distinct files."""
        return len({function.file for function in self.by_function})


class CallRecorder:
    """Records calls of the thread of the event loop and of all threads that start after ``installed`` is entered.

    One for the whole run: threads that outlive what started them keep the recorder that they began with.
    """

    def __init__(self) -> None:
        self._recording = False
        self._loop: list[CodeType] = []
        self._threads: list[CodeType] = []

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Observe threads that start within the block."""
        threading.setprofile(self._on_thread)
        try:
            yield
        finally:
            threading.setprofile(None)

    async def record(self, work: Callable[[], Awaitable[Any]]) -> Cost:
        """Run ``work``, called in the thread of the event loop, and return what all threads called meanwhile."""
        self._loop, self._threads = [], []
        clock = asyncio.get_running_loop()
        began = clock.time()
        self._recording = True
        sys.setprofile(self._on_loop)
        try:
            await work()
        finally:
            sys.setprofile(None)
            self._recording = False
        inline, threaded = model_calls(self._loop), model_calls(self._threads)
        return Cost(by_function([*self._loop, *self._threads]), clock.time() - began, inline, threaded)

    def _on_loop(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            self._loop.append(frame.f_code)

    def _on_thread(self, frame: FrameType, event: str, _argument: object) -> None:
        if self._recording and event == "call":
            self._threads.append(frame.f_code)


def by_function(codes: Iterable[CodeType]) -> Counter[Function]:
    """Count the calls of our packages."""
    counts: Counter[Function] = Counter()
    for code, count in Counter(codes).items():
        if code.co_filename.startswith(COUNTED):
            file = str(Path(code.co_filename).relative_to(ROOT))
            counts[Function(file, code.co_firstlineno, code.co_qualname)] += count
    return counts


def model_calls(codes: Iterable[CodeType]) -> int:
    """Count the calls of ONNX Runtime's sessions."""
    return sum(code.co_name == "run" and RUNTIME in code.co_filename for code in codes)


def summary(costs: list[Cost], idle: Cost) -> dict[str, int]:
    """Return the median calls, without those that an idle process makes in the same time, and what they are calls of.

    Functions are those that are called in at least half of the windows: the timers of an idle process are in few.
    """
    idle_rate = idle.calls / idle.seconds
    windows = Counter(function for cost in costs for function in cost.by_function)
    functions = [function for function, count in windows.items() if 2 * count >= len(costs)]
    return {
        "calls": round(statistics.median(cost.calls - idle_rate * cost.seconds for cost in costs)),
        "functions": len(functions),
        "files": len({function.file for function in functions}),
    }


def median_cost(costs: list[Cost]) -> Cost:
    """Return the window with the median number of calls."""
    return sorted(costs, key=lambda cost: cost.calls)[len(costs) // 2]


def listing(cost: Cost) -> str:
    """Return the functions of a window with their calls, most calls first, for people."""
    rows = sorted(cost.by_function.items(), key=lambda item: (-item[1], str(item[0])))
    head = f"{cost.calls} calls of {cost.functions} functions in {cost.files} files"
    return "\n".join([head, *(f"{count:6} {function}" for function, count in rows)])
