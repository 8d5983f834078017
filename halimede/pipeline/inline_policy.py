"""Decides which model calls run on the event loop itself: those that cost less than a thread switch and back.

What runs there stops everything else in the process. So it is kept to models of this project (a user's code may wait
for anything), to calls that measurements say are short, and to so many samples at a time that nobody notices. A call
that hangs nevertheless hangs the loop too: ``executor.LoopWatchdog`` watches from a thread and ends the process.
"""

from __future__ import annotations

#: milliseconds of CPU time that a sample may cost usually; twice that ends it
SHORT_MS = 0.3
#: milliseconds that no call may take for each of its samples, and calls in a row that have to keep to that
LONGEST_MS, ENOUGH = 2.0, 50
#: milliseconds for which a call may block the loop, and bytes of frames that it may read in them
BLOCK_MS, BLOCK_BYTES = 1.0, 4 * 1024 * 1024
#: weight of the newest call in the running mean
NEWEST = 0.1
#: milliseconds added to what a sample was measured to cost, which may be nothing
LEAST_MS = 0.001


class InlinePolicy:
    """Decides from the CPU time of a model's calls so far whether they may run on the event loop. Pure.

    CPU time, because a busy machine that lets a call wait says nothing about the model. ``first_ms``: what one sample
    cost in a trial run; a model for which that is short may run on the loop from its first call on.
    """

    def __init__(self, first_ms: float | None = None) -> None:
        self._each_ms = SHORT_MS if first_ms is None else first_ms
        short = first_ms is not None and first_ms <= SHORT_MS
        self._in_a_row = ENOUGH if short else 0
        #: samples that one call on the event loop may answer; 0: none, calls belong in a thread
        self.max_samples = int(BLOCK_MS / (self._each_ms + LEAST_MS)) if short else 0

    def learn(self, samples: int, ms: float) -> None:
        """Take in one call: how many samples it answered, and the milliseconds of CPU time that it took."""
        each = ms / samples if samples > 1 else ms
        mean = self._each_ms = self._each_ms + NEWEST * (each - self._each_ms)
        self._in_a_row = self._in_a_row + 1 if each <= LONGEST_MS else 0
        if self._in_a_row < ENOUGH or mean > 2 * SHORT_MS:
            self.max_samples = 0
        elif self.max_samples or mean <= SHORT_MS:
            self.max_samples = int(BLOCK_MS / (mean + LEAST_MS))
