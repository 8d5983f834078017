"""The checks of clocks: GM's clock against that of this machine, and the clocks of nodes against GM's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from halimede.health_checks.check import Check, CheckRule, Level, ok
from halimede.health_checks.facts import SystemFacts
from halimede.health_checks.nodes import shorten
from halimede.health_checks.workers import report_ages

#: seconds by which clocks may differ
CLOCK_S = 2.0
#: seconds of a difference at which a certificate may count as expired, or as not valid yet
DAY_S = 86_400.0
#: the names of both checks
OWN, NODES = "clock", "node clocks"
#: level of a clock that is days off, and whether the connection to the broker has TLS
LEVELS_OF_DAYS: tuple[tuple[Level, str], ...] = (("warning", "without"), ("problem", "with"))
# the rules of a clock: GM sends no time; GM's or a node's differs by some seconds
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
#: what follows from a clock that is days off, and what to do about it
CERTIFICATES = "certificates count as expired or as not valid yet; times in logs, events and results are wrong"
SYNCHRONIZE = "set the clock, and synchronize it with NTP: `timedatectl set-ntp true`"
#: the rules of a clock that is days off: of both checks, without TLS and with it
DAYS_OFF, DAYS_OFF_TLS, NODE_DAYS_OFF, NODE_DAYS_OFF_TLS = (
    CheckRule(
        name, level, f"{clocks} differ by a day or more, {tls} TLS", CERTIFICATES, SYNCHRONIZE, fails=level == "problem"
    )
    for name, clocks in ((OWN, "GM's clock and that of the command's machine"), (NODES, "a node's clock and GM's"))
    for level, tls in LEVELS_OF_DAYS
)


def examine_clock(facts: SystemFacts) -> Iterator[Check]:
    """Yield one row about GM's clock and this machine's; none if GM itself runs the checks.

    The clocks may differ by ``CLOCK_S`` and half of the time that GM's answer took.
    """
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
    """Yield rows about the clocks of nodes: as GM has observed them, and by the times of workers' last reports.

    A report from the future proves that the node's clock is ahead. An old report proves nothing.
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
    """Return a difference as text, without its sign: in days from one day on, else in seconds."""
    return f"{abs(seconds) / DAY_S:.1f} days" if abs(seconds) >= DAY_S else f"{abs(seconds):.1f} s"
