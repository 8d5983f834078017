"""The list of all checks, in the order of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from halimede.health_checks import cameras, clocks, manager, nodes, resources, workers
from halimede.health_checks.check import Check, CheckRule
from halimede.health_checks.facts import SystemFacts

#: a check: returns its rows
Examine = Callable[[SystemFacts], Iterator[Check]]
#: each check with the rules that its rows may have, for the list in docs/reference/checks.md
CHECKS: tuple[tuple[Examine, tuple[CheckRule, ...]], ...] = (
    (
        manager.examine_manager,
        (manager.SEVERAL_MANAGERS, manager.OTHER_VERSION, *manager.READINESS_RULES, manager.STORE_QUARANTINED),
    ),
    (clocks.examine_clock, (clocks.NO_TIME, clocks.OFF, clocks.DAYS_OFF, clocks.DAYS_OFF_TLS)),
    (resources.examine_resources, (*resources.FAILED.values(), *resources.UNFINISHED.values())),
    (resources.examine_conditions, (*resources.CONDITIONS.values(), *dict.fromkeys(resources.REASONS.values()))),
    (resources.examine_classes, (resources.CLASSES,)),
    (workers.examine_answers, (workers.DEGRADED, workers.MOSTLY_DEGRADED)),
    (
        nodes.examine_nodes,
        (nodes.NONE, nodes.UNREACHED, nodes.OFFLINE, nodes.OTHER_VERSION, nodes.TROUBLE, nodes.REFUSED, nodes.LOST),
    ),
    (cameras.examine_cameras, (cameras.FAILED, cameras.SILENT)),
    (clocks.examine_node_clocks, (clocks.NODE_OFF, clocks.NODE_DAYS_OFF, clocks.NODE_DAYS_OFF_TLS)),
    (workers.examine_reports, (workers.OVERDUE, workers.SILENT)),
    (manager.examine_dead_letters, (manager.DEAD_LETTERS,)),
)


def examine(facts: SystemFacts) -> Iterator[Check]:
    """Yield the rows of all checks."""
    for function, _ in CHECKS:
        yield from function(facts)
