"""``halimede doctor``: checks of this machine, the broker and the system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: what was found, and what to do if it is not well."""

    name: str
    level: Level
    found: str
    do: str = ""


def ok(name: str, found: str) -> Check:
    """All is well."""
    return Check(name, "ok", found)


def warning(name: str, found: str, do: str) -> Check:
    """It works, but not as well or as safely as it should."""
    return Check(name, "warning", found, do)


def problem(name: str, found: str, do: str) -> Check:
    """It does not work."""
    return Check(name, "problem", found, do)


def worst(checks: Sequence[Check]) -> Level:
    """Return the worst level of several checks."""
    levels = {check.level for check in checks}
    return "problem" if "problem" in levels else "warning" if "warning" in levels else "ok"
