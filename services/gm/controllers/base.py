"""What all controllers share: ``Controller``, its input (``Observed``), its output (``Action``), and the registry.

A controller is the rules of one kind of resource, and only decides. Its ``node_actions`` returns which nodes shall hold
a resource; ``build``, ``edits``, ``status`` and ``step`` return the Kubernetes objects, the edits of other resources,
and the status. All return the same output for the same input, so it is always safe to run them again. A new kind is one
new file with ``@register``. The deletion of a resource has the same rules for all kinds, here. In actions, ``key``
(plural, namespace and name) and ``uid`` (the resource's life) name a resource.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from halimede.api import Resource
from halimede.api.placement import matches
from halimede.messages import Status
from halimede.names import Key
from services.gm.cluster.port import ClusterWorkers, EventType, NodeReport, Ref, StoredResource
from services.gm.nodes import Node
from services.gm.reference_index import ReferenceEntry, Roles, WorkerPlacement
from services.gm.service_status import UPDATING, Problem, Readiness, Share, conclude
from services.gm.worker_file_store import WorkerFile
from services.gm.workloads.deployments import Built, References
from services.gm.workloads.diff import Ensure, Remove, differences
from services.gm.workloads.pod_history import PodBackoff
from services.gm.workloads.pod_settings import PodSettings
from services.gm.workloads.pod_status import NodeView, PodFacts


@dataclass(frozen=True, slots=True)
class Send:
    """The node shall hold this resource in this generation (version of its spec)."""

    node: str
    resource: Resource[Any]


@dataclass(frozen=True, slots=True)
class Keep:
    """The node shall keep the generation that it holds of a resource's uid: the present one cannot be used yet."""

    node: str
    key: Key
    uid: str


@dataclass(frozen=True, slots=True)
class Forget:
    """The node shall not hold a resource's uid, and accept no generation of it up to ``generation``."""

    node: str
    key: Key
    uid: str
    generation: int


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Make a resource's deletion wait for the nodes. Carried out before the resource is sent to a node."""

    key: Key
    uid: str


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replace the status of a resource, and publish it.

    ``namesake``: the status is that of a resource of the same name in another API group, and is not published.
    """

    key: Key
    status: Status
    namesake: StoredResource | None = None


@dataclass(frozen=True, slots=True)
class ClearStatus:
    """Clear the retained message with the resource's status."""

    key: Key


@dataclass(frozen=True, slots=True)
class Finalize:
    """Remove a resource from the cluster: its deletion was requested, and no online node holds it any more."""

    key: Key
    uid: str


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Add an event (Normal or Warning) to the log: a reason in one word, and a message for users.

    ``about``: the key of a resource, as text.
    """

    type: EventType
    reason: str
    about: str
    message: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Set ``fields`` of a resource's spec, by their names in JSON, unless a user has edited it meanwhile."""

    stored: StoredResource
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pull:
    """GM's store of files shall have a file of a worker; the resource ``key`` is reconciled again when it has it."""

    key: Key
    file: WorkerFile


#: what one node shall hold
NodeAction = Send | Keep | Forget
#: what a reconciliation does
Action = NodeAction | AddFinalizer | Ensure | Remove | Pull | Edit | WriteStatus | ClearStatus | Finalize | RecordEvent


@dataclass(frozen=True, slots=True)
class ServiceWorkload:
    """The objects and pods of one service, in a cluster that runs workers as pods.

    Attributes:
        workers: the objects (Deployments and others), the pods, and the Secrets.
        settings: the operator's settings for new pods.
        troubles: the problems of the last attempt to write the objects, and of reading the Secrets.
        late: the uids of pods that have been starting for long.
        events: (reason, message) of the last warning about each late pod, by its uid.
        backoffs: of each worker whose pods fail one after the other, by its name: how its next pod is made to wait.

    """

    workers: ClusterWorkers
    settings: PodSettings
    troubles: tuple[Problem, ...] = ()
    late: frozenset[str] = frozenset()
    events: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    backoffs: Mapping[str, PodBackoff] = field(default_factory=dict)

    def merge(self, built: Built) -> dict[Ref, dict[str, Any]]:
        """Return the desired objects merged into the existing ones: the cache may not have the latest writes yet."""
        objects = self.workers.objects
        return {ref: {**objects.get(ref, {}), **body} for body in built.objects for ref in [Ref.of(body)]}


@dataclass(frozen=True, slots=True)
class Observed:
    """What GM knows of one resource.

    Attributes:
        now: the time in RFC 3339, for display.
        original: the resource as its user wrote it; None: the same as the desired one.
        status: as last written; None: there is none yet.
        placed: the nodes where it is placed, by name, with the names of its workers there.
        holders: names of the nodes that may hold it.
        nodes: known nodes, by name; a name that is missing was never online.
        reports: the last report of each node on this uid, by the node's name.
        references: the resources that it names; None: missing, or being deleted.
        models: the Models of its namespace, if it selects among them; else none.
        without_finalizer: those of the resource and its references whose deletion would not wait for the nodes yet.
        as_pods: whether the cluster runs workers as pods; local controllers then only prepare files and count.
        workload: the objects and pods of the service in such a cluster; None: nodes start workers themselves.
        edited: the resources that it may edit, as their users wrote them; None: missing, or being deleted.
        pulled: files of workers by digest: empty if GM's store has the file, else why it has not.
        watched: the nodes' reports on other resources that its rules depend on; None: missing, or being deleted.
        statuses: the last statuses of those watched resources that exist; None: there is none yet.
        related: the watched resources, and others whose rules depend on one of them, as nodes receive them.
        refused: the problems of edits that were not accepted.
        heartbeat: whether the status must be written even if only its times differ.

    """

    now: str = ""
    original: Resource[Any] | None = None
    status: Status | None = None
    placed: Mapping[str, Roles] = field(default_factory=dict)
    holders: frozenset[str] = frozenset()
    nodes: Mapping[str, Node] = field(default_factory=dict)
    reports: Mapping[str, NodeReport] = field(default_factory=dict)
    references: Mapping[Key, Resource[Any] | None] = field(default_factory=dict)
    models: tuple[Resource[Any], ...] = ()
    without_finalizer: tuple[StoredResource, ...] = ()
    as_pods: bool = False
    workload: ServiceWorkload | None = None
    edited: Mapping[Key, StoredResource | None] = field(default_factory=dict)
    pulled: Mapping[str, str] = field(default_factory=dict)
    watched: Mapping[Key, Mapping[str, NodeReport] | None] = field(default_factory=dict)
    statuses: Mapping[Key, Status | None] = field(default_factory=dict)
    related: Mapping[Key, Resource[Any]] = field(default_factory=dict)
    refused: tuple[Problem, ...] = ()
    heartbeat: bool = False

    @property
    def shares(self) -> list[Share]:
        """The part in the service of each node where it is placed, by the nodes' names."""
        return [
            Share(node, roles, self.nodes.get(node), self.reports.get(node))
            for node, roles in sorted(self.placed.items())
        ]

    def is_online(self, node: str) -> bool:
        """Whether a node is online; False for an unknown one."""
        state = self.nodes.get(node)
        return state is not None and state.online

    @property
    def pod_facts(self) -> PodFacts:
        """What nodes and events say of the service's pods, besides the pods' own statuses."""
        if self.workload is None:
            return PodFacts()
        names = {pod.get("spec", {}).get("nodeName") for pod in self.workload.workers.pods} - {None}
        nodes = {name: _node_view(self.nodes.get(name), self.reports.get(name)) for name in names}
        return PodFacts(nodes, self.workload.late, self.workload.events)


def _node_view(node: Node | None, report: NodeReport | None) -> NodeView:
    """Return what a node's last report says of the pods there.

    A report without workers says that no pod runs, unless its phase is Running: then it is not known which ones run.
    """
    status = report.status if report and report.live else None
    running = frozenset(w.name for w in status.workers if w.phase == "Running") if status and status.workers else None
    if status and not status.workers and status.phase != "Running":
        running = frozenset()
    why = (status.reason, status.message) if status and status.reason in PREPARING else ("", "")
    return NodeView(node.unready if node else "", running, *why)


class Controller(Protocol):
    """The rules of one kind of resource. All methods are pure. The default methods are for a kind without workers.

    ``desired`` is the resource in the form of ``entry``.
    """

    def entry(self, resource: Resource[Any], status: Status | None = None) -> ReferenceEntry:
        """Return the resource in the form that nodes receive, with its workers and the resources that these name.

        ``status``: the last written one, which contains the Models that GM has chosen. Raises InvalidFieldError.
        """

    def node_actions(self, desired: Resource[Any], observed: Observed) -> Iterator[NodeAction]:
        """Yield what the nodes in ``placed`` and ``holders`` shall hold; by default each placed node the resource."""
        for node in observed.placed:
            yield Send(node, desired)
        yield from forget(desired, observed)

    def build(self, desired: Resource[Any], observed: Observed) -> Built | None:
        """Return the desired objects in a cluster that runs pods; None: nodes start workers, or there are none."""

    def secret_names(self, desired: Resource[Any], references: References, settings: PodSettings) -> frozenset[str]:
        """Return the names of the Secrets of its namespace that ``build`` needs; called only for kinds with workers."""
        raise NotImplementedError

    def edits(self, desired: Resource[Any], observed: Observed) -> Iterator[Pull | Edit]:  # noqa: ARG002
        """Yield the files that GM fetches from workers, and the edits of other resources; by default nothing.

        Also called for a resource that is being deleted: it is removed once this yields nothing.
        """
        yield from ()

    def status(self, desired: Resource[Any], observed: Observed, built: Built | None = None) -> Status:
        """Return the resource's status by what is observed. ``built``: what ``build`` has returned."""

    def step(self, desired: Resource[Any], observed: Observed, status: Status, built: Built | None) -> Status:  # noqa: ARG002
        """Return the status to write, after a step of the state machine of the kind; by default ``status`` itself."""
        return status


#: the controller of each kind, by the kind's plural
CONTROLLERS: dict[str, Controller] = {}
#: reasons of a local controller that also say why a pod on its node is still being created
PREPARING = frozenset({"ModelNotReady", "DatasetNotReady"})
#: fields of a status that comparisons leave out: they have times, or repeat another field (conditions are compared
#: apart)
TIMED = frozenset({"conditions", "update_time", "number_of_samples"})


def register(plural: str) -> Callable[[type[Controller]], type[Controller]]:
    """Return a class decorator that makes an instance the controller of a plural; its constructor has no parameters."""

    def add(controller: type[Controller]) -> type[Controller]:
        CONTROLLERS[plural] = controller()
        return controller

    return add


def plan(desired: Resource[Any], observed: Observed) -> list[Action]:
    """Return all actions for a resource; empty if it needs none."""
    return [*finalizers_and_node_actions(desired, observed), *objects_and_status(desired, observed)]


def finalizers_and_node_actions(desired: Resource[Any], observed: Observed) -> list[Action]:
    """Return what nodes shall hold, after finalizers; for a resource that is being deleted, return all actions."""
    if desired.metadata.deletion_timestamp is not None:
        return _retire(desired, observed)
    actions = list(CONTROLLERS[desired.kind.plural].node_actions(desired, observed))
    without_finalizer = {stored.key: stored for stored in observed.without_finalizer}
    sent = {action.resource.key for action in actions if isinstance(action, Send)} if without_finalizer else set()
    return [*(AddFinalizer(key, stored.uid) for key, stored in without_finalizer.items() if key in sent), *actions]


def objects_and_status(desired: Resource[Any], observed: Observed) -> list[Action]:
    """Return the actions after those of nodes: write the objects, edit other resources, write the status.

    ``edits`` come before ``step``: they follow the state that is already written, so a GM that is killed in between
    repeats them.
    """
    if desired.metadata.deletion_timestamp is not None:
        return []
    actions: list[Action] = []
    controller = CONTROLLERS[desired.kind.plural]
    built = controller.build(desired, observed)
    if built is not None and observed.workload is not None:
        actions += differences(built, observed.workload.workers.objects, desired.metadata.uid)
    actions += controller.edits(desired, observed)
    status = controller.step(desired, observed, controller.status(desired, observed, built), built)
    if is_same_status(status, observed.status) and not observed.heartbeat:
        return actions
    actions.append(WriteStatus(desired.key, status))
    current = status.conditions[-1]
    if has_new_phase(status, observed.status):
        trouble = status.phase in {"Failed", "Degraded"} and current.reason != UPDATING
        text = f"{current.reason}: {current.message}" if current.message else current.reason
        actions.append(RecordEvent("Warning" if trouble else "Normal", status.phase, str(desired.key), text))
    return actions


def conflicts(namesakes: Iterable[StoredResource], owner: StoredResource, now: str) -> Iterator[WriteStatus]:
    """Yield a new status for each namesake of ``owner``: a resource of another API group, which is not reconciled."""
    group = owner.resource.kind.api_version
    for namesake in namesakes:
        text = f"{group} {owner.key} already has that name, and both would use the same topics: delete one of the two"
        verdict = Readiness("Failed", "NameConflict", text)
        status = conclude(Status(), verdict, namesake.status, namesake.resource.metadata.generation, now)
        if not is_same_status(status, namesake.status):
            yield WriteStatus(namesake.key, status, namesake)


def forget(desired: Resource[Any], observed: Observed) -> Iterator[Forget]:
    """Yield deletes of a resource for the nodes that hold it and where it is not placed.

    The generation in the delete is one below the present one. A node never accepts a generation up to that of the
    delete, but it must accept the present one if the resource is placed there again.
    """
    meta = desired.metadata
    for node in sorted(observed.holders - observed.placed.keys()):
        yield Forget(node, desired.key, meta.uid, max(0, meta.generation - 1))


def is_same_status(new: Status, old: Status | None) -> bool:
    """Whether two statuses are equal except for times that change without a new fact."""
    return old is not None and _timeless(new) == _timeless(old)


def has_new_phase(new: Status, old: Status | None) -> bool:
    """Whether a status has another phase, or another reason for it."""
    return old is None or (new.phase, new.conditions[-1].reason) != (old.phase, old.conditions[-1].reason)


def _timeless(status: Status) -> tuple[object, ...]:
    """Return the values of a status that count in comparisons."""
    conditions = [
        (c.type, c.status, c.observed_generation, c.last_transition_time, c.reason, c.message)
        for c in status.conditions
    ]
    return conditions, *(getattr(status, name) for name in status.__struct_fields__ if name not in TIMED)


def _retire(desired: Resource[Any], observed: Observed) -> list[Action]:
    """Return deletes for each node, and the removal of the resource once no online node holds it.

    The removal comes after the edits that take back what the resource has changed elsewhere. Offline nodes learn of the
    deletion by their next sync.
    """
    meta, key = desired.metadata, desired.key
    actions: list[Action] = [Forget(node, key, meta.uid, meta.generation) for node in sorted(observed.holders)]
    edits = list(CONTROLLERS[key.plural].edits(desired, observed))
    actions += edits
    if edits and not observed.refused:
        return actions  # what it has changed elsewhere is taken back first, unless that is refused
    if not any(observed.is_online(node) for node in observed.holders):
        actions += [RecordEvent("Warning", problem.reason, str(key), problem.message) for problem in observed.refused]
        # the topic first: if GM is killed in between, it repeats both
        actions += [ClearStatus(key), Finalize(key, meta.uid), RecordEvent("Normal", "Deleted", str(key), "")]
    return actions


def node_problems(roles: Sequence[WorkerPlacement], observed: Observed) -> Iterator[Problem]:
    """Yield the problems of workers without a node.

    They may end without an edit, when a node appears. If workers are pods, only names of nodes are checked: the
    scheduler reports selectors that match no node.
    """
    placed = {name for names in observed.placed.values() for name in names}
    for role in roles:
        at = role.at
        if role.pod.node_name and role.pod.node_name not in observed.nodes:
            name = role.pod.node_name
            text = f"there is no node {name}" if observed.workload else f"node {name} has never connected"
            yield Problem("NodeNotFound", f"{at}.nodeName: {text}")
        elif observed.workload:
            continue
        elif role.pod.node_name:
            if observed.nodes[role.pod.node_name].drained:
                yield _drained_problem(f"{at}.nodeName", [role.pod.node_name])
        elif not role.pod.node_selector:
            yield Problem("NoNode", f"{at}: set nodeName or nodeSelector")
        elif role.name not in placed:
            labels = ", ".join(f"{k}={v}" for k, v in sorted(role.pod.node_selector.items()))
            away = (node for node in observed.nodes.values() if node.drained)
            if drained := [node.name for node in away if matches(role.pod, node.name, node.labels)]:
                yield _drained_problem(f"{at}.nodeSelector", drained)
            else:
                yield Problem("NoNode", f"{at}.nodeSelector: no node has the labels {labels}")


def _drained_problem(field: str, nodes: Sequence[str]) -> Problem:
    """Return the problem that a worker matches only drained nodes: it ends when one of them is uncordoned."""
    lowest, more = min(nodes), f" (and {len(nodes) - 1} more)" if len(nodes) > 1 else ""
    return Problem("NodeDrained", f"{field}: node {lowest} is drained{more}: run `halimede uncordon {lowest}`")
