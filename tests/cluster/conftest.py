"""Fixtures of the operator's suite. It runs only through ``make test-cluster``: it installs halimede in a real cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.installation import Installation
from tests.cluster.kubectl import Kubectl
from tests.cluster.power import Power
from tests.cluster.report import Report
from tests.cluster.settings import BUILD

RUNS = os.environ.get("HALIMEDE_TEST_CLUSTER") == "1"
# not even collected otherwise
collect_ignore_glob = [] if RUNS else ["test_*.py"]
_report = Report(BUILD / "report.json")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    if RUNS:
        terminalreporter.section("cluster")
        terminalreporter.write_line(_report.table())
        terminalreporter.write_line(f"written to {_report.path}")


@pytest.fixture(scope="session")
def report() -> Report:
    """What the run found."""
    return _report


@pytest.fixture(scope="session")
def kubectl() -> Kubectl:
    """The cluster's administrator."""
    return Kubectl()


@pytest.fixture(scope="session")
def power() -> Power:
    """What can be done to nodes: to those of our own cluster alone."""
    return Power.here()


@pytest.fixture(scope="session")
def installation(kubectl: Kubectl, report: Report, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Halimede with the README's example, installed as the documents say, and running."""
    installed = Installation(kubectl, tmp_path_factory.mktemp("operator"))
    installed.remove()
    installed.install()
    report.first_answer_s = installed.first_answer_s
    yield installed
