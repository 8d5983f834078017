"""The one place between who reads a source and who sends its pictures on: a newer one takes an older one's place."""

from __future__ import annotations

import threading
import time
from typing import Generic, TypeVar

T = TypeVar("T")


class LatestValue(Generic[T]):
    """Holds one thing, between threads. ``patient``: ``put`` waits for an empty box instead of replacing."""

    def __init__(self, *, patient: bool) -> None:
        self._patient = patient
        self._changed = threading.Condition()
        self._thing: T | None = None
        self._over: Exception | None = None
        self.skipped = 0

    def put(self, thing: T) -> None:
        """Put a thing in. What it replaces is counted as skipped."""
        with self._changed:
            while self._patient and self._thing is not None:
                self._changed.wait()
            self.skipped += self._thing is not None
            self._thing = thing
            self._changed.notify_all()

    def close(self, error: Exception) -> None:
        """Say that nothing more comes, and why."""
        with self._changed:
            self._over = error
            self._changed.notify_all()

    def take(self, timeout_s: float) -> T | None:
        """Return what is in the box, None if nothing came in time; once it is empty and closed, raise why."""
        until = time.monotonic() + timeout_s
        with self._changed:
            while self._thing is None:
                if self._over is not None:
                    raise self._over
                left = until - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(left)
            thing, self._thing = self._thing, None
            self._changed.notify_all()
            return thing
