"""Frame rates: which frames of a source to keep, when those of a file are due, and the limit of a flood. All pure.

Times are seconds, or nanoseconds where a name ends in ``_ns``.
"""

from __future__ import annotations

from dataclasses import dataclass

#: frames per second above which a live source is not read faster: back-pressure on its connection slows it
MOST_FPS = 240.0
#: seconds of frames that may arrive in a burst before they are slowed
BURST_S = 0.25
#: how much too early a frame may arrive and still be kept, because cameras are not exact: as a share of the requested
#: interval, and of the source's own
EARLY_BY_STEP, EARLY_BY_SOURCE = 0.4, 0.5
#: how late a network or a busy machine may deliver a frame of a live source, in seconds: the frames behind a late one
#: come early
JITTER_S = 0.5


class FrameThinner:
    """Selects the frames to keep, so that there are ``fps`` a second; 0: all.

    It works as the generic cell rate algorithm (GCRA). ``jitter_s`` is its tolerance in seconds: a source at or below
    the rate loses no frame if its frames arrive at most so late, and a faster source exceeds the rate for that time.
    """

    def __init__(self, fps: float, jitter_s: float = 0.0) -> None:
        self._step = 1 / fps if fps else 0.0
        self._jitter_s = jitter_s
        #: times of the next frame to keep, and of the last frame
        self._due = float("-inf")
        self._before = float("-inf")

    def accepts(self, at_s: float) -> bool:
        """Return whether the caller keeps a frame of this time, and remember the answer for the next frames.

        ``at_s``: seconds of any clock. A time that goes back by more than two intervals and ``jitter_s`` starts again.
        """
        if not self._step:
            return True
        since, self._before = at_s - self._before, at_s
        if at_s < self._due - self._jitter_s - 2 * self._step:
            self._due = at_s
        if at_s < self._due - max(self._jitter_s, min(EARLY_BY_STEP * self._step, EARLY_BY_SOURCE * max(since, 0.0))):
            return False
        self._due = (self._due if at_s - self._due < self._step else at_s) + self._step
        return True


class Brake:
    """Limits the reading of a live source to ``MOST_FPS``, by a pause before the next frame."""

    def __init__(self) -> None:
        self._next = float("-inf")

    def pause(self, now_s: float) -> float:
        """Record a frame that arrived now; return the seconds to wait before the next one is read."""
        self._next = max(self._next, now_s - BURST_S) + 1 / MOST_FPS
        return max(0.0, self._next - now_s)


@dataclass(slots=True)
class Timeline:
    """The times of a file's frames on the wall clock, over all turns of a loop.

    ``pace``: frames a second; -1 or 0: the file's own times, for which the caller does not wait if it is 0.
    ``start_ns``: when the first frame is due, since 1970.
    """

    pace: float
    start_ns: int
    #: duration of a frame of the file in seconds
    step_s: float
    #: number of frames so far, over all turns
    _index: int = 0
    #: time in the file of the first frame of this turn, None before it; seconds from there to the latest frame
    _first: float | None = None
    _last: float = 0.0
    #: seconds that all earlier turns took
    _offset_s: float = 0.0

    def due_ns(self, time_s: float | None) -> int:
        """Return when the next frame is due, since 1970. ``time_s``: its time in the file; None: the file has none."""
        if self.pace > 0:
            seconds = self._index / self.pace
        else:
            if time_s is None:
                time_s = (self._first or 0.0) + (self._last + self.step_s if self._first is not None else 0.0)
            if self._first is None:
                self._first = time_s
            self._last = max(self._last, time_s - self._first)
            seconds = self._offset_s + time_s - self._first
        self._index += 1
        return self.start_ns + round(seconds * 1e9)

    def again(self) -> None:
        """Begin the next turn of the loop, one frame after the last one."""
        if self._first is not None:
            self._offset_s += self._last + self.step_s
        self._first, self._last = None, 0.0
