"""``halimede doctor``: checks of this machine, the broker and the system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check, and the remedy if there is a problem."""

    name: str
    level: Level
    found: str
    do: str = ""


def ok(name: str, found: str) -> Check:
    """Return a check without a problem."""
    return Check(name, "ok", found)


def warning(name: str, found: str, do: str) -> Check:
    """Return a check of something that works, but not well or not safely."""
    return Check(name, "warning", found, do)


def problem(name: str, found: str, do: str) -> Check:
    """Return a check of something that does not work."""
    return Check(name, "problem", found, do)


def worst(checks: Sequence[Check]) -> Level:
    """Return the worst level of several checks."""
    levels = {check.level for check in checks}
    return "problem" if "problem" in levels else "warning" if "warning" in levels else "ok"
