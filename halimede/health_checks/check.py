"""``CheckRule``, one possible result of a check, and ``Check``, the row that a rule gives for one thing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

#: how bad a row is: ``fact`` is worth knowing, ``warning`` works but not well, ``problem`` does not work
Level = Literal["ok", "fact", "warning", "problem"]
#: levels from the best to the worst
LEVELS: tuple[Level, ...] = ("ok", "fact", "warning", "problem")


@dataclass(frozen=True, slots=True)
class Check:
    """One row: what a check has observed about one thing, and what to do about it.

    Attributes:
        name: the name of the check; several rules may have one name.
        level: how bad it is.
        what: the observation, without the thing.
        do: what to do about it; empty: nothing.
        about: the thing, as ``<kind>/<name>``; empty: the whole system.
        since: when it began, an ISO time; empty: unknown.
        follows: what follows from it for users; empty: nothing.
        fails: ``halimede status`` ends with exit code 1.

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
        """The observation with the thing that it is about, as one text."""
        return f"{self.about}: {self.what}" if self.about else self.what

    def fields(self) -> dict[str, Any]:
        """Return the row as plain data for ``doctor -o json``, ``status -o json`` and GM's page."""
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
    """One possible result of a check that is not ok. docs/reference/checks.md lists all rules.

    Attributes:
        name: the name of the check.
        level: the level of its rows.
        observes: when the rule has a row, in general words.
        follows: what follows from it for users.
        mends: what to do about it; it may have fields in braces, for which ``row`` gets values.
        fails: ``halimede status`` ends with exit code 1.

    """

    name: str
    level: Level
    observes: str
    follows: str
    mends: str
    fails: bool = False

    def row(self, what: str, about: str = "", since: str = "", remedy: str = "", **fields: str) -> Check:
        """Return the row about one thing: ``what``, ``about`` and ``since`` are those of ``Check``.

        ``fields`` are the values for ``mends``; ``remedy``, unless empty, replaces ``mends``.
        """
        remedy = remedy or self.mends.format(**fields)
        return Check(self.name, self.level, what, remedy, about, since, self.follows, self.fails)


def ok(name: str, what: str) -> Check:
    """Return a row without a problem."""
    return Check(name, "ok", what)


def warning(name: str, what: str, do: str) -> Check:
    """Return a row of something that works, but not well or not safely. ``status`` does not fail for it."""
    return Check(name, "warning", what, do)


def problem(name: str, what: str, do: str) -> Check:
    """Return a row of something that does not work: ``status`` fails for it."""
    return Check(name, "problem", what, do, fails=True)


def worst(checks: Iterable[Check]) -> Level:
    """Return the worst level of several rows; ``ok`` without rows."""
    return max((check.level for check in checks), key=LEVELS.index, default="ok")
