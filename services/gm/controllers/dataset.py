"""The Datasets of nodes: counted by the nodes that have the data, and copied by others.

GM sends a Dataset to the nodes that it names, else to the edge nodes of services that name it. Nodes that copy the data
(``syncTo``) read in the status which files the node that has it has found.
"""

from __future__ import annotations

from typing import Any

import msgspec

from halimede.api import Resource
from halimede.api.dataset import PLURAL, is_copy
from halimede.messages import DatasetFacts, NodeSummary, Status
from halimede.messages.file_facts import NO_SAMPLES, SAMPLES_REPEATED
from services.gm.controllers.base import Controller, Observed, register
from services.gm.controllers.model import has_controller, owner_labels, state_on_node, unknown_owner
from services.gm.reference_index import ReferenceEntry
from services.gm.service_status import MAX_SHOWN_NODES, Readiness, conclude
from services.gm.workloads.deployments import Built

#: reasons of a node with which a Dataset is Ready: what was counted is probably not as its user means it
NOTED = (NO_SAMPLES, SAMPLES_REPEATED)
NodeVerdict = tuple[NodeSummary, Readiness]


@register(PLURAL)
class DatasetController(Controller):
    """The rules of datasets.

    A Dataset is Ready once its nodes have counted its content, or have found that its URL answers, and once all copies
    are complete. A Dataset that names no node, and that no service needs, is unused: no node has looked at it.
    """

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:  # noqa: ARG002
        """Return the dataset, which is always placed on its nodes, also when no service needs it there."""
        return ReferenceEntry(resource, owner=resource.spec.node_name, owner_labels=owner_labels(resource.spec))

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:  # noqa: ARG002
        """Return what its node has counted; if several nodes have such data, what the first one counted."""
        generation = desired.metadata.generation
        # nodes that copy it come last: their troubles may come from the node that has the data
        nodes = sorted(observed.placed, key=lambda node: (is_copy(desired.spec, node), node))
        silent = [node for node in nodes if observed.as_pods and not has_controller(node, observed)]
        states = [state_on_node(node, generation, observed) for node in nodes if node not in silent]
        sources = [node for node in nodes if not is_copy(desired.spec, node)]
        counts = [counted for node in sources if (counted := _node_facts(node, generation, observed))]
        trouble = unknown_owner(desired.spec, observed) if not silent else None
        verdict = trouble or _verdict(states, silent, counted=bool(counts), copies=len(nodes) - len(sources))
        summaries = sorted((summary for summary, _ in states), key=lambda node_summary: node_summary.phase == "Ready")
        status = Status(
            active=sum(v.phase == "Ready" for _, v in states),
            failed=sum(v.phase == "Failed" for _, v in states),
            nodes=summaries[:MAX_SHOWN_NODES],
        )
        facts = counts[0] if counts else _previous_facts(observed, generation) if verdict.phase == "Pending" else None
        if facts is not None:
            status = msgspec.structs.replace(
                status, dataset=facts, number_of_samples=facts.number_of_samples, update_time=facts.counted_at
            )
        return conclude(status, verdict, observed.status, generation, observed.now)


def _verdict(states: list[NodeVerdict], silent: list[str], *, counted: bool, copies: int) -> Readiness:
    """Sum up the nodes: the first trouble, else that of the node with the data. ``silent`` ones have no controller."""
    troubles = [v for phase in ("Failed", "Pending") for _, v in states if v.phase == phase]
    if troubles:
        return troubles[0]
    if states:
        first = states[0][1]
        also = f"; {copies} {'nodes have a copy' if copies > 1 else 'node has a copy'}" if copies else ""
        reason = "Counted" if counted and first.reason not in NOTED else first.reason
        return Readiness("Ready", reason, first.message + also)
    if silent:
        text = f"node {silent[0]} has no local controller to count it: label the node halimede.io/node"
        return Readiness("Pending", "NotCounted", text)
    text = "no node counts it: set spec.nodeName to the node that has the data, or name it in a service"
    return Readiness("Unused", "NotNeeded", text)


def _node_facts(node: str, generation: int, observed: Observed) -> DatasetFacts | None:
    """Return what a node has counted of this generation; None: nothing yet."""
    report = observed.reports.get(node)
    if report is None or not report.live or report.status.observed_generation < generation:
        return None
    return report.status.dataset


def _previous_facts(observed: Observed, generation: int) -> DatasetFacts | None:
    """Return the previous facts, which hold until the node has counted again."""
    before = observed.status
    return before.dataset if before and before.observed_generation >= generation else None


def has_data(dataset: Resource[Any], node: str, observed: Observed) -> bool:
    """Whether a service's node has the data or a copy of it, by the Dataset's spec."""
    spec, node_state = dataset.spec, observed.nodes.get(node)
    selectors = [labels for labels in owner_labels(spec) if labels]
    if node == spec.node_name or not (spec.node_name or selectors):
        return True
    labels = node_state.labels if node_state else {}
    return any(selector.items() <= labels.items() for selector in selectors)
