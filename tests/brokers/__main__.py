"""``make test-brokers``: try each MQTT broker that this machine has; end with a table, and with 1 if one fails.

Mosquitto of the PATH is always tried; ``BROKERS=folder`` adds others (docs/brokers.md). On each: the contract of the
bus, what `halimede doctor` finds, the access matrix, its limits, then the whole system at 25 frames a second with a
site of its own: without a fault, with a killed worker, with the broker killed, with a broker that starts last, and with
a second one that takes over. A broker for which halimede writes no access rules has the first two only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as Xml
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from halimede.errors import HalimedeError
from services.site import Security
from tests.brokers import report, scenarios
from tests.brokers.installation import UNDER_TEST, Installation, installations
from tests.brokers.probes import examine, try_limits
from tests.brokers.report import BrokerReport, SuiteCount

#: what runs on the broker under test, by the name in the table
RIGHTS = "access matrix"
SUITES = {"contract of the bus": ("tests/contract",), RIGHTS: ("tests/integration/test_access_matrix.py",)}
#: of scenarios after which a broker needs time to be judged: how often each runs
REPEAT = 5
#: seconds of one suite, and of one run of a scenario
SUITE_S, RUN_S = 1800.0, 600.0


def main() -> int:
    """Return the exit code: 2 when a broker cannot be tried."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.brokers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--brokers", type=Path, default=os.environ.get("BROKERS") or None, metavar="FOLDER")
    parser.add_argument("--only", default="", metavar="NAME", help="brokers whose name has this text, such as emqx")
    parser.add_argument("--security", default="", help="passwords or tls; both by default")
    parser.add_argument("--repeat", type=int, default=REPEAT, metavar="N", help="kills and late starts (%(default)s)")
    parser.add_argument("--scenario", default="", metavar="TEXT", help="scenarios whose name has this text")
    parser.add_argument("--no-suites", action="store_true", help="leave out contract, access matrix and limits")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/brokers.md")
    options = parser.parse_args()
    try:
        chosen = installations(options.brokers, options.only)
    except HalimedeError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    reports = []
    for broker in chosen:
        reports.append(BrokerReport(broker))
        try_broker(reports[-1], options)
        path = report.write(reports)
    if options.write:
        report.write_page(reports)
    print(f"\n{report.tables(reports)}\n\nwritten to {path}")
    return 0 if all(each.is_good for each in reports) else 1


def try_broker(outcomes: BrokerReport, options: argparse.Namespace) -> None:
    """Run all that can be run on one broker; print each outcome as it is known."""
    broker = outcomes.installation
    if not options.no_suites:
        for name, paths in SUITES.items():
            if name == RIGHTS and not broker.security:
                continue
            outcomes.suites[name] = run_suite(broker, paths)
            print(f"{broker.name}: {name}: {outcomes.suites[name]}", flush=True)
        with tempfile.TemporaryDirectory(prefix="halimede-brokers-") as folder:
            outcomes.missing = asyncio.run(examine(broker, Path(folder) / "examined"))
            if broker.security:
                outcomes.limits = asyncio.run(try_limits(broker, Path(folder) / "limits"))
        print(f"{broker.name}: {outcomes.missing}, {outcomes.limits}", flush=True)
    for security in broker.security:
        if options.security in security.value:
            for name, run, times in plan(broker, security, options.repeat):
                if options.scenario not in name:
                    continue
                rows = outcomes.scenarios.setdefault((security.value, name), [])
                for _ in range(times):
                    rows.append(attempt(run))
                    print(f"{broker.name}, {security.value}: {name}: {json.dumps(rows[-1])}", flush=True)


Run = Callable[[Path], Coroutine[Any, Any, scenarios.Outcome]]


def plan(broker: Installation, security: Security, repeat: int) -> list[tuple[str, Run, int]]:
    """Return the scenarios in their order: name, what runs it in a folder, how often."""
    once = [(scenarios.name_of(s), partial(scenarios.run, s, broker, security)) for s in scenarios.SCENARIOS]
    replaced = partial(scenarios.run, scenarios.broker_replaced, broker, security, has_standby=True)
    return [
        *((name, run, repeat if name == "broker killed" else 1) for name, run in once),
        ("broker started last", partial(scenarios.cold_start, broker, security), repeat),
        (scenarios.name_of(scenarios.broker_replaced), replaced, repeat),
    ]


def attempt(run: Run) -> dict[str, Any]:
    """Run a scenario once in a new folder; return its outcome, or its error in a word."""
    with tempfile.TemporaryDirectory(prefix="halimede-brokers-", ignore_cleanup_errors=True) as folder:
        try:
            return asdict(asyncio.run(asyncio.wait_for(run(Path(folder) / "home"), RUN_S)))
        except (AssertionError, HalimedeError, TimeoutError) as error:
            return {"error": f"{type(error).__name__}: {error}"[:500]}


def run_suite(broker: Installation, paths: Sequence[str]) -> SuiteCount:
    """Run tests on a broker; return how they ended."""
    report.BUILD.mkdir(parents=True, exist_ok=True)
    results = report.BUILD / "suite.xml"
    results.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "tests.brokers.selection", "-p", "no:cacheprovider",
        f"--junit-xml={results}", *paths,
    ]  # fmt: skip
    log = report.BUILD / f"{broker.kind}-{broker.version}.log"
    with log.open("ab") as output:
        environment = {**os.environ, UNDER_TEST: json.dumps(asdict(broker))}
        subprocess.run(
            command, cwd=report.ROOT, env=environment, stdout=output, stderr=output, check=False, timeout=SUITE_S
        )
    if not results.exists():
        return SuiteCount(0, 1, 0, (f"pytest did not end well, see {log}",))
    cases = list(Xml.parse(results).iter("testcase"))
    failed = [case.get("name", "") for case in cases if {"failure", "error"} & {outcome.tag for outcome in case}]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return SuiteCount(len(cases) - len(failed) - skipped, len(failed), skipped, tuple(failed))


if __name__ == "__main__":
    sys.exit(main())
