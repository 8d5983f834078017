"""The rules of each kind on a node: its file, its state, its workers and their names.

A new kind is one class here with ``@register``. All of it is pure, like the plan that calls it.
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
from services.lc.planning.resource_state import Lack, Phase, Preparation, RequiredFile, ResourceState
from services.lc.store import NodeResource
from services.lc.supervisor.process import Role, Start

#: the state of a resource on this node, and its workers that should run
NodeState = tuple[ResourceState, Mapping[Worker, Start]]


class WorkerPlanner(Protocol):
    """The part of a plan that depends on how workers run on this node: as processes or as pods."""

    @property
    def name(self) -> str:
        """The node's name."""

    def skip_reason(self, resource: Resource[Any]) -> str:
        """Return why this controller does not bring a Model or Dataset, empty if it does."""

    def service(self, stored: NodeResource, resource: Resource[Any], models: Models) -> NodeState:
        """Return the state of a service on this node, and its workers that should run."""

    def served_file(self, stored: NodeResource, resource: Resource[Any]) -> RequiredFile | None:
        """Return the file that an InferenceModel needs on this node."""

    def server(self, stored: NodeResource, resource: Resource[Any], preparation: Preparation | None) -> NodeState:
        """Return the state of an InferenceModel on this node, and its server if it should run."""


@dataclass(frozen=True, slots=True)
class NodeItem:
    """A held resource, with the context for its kind's rules: how workers run, and the Models of the node.

    ``content``: the published digest of a Model's or Dataset's files, empty if it is unknown.
    """

    stored: NodeResource
    resource: Resource[Any]
    planner: WorkerPlanner
    models: Models
    content: str = ""

    def state(self, settled: Lack, **more: Any) -> NodeState:
        """Return the state of a resource without workers on this node."""
        return ResourceState(self.stored.key, self.stored.uid, self.stored.generation, settled=settled, **more), {}


class NodeKind:
    """The rules of a kind on a node. By default a resource is Ready as soon as the node holds it."""

    #: the roles after which its workers are named
    roles: ClassVar[tuple[Role, ...]] = ()
    #: whether users name its workers, and the word in those names (``Placement.group``)
    names_workers: ClassVar[bool] = False
    group: ClassVar[str] = ""

    def must_copy(self, item: NodeItem) -> bool:  # noqa: ARG002  # of kinds with files
        """Whether this node copies its files from another one."""
        return False

    def required_file(self, item: NodeItem) -> RequiredFile | None:
        """Return the file that it needs on this node; None: it needs none."""

    def state(self, item: NodeItem) -> NodeState:
        """Return its state on this node, and its workers that should run."""
        return item.state(Lack("Ready", "Held", ""))


NODE_KINDS: dict[str, NodeKind] = {}


def register(plural: str) -> Callable[[type[NodeKind]], type[NodeKind]]:
    """Register a class, whose constructor has no parameters, as the rules of a plural."""

    def add(kind: type[NodeKind]) -> type[NodeKind]:
        NODE_KINDS[plural] = kind()
        return kind

    return add


@register(multiedge.PLURAL)
class ServiceOnNode(NodeKind):
    """A service whose workers the node runs, or only counts if they are pods."""

    names_workers = True

    def state(self, item: NodeItem) -> NodeState:
        """Return the state of the service on this node."""
        return item.planner.service(item.stored, item.resource, item.models)


@register(jointinference.PLURAL)
class JointInferenceOnNode(ServiceOnNode):
    """A joint inference service: its workers have fixed names, and there may be tiers between them."""

    roles = ("edge", "cloud")
    group = "tier"


@register(trainingmodel.PLURAL)
class TrainingModelOnNode(ServiceOnNode):
    """A training: the node has its aggregator, or trainers, or both."""

    group = trainingmodel.TrainingModelSpec.group


@register(federatedlearning.PLURAL)
class FederatedLearningOnNode(ServiceOnNode):
    """A training in Sedna's form."""

    group = federatedlearning.FederatedLearningSpec.group


@register(incrementallearning.PLURAL)
class IncrementalLearningOnNode(ServiceOnNode):
    """A training of one trainer, in Sedna's form."""

    group = incrementallearning.IncrementalLearningSpec.group


@register(inferencemodel.PLURAL)
class InferenceModelOnNode(NodeKind):
    """A model that a server of the node serves."""

    roles = (inferencemodel.ROLE,)

    def required_file(self, item: NodeItem) -> RequiredFile | None:
        """Return the file of the desired version."""
        return item.planner.served_file(item.stored, item.resource)

    def state(self, item: NodeItem) -> NodeState:
        """Return the state of its server."""
        preparation = item.models.preparations.get(item.stored.key)
        current = preparation if preparation and preparation.required == self.required_file(item) else None
        return item.planner.server(item.stored, item.resource, current)


@register(dataset.PLURAL)
class DatasetOnNode(NodeKind):
    """A file or folder that the node counts, or copies from the node that has it and then counts."""

    def must_copy(self, item: NodeItem) -> bool:
        """Whether another node has the files."""
        return is_copy(item.resource.spec, item.planner.name)

    def required_file(self, item: NodeItem) -> RequiredFile | None:
        """Return the file, unless the pods that need it bring it themselves, or its content is not known yet."""
        if not self.must_copy(item):
            return None if item.planner.skip_reason(item.resource) else self.file(item)
        file, source = self.file(item), item.resource.spec.node_name
        digest = file.sha256 or item.content
        return replace(file, url=url(source, digest), sha256=digest, source=source) if digest else None

    def file(self, item: NodeItem) -> RequiredFile:
        """Return the file that the resource names."""
        stored, spec = item.stored, item.resource.spec
        listed = bool(spec.sync_to)
        return RequiredFile(stored.key, stored.uid, stored.generation, spec.url, format=spec.format, listed=listed)

    def state(self, item: NodeItem) -> NodeState:
        """Return the progress of its file, and the facts about it."""
        required = self.required_file(item)
        if required is None and self.must_copy(item):
            source = item.resource.spec.node_name
            return item.state(Lack("Pending", "SourceNotReady", f"waiting for node {source} to report its files"))
        if required is None:
            return item.state(Lack("Ready", "LeftToPods", item.planner.skip_reason(item.resource)))
        preparation = item.models.preparations.get(item.stored.key)
        current = preparation if preparation and preparation.required == required else Preparation(required)
        return item.state(Lack(current.phase, current.reason, current.message), facts=current.facts)


@register(model.PLURAL)
class ModelOnNode(DatasetOnNode):
    """The file of a model, which is tried before it is used."""

    def file(self, item: NodeItem) -> RequiredFile:
        """Return the file that the resource names, and the spec for its trial."""
        spec = item.resource.spec
        trial_spec = msgspec.json.encode(model.about_file(spec, "/")).decode()
        return replace(super().file(item), sha256=spec.sha256, spec=trial_spec)

    def state(self, item: NodeItem) -> NodeState:
        """Return the progress of its file, and the model for the report.

        One that failed its trial is Ready only if all of its users here have code of their own, which may read it.
        """
        state, workers = super().state(item)
        if (now := state.settled) and (now.phase, now.reason) == ("Ready", TrialReason.INVALID):
            users = list(item.models.users(item.stored.key, item.planner.name))
            advice = "a service with its own code may still read it" if not users else ""
            text = "; ".join(filter(None, (now.message, advice)))
            phase: Phase = "Ready" if users and all(users) else "Failed"
            state = replace(state, settled=Lack(phase, now.reason, text))
        return replace(state, models=(output(item.resource),)), workers
