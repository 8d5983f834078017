"""What a node does with each kind: its file, how it stands here, its workers and their names.

A new kind is one class here with ``@register``. All of it is pure, as the plan that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import msgspec

from halimede.api import Resource, dataset, inferencemodel, jointinference, model, multiedge
from services.lc.models.lookup import Models, output
from services.lc.paths import Worker
from services.lc.planning.resource_state import Lack, Preparation, RequiredFile, ResourceState
from services.lc.store import NodeResource
from services.lc.supervisor.process import Role, Start

#: how a resource stands on this node, and its workers that are to run
NodeState = tuple[ResourceState, Mapping[Worker, Start]]


class WorkerPart(Protocol):
    """What a plan asks where it depends on who runs the workers of this node."""

    def leaves(self, resource: Resource[Any]) -> str:
        """Return why a Model or Dataset is not this controller's to bring, empty if it is."""

    def service(self, held: NodeResource, resource: Resource[Any], models: Models) -> NodeState:
        """Return how a service stands on this node, and its workers that are to run."""

    def served(self, held: NodeResource, resource: Resource[Any]) -> RequiredFile | None:
        """Return the file that an InferenceModel needs on this node."""

    def server(self, held: NodeResource, resource: Resource[Any], preparation: Preparation | None) -> NodeState:
        """Return how an InferenceModel stands on this node, and its server if it is to run."""


@dataclass(frozen=True, slots=True)
class NodeItem:
    """A resource that is held here, and what its kind's rules may ask: who runs workers, the Models of the node."""

    held: NodeResource
    resource: Resource[Any]
    part: WorkerPart
    models: Models

    def stands(self, settled: Lack, **more: Any) -> NodeState:
        """Return how it stands, of a resource without workers here."""
        return ResourceState(self.held.key, self.held.uid, self.held.generation, settled=settled, **more), {}


class NodeKind:
    """The rules of a kind on a node. Those of this class: it is held, and Ready as soon as it is here."""

    #: the roles whose workers are named after them
    roles: ClassVar[tuple[Role, ...]] = ()
    #: whether its user names workers, and whether those are tiers
    names_workers: ClassVar[bool] = False
    tiers: ClassVar[bool] = False

    def required_file(self, item: NodeItem) -> RequiredFile | None:
        """Return the file that is to be brought here for it; None: there is none."""

    def state(self, item: NodeItem) -> NodeState:
        """Return how it stands on this node, and its workers that are to run."""
        return item.stands(Lack("Ready", "Held", ""))


NODE_KINDS: dict[str, NodeKind] = {}


def register(plural: str) -> Callable[[type[NodeKind]], type[NodeKind]]:
    """Register a class without arguments as the rules of a plural."""

    def add(kind: type[NodeKind]) -> type[NodeKind]:
        NODE_KINDS[plural] = kind()
        return kind

    return add


@register(multiedge.PLURAL)
class ServiceOnNode(NodeKind):
    """A service whose workers the node runs, or counts where they are pods."""

    names_workers = True

    def state(self, item: NodeItem) -> NodeState:
        """Return how the service stands on this node."""
        return item.part.service(item.held, item.resource, item.models)


@register(jointinference.PLURAL)
class JointInferenceOnNode(ServiceOnNode):
    """The same, with workers of fixed names and tiers between them."""

    roles = ("edge", "cloud")
    tiers = True


@register(inferencemodel.PLURAL)
class InferenceModelOnNode(NodeKind):
    """A model that a server of the node answers with."""

    roles = (inferencemodel.ROLE,)

    def required_file(self, item: NodeItem) -> RequiredFile | None:
        """Return the file of the version that is to be served here."""
        return item.part.served(item.held, item.resource)

    def state(self, item: NodeItem) -> NodeState:
        """Return how its server stands."""
        known = item.models.preparations.get(item.held.key)
        current = known if known and known.want == self.required_file(item) else None
        return item.part.server(item.held, item.resource, current)


@register(dataset.PLURAL)
class DatasetOnNode(NodeKind):
    """A file or folder that the node counts."""

    def required_file(self, item: NodeItem) -> RequiredFile | None:
        """Return the file, unless the pods that need it bring it themselves."""
        return None if item.part.leaves(item.resource) else self.file(item)

    def file(self, item: NodeItem) -> RequiredFile:
        """Return what the resource names."""
        held, spec = item.held, item.resource.spec
        return RequiredFile(held.key, held.uid, held.generation, spec.url, format=spec.format)

    def state(self, item: NodeItem) -> NodeState:
        """Return how far its file has come, and what was found out about it."""
        if left := item.part.leaves(item.resource):
            return item.stands(Lack("Ready", "LeftToPods", left))
        want = self.file(item)
        known = item.models.preparations.get(item.held.key)
        current = known if known and known.want == want else Preparation(want)
        return item.stands(Lack(current.phase, current.reason, current.message), facts=current.facts)


@register(model.PLURAL)
class ModelOnNode(DatasetOnNode):
    """The file of a model, which is tried before anything uses it."""

    def file(self, item: NodeItem) -> RequiredFile:
        """Return what the resource names, and how it is to be tried."""
        spec = item.resource.spec
        tried = msgspec.json.encode(msgspec.structs.replace(spec, url="/", credential_name="")).decode()
        return replace(super().file(item), sha256=spec.sha256, spec=tried)

    def state(self, item: NodeItem) -> NodeState:
        """Return how far its file has come, and what a report shows of it."""
        state, workers = super().state(item)
        return replace(state, models=(output(item.resource),)), workers
