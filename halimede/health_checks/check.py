"""The rule of a check, and the row that a rule gives for one thing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["ok", "fact", "warning", "problem"]
#: levels from the best to the worst
LEVELS: tuple[Level, ...] = ("ok", "fact", "warning", "problem")


@dataclass(frozen=True, slots=True)
class Check:
    """One row: what a check has observed about one thing, and what to do about it.

    ``about`` names the thing, ``since`` is an ISO time or empty. ``fails``: ``halimede status`` ends with 1.
    """

    name: str
    level: Level
    what: str
    do: str = ""
    about: str = ""
    since: str = ""
    follows: str = ""
    fails: bool = False

    @property
    def found(self) -> str:
        """The observation with the thing that it is about."""
        return f"{self.about}: {self.what}" if self.about else self.what

    def fields(self) -> dict[str, Any]:
        """Return the row as plain data: ``doctor -o json``, ``status -o json``, GM's page."""
        return {
            "name": self.name,
            "level": self.level,
            "found": self.found,
            "do": self.do,
            "about": self.about,
            "since": self.since,
            "follows": self.follows,
            "fails": self.fails,
        }


@dataclass(frozen=True, slots=True)
class CheckRule:
    """One result of a check that is not ok. ``mends`` may have fields in braces, for which ``row`` has values.

    ``fails``: ``halimede status`` ends with 1.
    """

    name: str
    level: Level
    observes: str
    follows: str
    mends: str
    fails: bool = False

    def row(self, what: str, about: str = "", since: str = "", remedy: str = "", **fields: str) -> Check:
        """Return the row about one thing. ``remedy`` replaces the one of the rule where that depends on the thing."""
        remedy = remedy or self.mends.format(**fields)
        return Check(self.name, self.level, what, remedy, about, since, self.follows, self.fails)


def ok(name: str, what: str) -> Check:
    """Return a row without a problem."""
    return Check(name, "ok", what)


def warning(name: str, what: str, do: str) -> Check:
    """Return a row of something that works, but not well or not safely."""
    return Check(name, "warning", what, do)


def problem(name: str, what: str, do: str) -> Check:
    """Return a row of something that does not work."""
    return Check(name, "problem", what, do, fails=True)


def worst(checks: Iterable[Check]) -> Level:
    """Return the worst level of several rows."""
    return max((check.level for check in checks), key=LEVELS.index, default="ok")
