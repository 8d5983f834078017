"""Fixtures of the operator's suite. It runs only through ``make test-cluster``: it installs into a real cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tests.cluster.installation import Installation
from tests.cluster.kubectl import Kubectl
from tests.cluster.power import Power
from tests.cluster.report import Report
from tests.cluster.settings import BUILD
from tests.cluster.traffic import Load

RUNS = os.environ.get("HALIMEDE_TEST_CLUSTER") == "1"
# not even collected otherwise
collect_ignore_glob = [] if RUNS else ["test_*.py"]
_report = Report(BUILD / "report.json")
#: characters of a failure that are in the report
REASON = 500


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    if RUNS:
        terminalreporter.section("cluster")
        terminalreporter.write_line(_report.table())
        terminalreporter.write_line(f"written to {_report.path}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what failed or was skipped, by the scenario's name if one had begun."""
    if not RUNS or report.passed:
        return
    name = str(dict(report.user_properties).get("scenario") or report.nodeid.rpartition("::")[2])
    if report.skipped:
        _report.skipped[name] = str(report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr)
    else:
        crash = getattr(report.longrepr, "reprcrash", None)
        _report.failed[name] = str(crash.message if crash else report.longreprtext)[:REASON]
    _report.write()


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
def installation(kubectl: Kubectl, report: Report, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Halimede with the README's example, installed as the documents say, and running."""
    installed = Installation(kubectl, tmp_path_factory.mktemp("operator"))
    installed.remove()
    installed.install()
    report.first_answer_s = installed.first_answer_s
    return installed


Scenario = Callable[..., AbstractContextManager[Load]]
#: frames that are answered before and after what a scenario does
AROUND = 50


@pytest.fixture
def scenario(request: pytest.FixtureRequest, report: Report) -> Scenario:
    """Frames at 25 a second around what the block does; then their outcome is in the report, and none is missing.

    Frames are answered before the block; after it they have to be answered again within ``recovery_s``. ``load``: by
    default the installation's, from a pod.
    """

    @contextmanager
    def run(name: str, *, recovery_s: float = 120.0, load: Load | None = None) -> Iterator[Load]:
        # if it fails, the report names it
        request.node.user_properties.append(("scenario", name))
        with load or request.getfixturevalue("installation").load() as running:
            running.wait_answered(AROUND)
            yield running
            running.wait_answered(AROUND, recovery_s)
        assert running.outcome
        report.add(name, running.outcome, running.raw)
        assert running.outcome.lost_unnamed == 0, f"accepted and never answered: {running.raw}"

    return run
