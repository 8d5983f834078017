"""Runs each fault and attack row several times and says how each row did: ``pytest -p tests.repeat --repeat 10``.

A row is a line of the list of faults and attacks that the system survives; a test belongs to the row in its name
(``test_fault_17_...``). A row that was skipped has shown nothing, so it fails the run as a failed one does. The table
goes to the terminal and, as JSON, to ``build/faults.json``.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROW = re.compile(r"(?<=::)test_(fault|attack)_(\d\d)_\w+")
#: those that only wait come first: the others fill the time beside them
FIRST = ("test_fault_02_",)
FILE = Path("build") / "faults.json"
OUTCOMES = ("passed", "failed", "skipped")


@dataclass
class Row:
    """What became of the tests of one row: by function, how often its cases ended how."""

    tests: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def total(self, outcome: str) -> int:
        return sum(counts[outcome] for counts in self.tests.values())


def row_of(node_id: str) -> tuple[tuple[str, int], str] | None:
    """Return the row of a test and its function's name, None if it belongs to none."""
    match = ROW.search(node_id.split("[", 1)[0])
    return ((match[1], int(match[2])), match[0]) if match else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--repeat", type=int, default=1, metavar="N", help="run each test that many times")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Table(config.rootpath, config.getoption("--repeat")), "rows")


@pytest.fixture
def repetition() -> None:
    """Carries the number of the repetition in a test's id."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    count = metafunc.config.getoption("--repeat")
    if count > 1:
        metafunc.fixturenames.append("repetition")
        metafunc.parametrize("repetition", range(count), ids=[f"repeat{i}" for i in range(count)], indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.name.startswith(FIRST))


class Table:
    """Collects how tests end, in the process that reports."""

    def __init__(self, root: Path, repeat: int) -> None:
        self.rows: dict[tuple[str, int], Row] = defaultdict(Row)
        self.others: Counter[str] = Counter()
        self._root, self._repeat = root, repeat

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # set-up and tear-down only count where they fail or skip
        if report.when != "call" and report.passed:
            return
        found = row_of(report.nodeid)
        if found is None:
            self.others[report.outcome] += 1
        else:
            row, name = found
            self.rows[row].tests[name][report.outcome] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self.others[report.outcome] += 1

    def listed(self) -> list[tuple[str, Row]]:
        """Return the rows by their names: those of faults first."""
        ordered = sorted(self.rows.items(), key=lambda item: (item[0][0] != "fault", item[0]))
        return [(f"{kind} {number:02}", row) for (kind, number), row in ordered]

    @property
    def bad(self) -> int:
        rows = sum(row.total(outcome) for row in self.rows.values() for outcome in ("failed", "skipped"))
        return rows + self.others["failed"] + self.others["skipped"]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.bad or not self.rows:
            session.exitstatus = max(int(session.exitstatus), 1)
        path = self._root / FILE
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(self._document(), indent=2) + "\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        say = terminalreporter.write_line
        terminalreporter.section(f"rows, each test {self._repeat} times")
        say(f"{'row':<11}{'passed':>7}{'failed':>7}{'skipped':>8}  tests")
        for row_name, row in self.listed():
            counts = [row.total(outcome) for outcome in OUTCOMES]
            first, *more = [_described(name, counted) for name, counted in sorted(row.tests.items())]
            bad = {"red": True} if counts[1] or counts[2] else {}
            say(row_name.ljust(11) + f"{counts[0]:>7}{counts[1]:>7}{counts[2]:>8}  {first}", **bad)
            for line in more:
                say(" " * 35 + line, **bad)
        if self.others:
            say(f"others: {dict(self.others)}")
        say(f"{len(self.rows)} rows, {self.bad} tests failed or skipped; the table is in {FILE}")

    def _document(self) -> dict[str, object]:
        rows = [
            {
                "row": row_name,
                **{outcome: row.total(outcome) for outcome in OUTCOMES},
                "tests": {name: {o: counted[o] for o in OUTCOMES} for name, counted in sorted(row.tests.items())},
            }
            for row_name, row in self.listed()
        ]
        return {"repeat": self._repeat, "bad": self.bad, "rows": rows}


def _described(name: str, counted: Counter[str]) -> str:
    wrong = ", ".join(f"{counted[o]} {o}" for o in OUTCOMES[1:] if counted[o])
    return f"{name} ({wrong})" if wrong else name
