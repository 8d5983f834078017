"""Exponential back-off: the pause before the next attempt doubles with each failure in a row, up to a limit."""

from __future__ import annotations

from dataclasses import dataclass


def exponential(failures: int, first_s: float, longest_s: float) -> float:
    """Return the pause in seconds after ``failures`` in a row: ``first_s`` after one, 0 without a failure."""
    return min(longest_s, first_s * 2.0 ** min(failures - 1, 64)) if failures > 0 else 0.0


@dataclass(slots=True)
class Backoff:
    """Counts the ``failures`` in a row. ``first_s``, ``longest_s``: the first and the longest pause in seconds."""

    first_s: float
    longest_s: float
    failures: int = 0

    def fail(self) -> float:
        """Count a failure; return the pause in seconds before the next attempt."""
        self.failures += 1
        return exponential(self.failures, self.first_s, self.longest_s)

    def reset(self) -> None:
        """Set the count to 0, after a successful attempt."""
        self.failures = 0
