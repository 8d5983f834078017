"""Datasets go to the node that has the data; without one, to the edge nodes of the services that name them.

What is in it is the node's to say: a Dataset is Ready once its node has counted it. One that names no node, and that
nothing needs, is only a name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from halimede.api import Resource
from halimede.api.dataset import PLURAL
from halimede.messages import DatasetFacts, Status
from services.gm.controllers.base import Controller, Delivery, Observed, register
from services.gm.controllers.model import controlled, on_node
from services.gm.reference_index import ReferenceEntry
from services.gm.service_status import MAX_SHOWN_NODES, conclude
from services.gm.worker_readiness import Readiness
from services.gm.workloads.deployments import Built


@register(PLURAL)
class DatasetController(Controller):
    """The rules of datasets."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:  # noqa: ARG002
        """It belongs to its node, whether a service needs it there or not."""
        return ReferenceEntry(resource, owner=resource.spec.node_name)

    def deliver(self, desired: Resource[Any], observed: Observed) -> Iterator[Delivery]:
        """Send it to the nodes that need it and have it."""
        placed = {node: roles for node, roles in observed.placed.items() if has(desired, node)}
        return super().deliver(desired, replace(observed, placed=placed))

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:  # noqa: ARG002
        """Say what its node has found; of several that have one each, what the first has."""
        generation, node_name = desired.metadata.generation, desired.spec.node_name
        nodes = sorted(node for node in observed.placed if has(desired, node))
        silent = [node for node in nodes if observed.as_pods and not controlled(node, observed)]
        stands = [on_node(node, generation, observed) for node in nodes if node not in silent]
        found = [facts for node in nodes if (facts := _facts(node, generation, observed))]
        verdicts = [verdict for _, verdict in stands]
        troubles = [v for phase in ("Failed", "Pending") for v in verdicts if v.phase == phase]
        if node_name and node_name not in observed.nodes and not silent:
            verdict = Readiness("Pending", "NodeNotFound", f"spec.nodeName: node {node_name} has never been seen")
        elif troubles:
            verdict = troubles[0]
        elif verdicts:
            reason = "Counted" if found else verdicts[0].reason
            verdict = Readiness("Ready", reason, verdicts[0].message)
        elif silent:
            verdict = Readiness("Ready", "NotCounted", f"node {silent[0]} has no local controller that could count it")
        else:
            verdict = Readiness("Ready", "Exists", "nobody counts it: spec.nodeName says which node has the data")
        summaries = sorted((summary for summary, _ in stands), key=lambda each: each.phase == "Ready")
        status = Status(
            active=sum(v.phase == "Ready" for v in verdicts),
            failed=sum(v.phase == "Failed" for v in verdicts),
            nodes=summaries[:MAX_SHOWN_NODES],
        )
        known = found[0] if found else _before(observed, generation) if verdict.phase == "Pending" else None
        if known is not None:
            status = msgspec.structs.replace(
                status, dataset=known, number_of_samples=known.number_of_samples, update_time=known.counted_at
            )
        return conclude(status, verdict, observed.status, generation, observed.now)


def _facts(node: str, generation: int, observed: Observed) -> DatasetFacts | None:
    """Return what a node has counted of this generation."""
    report = observed.reports.get(node)
    if report is None or not report.live or report.status.observed_generation < generation:
        return None
    return report.status.dataset


def _before(observed: Observed, generation: int) -> DatasetFacts | None:
    """Return what was known: it stands until it has been counted again."""
    before = observed.status
    return before.dataset if before and before.observed_generation >= generation else None


def has(dataset: Resource[Any], node: str) -> bool:
    """Whether the data is on this node, as far as the resource says."""
    return dataset.spec.node_name in {"", node}
