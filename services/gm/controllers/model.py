"""The controller of Models, and what Datasets share with it.

GM sends a Model to each node that it names, and to the nodes of services that need it; it deletes the Model there after
the last need. Ready means that each such node has the file. A Model may list several versions: nodes receive only the
one in force. Facts that nodes find out about the file are copied to the status if all nodes agree; versions that all of
them have had are remembered for a rollback. Nodes that copy the file from another node (``syncTo``) read its digest in
the status.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from halimede.api import Resource, parse
from halimede.api.dataset import DatasetSpec, is_copy
from halimede.api.model import PLURAL as MODELS
from halimede.api.model import ModelSpec, in_force
from halimede.errors import hide_secrets
from halimede.messages import Metric, ModelFacts, NodeStatus, NodeSummary, ServedVersion, Status
from halimede.messages.file_facts import CONTENT_CHANGED, CONTENT_UNUSABLE, INPUT_NOT_SCALED, TrialReason
from halimede.models import FetchReason
from services.gm.controllers.base import Controller, Observed, register
from services.gm.reference_index import ReferenceEntry
from services.gm.service_status import MAX_SHOWN_NODES, Readiness, conclude
from services.gm.workloads.deployments import Built

#: steps, in percent, in which progress is shown: each step is a write of the status
PROGRESS_STEP = 5
#: reasons of nodes that a Model shows although it is Ready, the most important first
NOTED = (FetchReason.NOT_INSTALLED, TrialReason.INVALID, CONTENT_UNUSABLE, INPUT_NOT_SCALED, CONTENT_CHANGED)
#: most versions in a Model's status
MAX_STATUS_VERSIONS = 10


@register(MODELS)
class ModelController(Controller):
    """The ``Controller`` of Models: without workers and objects of its own."""

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:  # noqa: ARG002
        """Return the Model as its version in force, placed on the nodes that it names itself."""
        spec: ModelSpec = resource.spec
        if spec.versions:
            resource = parse({**resource.body, "spec": msgspec.to_builtins(in_force(spec))})
        return ReferenceEntry(resource, owner=spec.node_name, owner_labels=owner_labels(spec))

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:  # noqa: ARG002
        """Sum up the nodes that need the Model; on nodes without a local controller, pods download it themselves."""
        generation = desired.metadata.generation
        summaries, verdicts = [], []
        uncontrolled = {node for node in observed.placed if observed.as_pods and not has_controller(node, observed)}
        for node in sorted(observed.placed.keys() - uncontrolled):
            summary, verdict = state_on_node(node, generation, observed)
            summaries.append(summary)
            verdicts.append(verdict)
        ready = sum(v.phase == "Ready" for v in verdicts)
        failed = [v for v in verdicts if v.phase == "Failed"]
        waiting = [v for v in verdicts if v.phase == "Pending"]
        facts = _facts(desired, observed)
        if trouble := unknown_owner(desired.spec, observed):
            verdict = trouble
        elif not verdicts and uncontrolled:
            verdict = Readiness("Ready", "FetchedByPods", "nodes that need it have no local controller: pods fetch it")
        elif not verdicts:
            verdict = Readiness("Unused", "NotNeeded", "no service on a known node uses it")
        elif failed or waiting:
            verdict = (failed or waiting)[0]
        elif len({model_facts.digest for model_facts in facts}) > 1:
            text = f"the {len(verdicts)} nodes have different contents: set spec.sha256, or another spec.url"
            verdict = Readiness("Ready", "ContentDiffers", text)
        elif noted := [v for reason in NOTED for v in verdicts if v.reason == reason]:
            verdict = noted[0]
        else:
            verdict = Readiness("Ready", "OnAllNodes", f"{ready} of {len(verdicts)} nodes have it")
        # nodes with trouble first, in case the list is cut
        summaries.sort(key=lambda s: s.phase == "Ready")
        status = Status(active=ready, failed=len(failed), nodes=summaries[:MAX_SHOWN_NODES])
        status = _with_facts(status, desired, observed, facts, served=verdict.phase == "Ready" and bool(verdicts))
        return conclude(status, verdict, observed.status, generation, observed.now)


def owner_labels(spec: ModelSpec | DatasetSpec) -> tuple[Mapping[str, str], ...]:
    """Return two selectors of a Model or Dataset: of nodes that have it, and of nodes that copy it; empty: none."""
    return ({} if spec.node_name else spec.node_selector, spec.sync_to)


def unknown_owner(spec: ModelSpec | DatasetSpec, observed: Observed) -> Readiness | None:
    """Return the problem that no node that a Model or Dataset names is known; None: one is, or it names none."""
    if spec.node_name and spec.node_name not in observed.nodes:
        return Readiness("Pending", "NodeNotFound", f"spec.nodeName: node {spec.node_name} has never connected")
    if spec.node_selector and not spec.node_name and not observed.placed:
        labels = ", ".join(f"{key}={value}" for key, value in sorted(spec.node_selector.items()))
        return Readiness("Pending", "NoNode", f"spec.nodeSelector: no node has the labels {labels}")
    return None


def _with_facts(
    status: Status, desired: Resource[Any], observed: Observed, facts: Sequence[ModelFacts], *, served: bool
) -> Status:
    """Return a status with the Model's metrics, the facts about its content, and the versions so far.

    ``facts``: those of each node. ``served``: whether all nodes have the Model now.
    """
    before, spec = observed.status, desired.spec
    agreed = facts[0] if len({model_facts.digest for model_facts in facts}) == 1 else None
    if agreed is None and before and not facts and before.observed_generation >= desired.metadata.generation:
        agreed = before.model  # no node needs the model now: its content is unchanged
    versions = before.versions if before else []
    if served and (agreed or spec.sha256):
        digest = agreed.digest if agreed else spec.sha256
        url, since = hide_secrets(spec.url), agreed.since if agreed and agreed.since else observed.now
        version = spec.target_version or digest[:12]
        versions = remember_version(versions, ServedVersion(version=version, url=url, digest=digest, since=since))
    changed = before is None or agreed != before.model
    return msgspec.structs.replace(
        status,
        metrics=_metrics(desired, before),
        model=agreed,
        versions=versions,
        update_time=observed.now if changed or before is None else before.update_time,
    )


def _metrics(desired: Resource[Any], before: Status | None) -> list[Metric]:
    """Return the metrics that the user gives in the spec, and others that the status of this generation already has."""
    own = {metric.key: Metric(key=metric.key, value=metric.value) for metric in desired.spec.metrics}
    if before and before.observed_generation == desired.metadata.generation:
        own = {metric.key: metric for metric in before.metrics} | own
    return list(own.values())


def _facts(desired: Resource[Any], observed: Observed) -> list[ModelFacts]:
    """Return the facts about the content that nodes have reported, in the nodes' order, without nodes that copy it."""
    nodes = sorted(node for node in observed.placed if not is_copy(desired.spec, node))
    statuses = (status_on_node(node, desired.metadata.generation, observed) for node in nodes)
    # also of a model that failed its trial: other nodes may copy it
    return [status.model for status in statuses if status and status.model and status.model.digest]


def status_on_node(node: str, generation: int, observed: Observed) -> NodeStatus | None:
    """Return a node's last report on a resource; None: it has not reported on this generation, or holds none."""
    report = observed.reports.get(node)
    if report is None or not report.live or report.status.observed_generation < generation:
        return None
    return report.status


def has_controller(node: str, observed: Observed) -> bool:
    """Whether a node has, or had, a local controller, which can download a model in advance."""
    state = observed.nodes.get(node)
    return state is not None and state.controlled


def state_on_node(node: str, generation: int, observed: Observed) -> tuple[NodeSummary, Readiness]:
    """Return the state of a Model or Dataset on a node, for the list of nodes and for the resource's own phase."""
    status, online = status_on_node(node, generation, observed), observed.is_online(node)
    if status is None:
        reason = "Preparing" if online else "NodeOffline"
        message = f"node {node} " + ("has not reported its state yet" if online else "is offline")
        summary = NodeSummary(node=node, online=online, phase="Pending", reason=reason)
        return summary, Readiness("Pending", reason, message)
    text = ": ".join(part for part in (status.message, _progress(status.model)) if part) if online else status.message
    summary = NodeSummary(node=node, online=online, phase=status.phase, reason=status.reason, message=text)
    phase = {"Running": "Ready"}.get(status.phase, status.phase)
    message = f"node {node}: {text}" if text else f"node {node}"
    return summary, Readiness(phase, status.reason or status.phase, message)


def _progress(facts: ModelFacts | None) -> str:
    """Return the progress of a download as text in coarse steps; empty: there is none."""
    if facts is None or not facts.done:
        return ""
    rate = f"at about {float(f'{facts.rate:.1g}') / 1e6:g} MB/s" if facts.rate else "waiting"
    if not facts.size:
        return f"{float(f'{facts.done:.1g}') / 1e6:g} MB downloaded, {rate}"
    share = min(100, 100 * facts.done // facts.size) // PROGRESS_STEP * PROGRESS_STEP
    return f"{share} % of {facts.size / 1e6:.4g} MB downloaded, {rate}"


def remember_version(versions: Sequence[ServedVersion], served: ServedVersion) -> list[ServedVersion]:
    """Return the versions of a status, the newest first, with the one that is served now; at most ten."""
    if versions and _is_same_version(versions[0], served):
        return list(versions)
    return [served, *(version for version in versions if not _is_same_version(version, served))][:MAX_STATUS_VERSIONS]


def _is_same_version(first: ServedVersion, second: ServedVersion) -> bool:
    """Whether two versions have the same name and content."""
    return (first.version, first.digest) == (second.version, second.digest)
