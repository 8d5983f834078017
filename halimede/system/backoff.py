"""Exponential back-off: the pause before the next attempt doubles with each failure in a row, up to a limit."""

from __future__ import annotations

from dataclasses import dataclass


def exponential(failures: int, first_s: float, longest_s: float) -> float:
    """Return the pause in seconds after so many failures in a row: ``first_s`` after one, none after none."""
    return min(longest_s, first_s * 2.0 ** min(failures - 1, 64)) if failures > 0 else 0.0


@dataclass(slots=True)
class Backoff:
    """Counts failures in a row. ``first_s``, ``longest_s``: seconds of the first pause, and of any at most."""

    first_s: float
    longest_s: float
    failures: int = 0

    def fail(self) -> float:
        """Count a failure; return the pause in seconds before the next attempt."""
        self.failures += 1
        return exponential(self.failures, self.first_s, self.longest_s)

    def reset(self) -> None:
        """Count from none again: an attempt has succeeded."""
        self.failures = 0
