"""What was tried on each broker: ``build/brokers/report.json``, and the tables of ``docs/brokers.md``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import results
from tests.brokers.installation import Installation
from tests.brokers.probes import FLOOD, RETAINED, Limits

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "brokers"
PAGE = ROOT / "docs" / "brokers.md"
BEGIN, END = "<!-- tables of make test-brokers -->", "<!-- end of the tables -->"
COUNTS = {"sent": "sent", "answered": "answered", "named": "lost_named", "unnamed": "lost_unnamed", "twice": "repeated"}
SECONDS = {"cloud again, s": "cloud_s", "status well, s": "well_s"}
#: failed tests that a cell of the table names
MOST_NAMED = 5
LIMITS_HEAD = (f"retained, of {RETAINED:,}", "after clearing", f"flood, of {FLOOD:,}", "session")
SCENARIO_HEAD = ("broker", "access", "scenario", "times", *COUNTS, *SECONDS)


@dataclass(frozen=True, slots=True)
class SuiteCount:
    """How many tests of a suite passed, failed and were skipped, and the names of those that failed."""

    passed: int
    failed: int
    skipped: int
    failures: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = f": {', '.join(self.failures)}" if self.failed <= MOST_NAMED else ""
        return f"{self.passed} passed" + (f", {self.failed} failed{names}" if self.failed else "")


@dataclass
class BrokerReport:
    """What one broker did: its suites, and the outcomes of its scenarios by security and name."""

    installation: Installation
    suites: dict[str, SuiteCount] = field(default_factory=dict)
    scenarios: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    limits: Limits | None = None
    #: what doctor finds to be missing; None: not tried
    missing: list[str] | None = None

    @property
    def is_good(self) -> bool:
        """Whether no test failed, no frame is unnamed, and all retained messages were stored and cleared.

        Of a broker that cannot serve a site, failed tests are what is to be shown.
        """
        if not self.installation.security:
            return True
        rows = [row for rows in self.scenarios.values() for row in rows]
        failed = any(count.failed for count in self.suites.values()) or any("error" in row for row in rows)
        keeps_state = not self.limits or self.limits == Limits(RETAINED, 0, self.limits.flooded, 1)
        return keeps_state and not failed and not any(row.get("lost_unnamed") for row in rows)

    def document(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        runs = [{"access": access, "scenario": name, "runs": rows} for (access, name), rows in self.scenarios.items()]
        return {
            "broker": self.installation.name,
            "origin": self.installation.origin,
            "suites": {name: str(count) for name, count in self.suites.items()},
            "missing": self.missing,
            "limits": asdict(self.limits) if self.limits else None,
            "scenarios": runs,
        }


def write(reports: Iterable[BrokerReport]) -> Path:
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / "report.json"
    path.write_text(json.dumps([report.document() for report in reports], indent=2) + "\n")
    return path


def write_page(reports: Iterable[BrokerReport]) -> None:
    """Put the tables into the page for users."""
    results.insert(PAGE, tables(list(reports)), BEGIN, END)


def tables(reports: list[BrokerReport]) -> str:
    """Return the tables in Markdown."""
    suites = list(dict.fromkeys(name for report in reports for name in report.suites))
    limits, scenarios, missing = [], [], []
    for report in reports:
        broker = report.installation
        cells = [str(report.suites.get(name, "not offered")) for name in suites]
        limits.append([broker.name, broker.origin, *cells, *_limits(report.limits)])
        scenarios += [[broker.name, *key, *_cells(rows)] for key, rows in report.scenarios.items()]
        if report.missing is not None:
            missing.append([broker.name, "; ".join(f"`{text}`" for text in report.missing) or "nothing"])
    return "\n\n".join(
        (
            _table(("broker", "origin", *suites, *LIMITS_HEAD), limits),
            _table(SCENARIO_HEAD, scenarios),
            _table(("broker", "what `halimede doctor` finds"), missing),
        )
    )


def _limits(limits: Limits | None) -> list[str]:
    if limits is None:
        return ["not tried"] * len(LIMITS_HEAD)
    session = "held" if limits.connections == 1 else f"ended {limits.connections - 1} times"
    return [f"{limits.retained:,}", str(limits.uncleared), f"{limits.flooded:,}", session]


def _cells(rows: list[dict[str, Any]]) -> list[str]:
    ended = [row for row in rows if "error" not in row]
    sums = [str(sum(row[key] for row in ended)) for key in COUNTS.values()]
    spans = [_span(sorted(row[key] for row in ended)) for key in SECONDS.values()]
    failed = len(rows) - len(ended)
    return [f"{len(rows)}, {failed} failed" if failed else str(len(rows)), *sums, *spans]


def _span(seconds: list[float]) -> str:
    return f"{seconds[0]:g} to {seconds[-1]:g}" if len(seconds) > 1 else "".join(f"{s:g}" for s in seconds)


def _table(head: Sequence[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
