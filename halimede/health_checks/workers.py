"""The checks of running workers: they report, and the cloud answers the hard samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from halimede.health_checks.check import Check, CheckRule, ok
from halimede.health_checks.facts import SystemFacts
from halimede.health_checks.nodes import shorten
from halimede.health_checks.resource_fields import dig, time_of

#: seconds that a report may be old: a service's status is written from time to time
REPORT_S = 60.0
#: shares of degraded answers, and the least answers that are judged: a share of a few answers proves nothing
DEGRADED_WARNING, DEGRADED_PROBLEM, LEAST_ANSWERS = 0.1, 0.5, 10
#: the names of both checks
REPORTS, ANSWERS = "reports", "answers"
# the rules of reports and of answers: each one's text says when it has a row
OVERDUE = CheckRule(
    REPORTS,
    "fact",
    "a running worker has not reported for 5 s, and for 1.5 of its report periods",
    "perhaps nothing: it is `WorkerSilent` after 10 s, and a worker that hangs is restarted",
    "wait some seconds, then run `halimede status` again",
)
SILENT = CheckRule(
    REPORTS,
    "warning",
    "the last report of a running worker in its service's status is older than 60 s",
    "its counts are old; it hangs, or has no connection",
    "see `halimede logs NAME`: they hang or have no connection; LC restarts a worker that ends",
)
DEGRADED = CheckRule(
    ANSWERS,
    "warning",
    "over 10 % of a service's answers of the last minute, of 10 at least, are degraded",
    "the edge answers hard samples that the cloud should answer: the accuracy is that of the small model there",
    "`halimede describe {kind} {name} -n {namespace}` has the reasons; see docs/troubleshooting.md",
)
MOSTLY_DEGRADED = CheckRule(
    ANSWERS,
    "problem",
    "over 50 % of a service's answers of the last minute, of 10 at least, are degraded",
    "the edge answers hard samples that the cloud should answer: the accuracy is that of the small model there",
    "check the cloud worker and its link (`halimede top`, `halimede doctor`), or lower the upload budget",
    fails=True,
)


def examine_reports(facts: SystemFacts) -> Iterator[Check]:
    """Yield rows about workers without reports, by what nodes report and by the services' statuses; else an ok row."""
    for worker in facts.manager.quiet:
        since = time_of(worker.since)
        age = f" for {(facts.now - since).total_seconds():.0f} s" if since else ""
        yield OVERDUE.row(f"no report{age} on node {worker.node}", f"worker/{worker.name}", worker.since)
    silent = {
        f"{dig(body, 'metadata', 'name')} on {node.get('node')} for {age_s:.0f} s"
        for body, node, age_s in report_ages(facts)
        if age_s > REPORT_S and node.get("online") and node.get("phase") == "Running"
    }
    if silent:
        yield SILENT.row(f"no report: {shorten(sorted(silent))}")
    elif not facts.manager.quiet:
        yield ok(REPORTS, f"every running worker has reported within {REPORT_S:g} s")


def examine_answers(facts: SystemFacts) -> Iterator[Check]:
    """Yield a row for each service with too large a share of degraded answers in the last minute, else an ok row."""
    healthy = True
    for service in facts.manager.degraded:
        share = service.degraded / max(service.answered, 1)
        if service.answered < LEAST_ANSWERS or share <= DEGRADED_WARNING:
            continue
        healthy = False
        rule = MOSTLY_DEGRADED if share > DEGRADED_PROBLEM else DEGRADED
        what = f"{share:.0%} of its answers of the last minute are degraded ({service.degraded} of {service.answered})"
        yield rule.row(
            what, f"{service.kind}/{service.name}", kind=service.kind, name=service.name, namespace=service.namespace
        )
    if healthy:
        yield ok(ANSWERS, f"no service has over {DEGRADED_WARNING:.0%} degraded answers in the last minute")


def report_ages(facts: SystemFacts) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], float]]:
    """Yield the body of the service, the node's entry in its status, and the age of the node's last report in seconds.

    The age is corrected by what GM knows of the node's clock. A negative age: the report is from the future.
    """
    for body in facts.services():
        for node in dig(body, "status", "nodes") or []:
            reported = time_of(dig(node, "taskInfo", "currentTime"))
            if reported is not None:
                ahead_s = facts.manager.clocks.get(str(node.get("node")), 0.0)
                yield body, node, (facts.now - reported).total_seconds() + ahead_s
