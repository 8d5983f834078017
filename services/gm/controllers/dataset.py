"""The controller of Datasets: the nodes that have the data count its samples, and others may copy the data.

GM sends a Dataset to the nodes that it names, else to the edge nodes of services that name it. Nodes that copy the data
(``syncTo``) read in the status which files the node with the data has found.
"""

from __future__ import annotations

from typing import Any

import msgspec

from halimede.api import Resource
from halimede.api.dataset import PLURAL, is_copy
from halimede.messages import DatasetFacts, NodeSummary, Status
from halimede.messages.file_facts import NO_SAMPLES, SAMPLES_REPEATED
from services.gm.controllers.base import Controller, Observed, register
from services.gm.controllers.model import has_controller, owner_labels, state_on_node, status_on_node, unknown_owner
from services.gm.reference_index import ReferenceEntry
from services.gm.service_status import MAX_SHOWN_NODES, Readiness, conclude
from services.gm.workloads.deployments import Built

#: reasons of a node with which a Dataset is Ready: what was counted is probably not as its user means it
NOTED = (NO_SAMPLES, SAMPLES_REPEATED)
#: the state of a Dataset on a node: for the list of nodes, and for the Dataset's own phase
NodeVerdict = tuple[NodeSummary, Readiness]


@register(PLURAL)
class DatasetController(Controller):
    """The ``Controller`` of Datasets.

    A Dataset is Ready once its nodes have counted its content, or have found that its URL answers, and once all copies
    are complete. A Dataset that names no node, and that no service needs, is unused: no node has looked at it.
    """

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:  # noqa: ARG002
        """Return the Dataset, always placed on the nodes that it names, also when no service needs it there."""
        return ReferenceEntry(resource, owner=resource.spec.node_name, owner_labels=owner_labels(resource.spec))

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:  # noqa: ARG002
        """Return phase and reason, the state of each node, and what the node with the data has counted.

        If several nodes have data, the first one's counts are returned.
        """
        generation = desired.metadata.generation
        # nodes that copy it come last: their troubles may come from the node that has the data
        nodes = sorted(observed.placed, key=lambda node: (is_copy(desired.spec, node), node))
        silent = [node for node in nodes if observed.as_pods and not has_controller(node, observed)]
        states = [state_on_node(node, generation, observed) for node in nodes if node not in silent]
        sources = [node for node in nodes if not is_copy(desired.spec, node)]
        statuses = (status_on_node(node, generation, observed) for node in sources)
        counts = [status.dataset for status in statuses if status and status.dataset]
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
    """Return the phase of a Dataset: that of the first node with trouble, else of the node with the data.

    ``states``: of the nodes with a local controller, those that copy the data last. ``silent``: nodes without a local
    controller. ``counted``: whether a node has counted. ``copies``: number of nodes that copy the data.
    """
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


def _previous_facts(observed: Observed, generation: int) -> DatasetFacts | None:
    """Return the facts in the last status, which hold until a node has counted again; None: they are outdated."""
    before = observed.status
    return before.dataset if before and before.observed_generation >= generation else None


def has_data(dataset: Resource[Any], node: str, observed: Observed) -> bool:
    """Whether a node has the data of a Dataset or a copy of it, by the Dataset's spec and the node's labels.

    True for every node if the Dataset names none: then each node has its own data at the URL.
    """
    spec, node_state = dataset.spec, observed.nodes.get(node)
    selectors = [labels for labels in owner_labels(spec) if labels]
    if node == spec.node_name or not (spec.node_name or selectors):
        return True
    labels = node_state.labels if node_state else {}
    return any(selector.items() <= labels.items() for selector in selectors)
