"""Models go where a service needs them, and leave with the last one. Ready means: every such node has the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from halimede.api import Resource
from halimede.api.model import PLURAL
from halimede.messages import NodeSummary, Status
from services.gm.controllers.actions import Delivery, Send
from services.gm.controllers.base import Observed, forget, register
from services.gm.index import Entry
from services.gm.status import MAX_SHOWN_NODES, conclude
from services.gm.tally import Verdict
from services.gm.workloads.objects import Built


@register(PLURAL)
class ModelController:
    """The rules of models."""

    def entry(self, resource: Resource[Any]) -> Entry:
        """A model names nothing."""
        return Entry(resource)

    def deliver(self, desired: Resource[Any], observed: Observed) -> Iterator[Delivery]:
        """Send it to all nodes that need it."""
        for node in observed.placed:
            yield Send(node, desired)
        yield from forget(desired, observed)

    def build(self, desired: Resource[Any], observed: Observed) -> None:
        """It needs no pods."""

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:  # noqa: ARG002
        """Sum up the nodes that need it; pods fetch it themselves where there is no local controller."""
        generation = desired.metadata.generation
        summaries, verdicts = [], []
        uncontrolled = {node for node in observed.placed if observed.as_pods and not _controlled(node, observed)}
        for node in sorted(observed.placed.keys() - uncontrolled):
            summary, verdict = _on_node(node, generation, observed)
            summaries.append(summary)
            verdicts.append(verdict)
        ready = sum(v.phase == "Ready" for v in verdicts)
        failed = [v for v in verdicts if v.phase == "Failed"]
        waiting = [v for v in verdicts if v.phase == "Pending"]
        if not verdicts and uncontrolled:
            verdict = Verdict("Ready", "FetchedByPods", "no node that needs it has a local controller: pods fetch it")
        elif not verdicts:
            verdict = Verdict("Unused", "NotNeeded", "no service that runs on a known node names it")
        elif failed or waiting:
            verdict = (failed or waiting)[0]
        else:
            verdict = Verdict("Ready", "OnAllNodes", f"{ready} of {len(verdicts)} nodes have it")
        # those in trouble first, should the list be cut
        summaries.sort(key=lambda s: s.phase == "Ready")
        status = Status(active=ready, failed=len(failed), nodes=summaries[:MAX_SHOWN_NODES])
        return conclude(status, verdict, observed.status, generation, observed.now)


def _controlled(node: str, observed: Observed) -> bool:
    """Whether there is somebody on a node who could bring a model ahead of time."""
    known = observed.nodes.get(node)
    return known is not None and known.controlled


def _on_node(node: str, generation: int, observed: Observed) -> tuple[NodeSummary, Verdict]:
    report = observed.reports.get(node)
    online = observed.online(node)
    if report is None or not report.live or report.status.observed_generation < generation:
        reason = "Preparing" if online else "NodeOffline"
        message = f"node {node} " + ("has not reported on it yet" if online else "is offline")
        summary = NodeSummary(node=node, online=online, phase="Pending", reason=reason)
        return summary, Verdict("Pending", reason, message)
    told = report.status
    summary = NodeSummary(node=node, online=online, phase=told.phase, reason=told.reason, message=told.message)
    phase = {"Running": "Ready"}.get(told.phase, told.phase)
    message = f"node {node}: {told.message}" if told.message else f"node {node}"
    return summary, Verdict(phase, told.reason or told.phase, message)
