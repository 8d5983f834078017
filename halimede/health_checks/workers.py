"""The checks of running workers: that they report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from halimede.health_checks.check import Check, CheckRule, ok
from halimede.health_checks.facts import SystemFacts
from halimede.health_checks.nodes import shorten
from halimede.health_checks.resource_fields import dig, time_of

#: seconds that a report may be old: a service's status is written from time to time
REPORT_S = 60.0
SILENT = CheckRule(
    "reports",
    "warning",
    "the last report of a running worker in its service's status is older than 60 s",
    "its counts are old; it hangs, or has no connection",
    "see `halimede logs NAME`: they hang or have no connection; LC restarts a worker that ends",
)


def examine_reports(facts: SystemFacts) -> Iterator[Check]:
    """Check the age of the last reports of running workers."""
    silent = {
        f"{dig(body, 'metadata', 'name')} on {node.get('node')} for {age_s:.0f} s"
        for body, node, age_s in report_ages(facts)
        if age_s > REPORT_S and node.get("online") and node.get("phase") == "Running"
    }
    if silent:
        yield SILENT.row(f"no report: {shorten(sorted(silent))}")
    else:
        yield ok(SILENT.name, f"every running worker has reported within {REPORT_S:g} s")


def report_ages(facts: SystemFacts) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], float]]:
    """Yield service, node and age in seconds of each node's last report."""
    for body in facts.services():
        for node in dig(body, "status", "nodes") or []:
            reported = time_of(dig(node, "taskInfo", "currentTime"))
            if reported is not None:
                yield body, node, (facts.now - reported).total_seconds()
