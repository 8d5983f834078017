"""The rules of each kind of resource on a node (``NodeKind``): its file, its state, its workers and their names. Pure.

A new kind is one class here with ``@register``. Plans apply the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import msgspec

from halimede.api import (
    Resource,
    dataset,
    federatedlearning,
    incrementallearning,
    inferencemodel,
    jointinference,
    model,
    multiedge,
    trainingmodel,
)
from halimede.api.dataset import is_copy
from halimede.blobs.uris import url
from halimede.messages.file_facts import TrialReason
from services.lc.models.lookup import Models, output
from services.lc.paths import Worker
from services.lc.planning.resource_state import LocalPhase, Phase, Preparation, RequiredFile, ResourceState
from services.lc.store import NodeResource
from services.lc.supervisor.process import Role, Start

#: the state of a resource on this node, and its workers that should run
NodeState = tuple[ResourceState, Mapping[Worker, Start]]


class WorkerPlanner(Protocol):
    """How workers run on this node: as processes (``ProcessPlanner``) or as pods (``PodPlanner``). Pure."""

    @property
    def name(self) -> str:
        """The node's name."""

    def skip_reason(self, resource: Resource[Any]) -> str:
        """Return why this LC leaves the file of a Model or Dataset to pods; empty: it brings or counts the file."""

    def service(self, stored: NodeResource, resource: Resource[Any], models: Models) -> NodeState:
        """Return the state of a service on this node, and its workers that should run."""

    def served_file(self, stored: NodeResource, resource: Resource[Any]) -> RequiredFile | None:
        """Return the file that an InferenceModel needs on this node; None: it needs none."""

    def server(self, stored: NodeResource, resource: Resource[Any], preparation: Preparation | None) -> NodeState:
        """Return the state of an InferenceModel on this node, and its server if it can run.

        ``preparation``: the progress of its file; None: it has none, or not of the present version.
        """


@dataclass(frozen=True, slots=True)
class NodeItem:
    """A held resource, with all that the rules of its kind need.

    Attributes:
        stored: the resource as GM has sent it.
        resource: its typed form.
        planner: how workers run on this node.
        models: the Models and Datasets of the node.
        content: the published digest of a Model's or Dataset's files; empty: unknown.

    """

    stored: NodeResource
    resource: Resource[Any]
    planner: WorkerPlanner
    models: Models
    content: str = ""

    def state(self, settled: LocalPhase, **more: Any) -> NodeState:
        """Return the state of the resource without workers on this node; ``more``: further fields of ResourceState."""
        return ResourceState(self.stored.key, self.stored.uid, self.stored.generation, settled=settled, **more), {}


class NodeKind:
    """The rules of a kind on a node; the base class has those of a kind without files and workers.

    Subclasses are registered by ``register``; methods that they override are described here.
    """

    #: roles by which its workers are named
    roles: ClassVar[tuple[Role, ...]] = ()
    #: whether a service itself names its workers, and a word in their names on nodes (empty: none)
    names_workers: ClassVar[bool] = False
    group: ClassVar[str] = ""

    def must_copy(self, item: NodeItem) -> bool:  # noqa: ARG002  # of kinds with files
        """Whether this node copies the resource's files from another one."""
        return False

    def required_file(self, item: NodeItem) -> RequiredFile | None:
        """Return the file that the resource needs on this node; None: it needs none."""

    def state(self, item: NodeItem) -> NodeState:
        """Return the resource's state on this node, by default Ready, and its workers that should run."""
        return item.state(LocalPhase("Ready", "Held", ""))


#: the rules of each kind, by its plural
NODE_KINDS: dict[str, NodeKind] = {}


def register(plural: str) -> Callable[[type[NodeKind]], type[NodeKind]]:
    """Return a class decorator that makes an instance the rules of a plural; its constructor has no parameters."""

    def add(kind: type[NodeKind]) -> type[NodeKind]:
        NODE_KINDS[plural] = kind()
        return kind

    return add


@register(multiedge.PLURAL)
class ServiceOnNode(NodeKind):
    """A ``NodeKind``: services with workers, which the node runs, or which are pods. Also multi-edge services."""

    names_workers = True

    def state(self, item: NodeItem) -> NodeState:
        """Return the state of the service on this node, and its workers that can run."""
        return item.planner.service(item.stored, item.resource, item.models)


@register(jointinference.PLURAL)
class JointInferenceOnNode(ServiceOnNode):
    """A ``NodeKind``: joint inference services, with an edge worker, a cloud worker, and maybe tiers between them."""

    roles = ("edge", "cloud")
    group = "tier"


@register(trainingmodel.PLURAL)
class TrainingModelOnNode(ServiceOnNode):
    """A ``NodeKind``: TrainingModels; the node has the aggregator, or trainers, or both."""

    group = trainingmodel.TrainingModelSpec.group


@register(federatedlearning.PLURAL)
class FederatedLearningOnNode(ServiceOnNode):
    """A ``NodeKind``: Sedna's federated learning jobs, which are trainings in another form."""

    group = federatedlearning.FederatedLearningSpec.group


@register(incrementallearning.PLURAL)
class IncrementalLearningOnNode(ServiceOnNode):
    """A ``NodeKind``: Sedna's incremental learning jobs, which are trainings with one trainer in another form."""

    group = incrementallearning.IncrementalLearningSpec.group


@register(inferencemodel.PLURAL)
class InferenceModelOnNode(NodeKind):
    """A ``NodeKind``: InferenceModels, which a server on the node serves."""

    roles = (inferencemodel.ROLE,)

    def required_file(self, item: NodeItem) -> RequiredFile | None:
        """Return the file of the desired version; None: no server runs here, or the version has no usable file."""
        return item.planner.served_file(item.stored, item.resource)

    def state(self, item: NodeItem) -> NodeState:
        """Return the state of its server, and the server if it can run."""
        preparation = item.models.preparations.get(item.stored.key)
        current = preparation if preparation and preparation.required == self.required_file(item) else None
        return item.planner.server(item.stored, item.resource, current)


@register(dataset.PLURAL)
class DatasetOnNode(NodeKind):
    """A ``NodeKind``: Datasets, which the node counts, or first copies from the node that has the data."""

    def must_copy(self, item: NodeItem) -> bool:
        """Whether another node has the files, and this one shall copy them."""
        return is_copy(item.resource.spec, item.planner.name)

    def required_file(self, item: NodeItem) -> RequiredFile | None:
        """Return the file or folder; None: pods read it themselves, or the content to be copied is not known yet."""
        if not self.must_copy(item):
            return None if item.planner.skip_reason(item.resource) else self.file(item)
        file, source = self.file(item), item.resource.spec.node_name
        digest = file.sha256 or item.content
        return replace(file, url=url(source, digest), sha256=digest, source=source) if digest else None

    def file(self, item: NodeItem) -> RequiredFile:
        """Return the file or folder that the spec names, at its URL."""
        stored, spec = item.stored, item.resource.spec
        listed = bool(spec.sync_to)
        return RequiredFile(stored.key, stored.uid, stored.generation, spec.url, format=spec.format, listed=listed)

    def state(self, item: NodeItem) -> NodeState:
        """Return the progress of its file as its state, with the facts about the content."""
        required = self.required_file(item)
        if required is None and self.must_copy(item):
            source = item.resource.spec.node_name
            return item.state(LocalPhase("Pending", "SourceNotReady", f"waiting for node {source} to report its files"))
        if required is None:
            return item.state(LocalPhase("Ready", "LeftToPods", item.planner.skip_reason(item.resource)))
        preparation = item.models.preparations.get(item.stored.key)
        current = preparation if preparation and preparation.required == required else Preparation(required)
        return item.state(LocalPhase(current.phase, current.reason, current.message), facts=current.facts)


@register(model.PLURAL)
class ModelOnNode(DatasetOnNode):
    """A ``NodeKind``: Models, with the rules of Datasets; a file is tried before it is used."""

    def file(self, item: NodeItem) -> RequiredFile:
        """Return the file that the spec names, with the spec for its trial."""
        spec = item.resource.spec
        trial_spec = msgspec.json.encode(model.about_file(spec, "/")).decode()
        return replace(super().file(item), sha256=spec.sha256, spec=trial_spec)

    def state(self, item: NodeItem) -> NodeState:
        """Return the progress of its file as its state, with the Model for the report.

        A Model that failed its trial is Ready only if all workers here that use it may run a user's code: that code may
        read the file in its own way.
        """
        state, workers = super().state(item)
        if (now := state.settled) and (now.phase, now.reason) == ("Ready", TrialReason.INVALID):
            users = list(item.models.users(item.stored.key, item.planner.name))
            advice = "a service with its own code may still read it" if not users else ""
            text = "; ".join(filter(None, (now.message, advice)))
            phase: Phase = "Ready" if users and all(users) else "Failed"
            state = replace(state, settled=LocalPhase(phase, now.reason, text))
        return replace(state, models=(output(item.resource),)), workers
