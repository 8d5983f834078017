"""The list of all checks, in the order of their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from halimede.health_checks import cameras, clocks, manager, nodes, resources, workers
from halimede.health_checks.check import Check, CheckRule
from halimede.health_checks.facts import SystemFacts

Examine = Callable[[SystemFacts], Iterator[Check]]
#: each function with the rules of its rows
CHECKS: tuple[tuple[Examine, tuple[CheckRule, ...]], ...] = (
    (
        manager.examine_manager,
        (manager.SEVERAL, manager.OTHER_VERSION, manager.BROKER, manager.REFUSED, manager.STORE, manager.QUARANTINED),
    ),
    (clocks.examine_clock, (clocks.NO_TIME, clocks.OFF, clocks.DAYS_OFF, clocks.DAYS_OFF_TLS)),
    (resources.examine_resources, (*resources.FAILED, *resources.UNFINISHED)),
    (resources.examine_conditions, (*resources.CONDITIONS.values(), *dict.fromkeys(resources.NOTED.values()))),
    (resources.examine_classes, (resources.CLASSES,)),
    (workers.examine_answers, (workers.DEGRADED, workers.MOSTLY_DEGRADED)),
    (
        nodes.examine_nodes,
        (nodes.NONE, nodes.UNREACHED, nodes.OFFLINE, nodes.OTHER_VERSION, nodes.TROUBLE, nodes.REFUSED, nodes.LOST),
    ),
    (cameras.examine_cameras, (cameras.FAILED, cameras.SILENT)),
    (clocks.examine_node_clocks, (clocks.NODE_OFF, clocks.NODE_DAYS_OFF, clocks.NODE_DAYS_OFF_TLS)),
    (workers.examine_reports, (workers.OVERDUE, workers.SILENT)),
    (manager.examine_dead_letters, (manager.LETTERS,)),
)


def examine(facts: SystemFacts) -> Iterator[Check]:
    """Yield the rows of all checks."""
    for function, _ in CHECKS:
        yield from function(facts)
