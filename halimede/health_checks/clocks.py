"""The checks of clocks: GM's against this machine's, and those of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from halimede.health_checks.check import Check, CheckRule, Level, ok
from halimede.health_checks.facts import SystemFacts
from halimede.health_checks.nodes import shorten
from halimede.health_checks.workers import report_ages

#: seconds that clocks may differ
CLOCK_S = 2.0
#: seconds from which a clock can put a certificate out of its time
DAY_S = 86_400.0
OWN, NODES = "clock", "node clocks"
LEVELS_OF_DAYS: tuple[tuple[Level, str], ...] = (("warning", "without"), ("problem", "with"))
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
    "the clock of a node is more than 2 s ahead, or more than 60 s behind",
    "times in logs, events and results cannot be compared",
    "synchronize the clocks with NTP",
)
CERTIFICATES = "certificates count as expired or as not valid yet; times in logs, events and results are wrong"
SYNCHRONIZE = "set the clock, and synchronize it with NTP: `timedatectl set-ntp true`"
#: of a clock that is days off: without TLS, and with it
DAYS_OFF, DAYS_OFF_TLS = (
    CheckRule(
        OWN,
        level,
        f"GM's clock and that of the command's machine differ by a day or more, {tls} TLS",
        CERTIFICATES,
        SYNCHRONIZE,
        fails=level == "problem",
    )
    for level, tls in LEVELS_OF_DAYS
)
NODE_DAYS_OFF, NODE_DAYS_OFF_TLS = (
    CheckRule(
        NODES,
        level,
        f"a node's clock and GM's differ by a day or more, {tls} TLS",
        CERTIFICATES,
        SYNCHRONIZE,
        fails=level == "problem",
    )
    for level, tls in LEVELS_OF_DAYS
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
        days_off = DAYS_OFF_TLS if facts.tls else DAYS_OFF
        rule = days_off if abs(offset_s) >= DAY_S else OFF
        side = "ahead of" if offset_s > 0 else "behind"
        yield rule.row(f"the global manager's clock is {_duration(offset_s)} {side} this machine's")
    else:
        yield ok(OWN, f"the global manager's and this machine's agree within {abs(offset_s) + half_s:.2f} s")


def examine_node_clocks(facts: SystemFacts) -> Iterator[Check]:
    """Compare the clocks of nodes: as GM has observed them, and by the times of workers' last reports.

    Of these only a time in the future proves a wrong clock: an old one is that of an old report.
    """
    clocks = facts.manager.clocks
    days_off = NODE_DAYS_OFF_TLS if facts.tls else NODE_DAYS_OFF
    for node, offset_s in sorted(clocks.items()):
        side = "ahead of" if offset_s > 0 else "behind"
        rule = days_off if abs(offset_s) >= DAY_S else NODE_OFF
        yield rule.row(f"its clock is {_duration(offset_s)} {side} the global manager's", f"node/{node}")
    ahead = {
        f"{node.get('node')} (+{-age_s:.0f} s)"
        for _, node, age_s in report_ages(facts)
        if age_s < -CLOCK_S and node.get("node") not in clocks
    }
    if ahead:
        yield NODE_OFF.row(f"ahead of this clock: {shorten(sorted(ahead))}")
    elif not clocks:
        yield ok(NODES, "no worker's time is ahead of this machine's")


def _duration(seconds: float) -> str:
    """Return seconds, or days if they are more than one."""
    return f"{abs(seconds) / DAY_S:.1f} days" if abs(seconds) >= DAY_S else f"{abs(seconds):.1f} s"
