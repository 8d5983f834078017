"""The checks of clocks: GM's against this machine's, and those of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from halimede.health_checks.check import Check, CheckRule, ok
from halimede.health_checks.facts import SystemFacts
from halimede.health_checks.nodes import shorten
from halimede.health_checks.workers import report_ages

#: seconds that clocks may differ
CLOCK_S = 2.0
OWN, NODES = "clock", "node clocks"
NO_TIME = CheckRule(
    OWN,
    "warning",
    "GM does not send its time",
    "nobody compares the clocks",
    "install the same version on both",
)
OFF = CheckRule(
    OWN,
    "warning",
    "GM's clock and that of the command's machine differ by more than 2 s",
    "times in logs and events cannot be compared",
    "synchronize the clocks with NTP: certificates, logs and events depend on them",
)
NODE_OFF = CheckRule(
    NODES,
    "warning",
    "the clock of a node is more than 2 s ahead",
    "times in logs, events and results cannot be compared",
    "synchronize the clocks with NTP",
)


def examine_clock(facts: SystemFacts) -> Iterator[Check]:
    """Compare GM's clock with this machine's; the tolerance includes half of the request's duration."""
    if facts.clock is None:
        return
    half_s = facts.clock.took_s / 2
    try:
        offset_s = (datetime.fromisoformat(facts.manager.time) - facts.clock.began).total_seconds() - half_s
    except (ValueError, TypeError):
        yield NO_TIME.row("the global manager does not send its time")
        return
    if abs(offset_s) > CLOCK_S + half_s:
        side = "ahead of" if offset_s > 0 else "behind"
        yield OFF.row(f"the global manager's clock is {abs(offset_s):.1f} s {side} this machine's")
    else:
        yield ok(OWN, f"the global manager's and this machine's agree within {abs(offset_s) + half_s:.2f} s")


def examine_node_clocks(facts: SystemFacts) -> Iterator[Check]:
    """Compare the times of workers' last reports with this clock: only a time in the future proves a wrong clock."""
    ahead = {f"{node.get('node')} (+{-age_s:.0f} s)" for _, node, age_s in report_ages(facts) if age_s < -CLOCK_S}
    if ahead:
        yield NODE_OFF.row(f"ahead of this clock: {shorten(sorted(ahead))}")
    else:
        yield ok(NODES, "no worker's time is ahead of this machine's")
