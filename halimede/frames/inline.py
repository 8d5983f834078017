"""Model calls on the event loop itself: of models so short that the way to a thread and back costs more than they do.

What runs there stops everything else in this process, so it is kept to models of ours (a user's code may wait for
anything), to calls that measurements say are short, and to so many samples in one turn that nobody notices. A call
that hangs nevertheless hangs the loop too: ``Guard`` watches from a thread and ends the process.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

#: milliseconds of CPU time that a sample may cost usually; twice that ends it
SHORT_MS = 0.3
#: milliseconds that no call may take for each of its samples, and calls in a row that have to keep to that
LONGEST_MS, ENOUGH = 2.0, 50
#: milliseconds that the loop may be kept at most, and bytes of frames that are looked at in them
TURN_MS, TURN_BYTES = 1.0, 4 * 1024 * 1024
#: weight of the newest call in the running mean
NEWEST = 0.1
#: the worker's exit code for what starting again does not mend by itself: as ``worker.runtime`` has it
STUCK_CODE = 2


class Brief:
    """Whether a model's calls are short, by the calls so far. Pure.

    What is learnt is CPU time: that a busy machine let a call wait says nothing of the model.
    """

    def __init__(self) -> None:
        self._in_a_row = 0
        self._each_ms = SHORT_MS
        self._may = False

    def learn(self, samples: int, ms: float) -> None:
        """Take in one call with all that belongs to it: how many samples, how many milliseconds."""
        each = ms / max(samples, 1)
        self._in_a_row = self._in_a_row + 1 if each <= LONGEST_MS else 0
        self._each_ms += NEWEST * (each - self._each_ms)
        if self._in_a_row < ENOUGH or self._each_ms > 2 * SHORT_MS:
            self._may = False
        elif self._each_ms <= SHORT_MS:
            self._may = True

    @property
    def room(self) -> int:
        """Samples that may be answered in one turn of the event loop; 0: none, they are a thread's."""
        return max(1, int(TURN_MS / max(self._each_ms, 1e-3))) if self._may else 0


class Guard:
    """Ends the process when ``busy_s`` says that a call takes much longer than ``limit_s``, from a thread of its own.

    The event loop's own watch comes first, where the loop still runs: it lets the worker say what happened.
    """

    def __init__(self, busy_s: Callable[[], float], limit_s: float, leave: Callable[[int], None] = os._exit) -> None:
        self._busy_s = busy_s
        self._limit_s = limit_s
        self._leave = leave
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="guard", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _watch(self) -> None:
        every = min(1.0, self._limit_s / 4)
        looks = 0
        while not self._over.wait(every):
            # several looks: a process that was stopped for a while finds its clock ahead
            looks = looks + 1 if self._busy_s() > self._limit_s else 0
            if looks > 2:
                print(
                    f"halimede worker: ModelStuck: the model has not answered for {self._limit_s:g} s and the event "
                    "loop with it: restart it, or raise MODEL_TIMEOUT_S",
                    file=sys.stderr,
                    flush=True,
                )
                self._leave(STUCK_CODE)
                return
