"""The checks of nodes: each node is online, has GM's version, and reports no problem of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from halimede.bus.port import refusal_text
from halimede.health_checks.check import Check, CheckRule, ok
from halimede.health_checks.facts import SystemFacts
from halimede.messages import NodeInfo

#: the name of the check
NAME = "nodes"
#: most names in one row
MOST_NAMES = 5
# the rules of nodes: each one's text says when it has a row
NONE = CheckRule(
    NAME,
    "problem",
    "no local controller has ever connected",
    "no worker can run",
    "start one: `halimede lc --node NAME`",
    fails=True,
)
UNREACHED = CheckRule(
    NAME,
    "warning",
    "Kubernetes does not reach a node",
    "its workers go on, and their frames are answered; changes do not arrive there",
    "see `kubectl describe node {node}`; its workers go on meanwhile, and frames are answered there",
    fails=True,
)
#: what to do about a node that does not come back: conditions name it as well
GONE_FOR_GOOD = "if it is gone for good: `halimede delete node {node}`"
OFFLINE = CheckRule(
    NAME,
    "warning",
    "a node is offline",
    "changes do not arrive there; its workers go on as long as its machine runs",
    "start its local controller; " + GONE_FOR_GOOD,
    fails=True,
)
OTHER_VERSION = CheckRule(
    NAME,
    "warning",
    "a node's version is not GM's",
    "one may not understand what the other has sent",
    "install the same version on both",
    fails=True,
)
TROUBLE = CheckRule(
    NAME,
    "warning",
    "a node reports trouble of its own: its store is full or was damaged",
    "it may forget what it holds if it ends now",
    "free space on its disk or check it, then remove the quarantined files: docs/operations.md",
    fails=True,
)
REFUSED = CheckRule(
    NAME,
    "problem",
    "the broker refuses a subscription or the birth of a local controller",
    "the node does not receive what it refuses: changes do not arrive there, or its workers' reports are missing",
    "grant it in the broker's access rules (docs/security.md), then restart its local controller",
    fails=True,
)
LOST = CheckRule(
    NAME,
    "warning",
    "a node holds resources that GM lost with its store",
    "they run on, but nobody can change them",
    "apply them again: `halimede apply -f FILE`; or remove them: `halimede delete KIND NAME`",
    fails=True,
)


def examine_nodes(facts: SystemFacts) -> Iterator[Check]:
    """Yield rows about nodes with a problem, else one row with the number of nodes online."""
    if not facts.nodes:
        yield NONE.row("no local controller has ever connected", "nodes")
        return
    rows = [row for node in facts.nodes for row in _examine_node(node, facts.manager.version)]
    yield from rows
    if not rows:
        drained = sorted(node.name for node in facts.nodes if node.drained)
        note = f", drained: {shorten(drained)}" if drained else ""
        yield ok(NAME, f"{sum(node.online for node in facts.nodes)} of {len(facts.nodes)} online{note}")


def _examine_node(node: NodeInfo, version: str) -> Iterator[Check]:
    """Yield the rows about one node; ``version`` is GM's, empty if unknown."""
    about = f"node/{node.name}"
    if not node.online and node.trouble:
        yield UNREACHED.row(node.trouble, about, node=node.name)
        return
    if not node.online:
        yield OFFLINE.row("it is offline", about, node=node.name)
    elif node.version and version and node.version != version:
        yield OTHER_VERSION.row(f"its version {node.version} is not the global manager's {version}", about)
    if node.trouble:
        yield TROUBLE.row(node.trouble, about)
    if node.refused:
        yield REFUSED.row(refusal_text(node.refused), about)
    if node.unknown:
        what = f"it holds resources that the global manager lost with its store: {', '.join(node.unknown)}"
        yield LOST.row(what, about)


def shorten(names: Sequence[str]) -> str:
    """Return the first names as one text, with the number of further names."""
    return ", ".join(names[:MOST_NAMES]) + (f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else "")
