"""References between resources (``ReferenceIndex``): which services need which nodes, Models and Datasets.

A worker of a service names a node, or selects nodes by labels, and names Models and a Dataset. The index is updated on
each change. Lookups do not walk over all resources or all nodes: a new node is compared with the services that name it
or one of its labels, a selector with the nodes that have its rarest label.

If the cluster runs workers as pods, its scheduler evaluates selectors and chooses the nodes (``set_scheduled``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from halimede.api import Resource, matches
from halimede.api.model import PLURAL as MODELS
from halimede.api.podtemplate import PodSpec
from halimede.names import Key
from services.gm.nodes import Nodes

#: stands for a node's name in place of a label's key
NODE_NAME = "spec.nodeName"


@dataclass(frozen=True, slots=True)
class WorkerPlacement:
    """One worker of a service: the pod that selects its nodes, and the resources that it needs there.

    Attributes:
        name: its own name in the service, else its role.
        pod: names a node, or selects nodes by labels.
        references: its Models and its Dataset.
        at: the path of the pod in the resource, for messages.
        most: the maximum number of nodes, unless a scheduler chooses them; None: all that match.
        layer: the label of the nodes that come first if more than ``most`` match; empty: none does.
        present: the nodes that have the worker by the last status: they come next, until the index has placed it.

    """

    name: str
    pod: PodSpec
    references: tuple[Key, ...]
    at: str = ""
    most: int | None = None
    layer: str = ""
    present: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ReferenceEntry:
    """A resource as the index has it: its form for nodes, where it shall be, and what its rules depend on.

    Attributes:
        resource: the resource in the form that nodes receive.
        roles: its workers; none: it goes to its owners, and to the nodes of services that name it.
        owner: the node where it always is, by its own spec; empty: none is named.
        owner_labels: selectors of further nodes where it always is; an empty one selects none.
        selects: whether it selects among the Models of its namespace: then each change of a Model concerns it.
        edits: resources that it may edit.
        watches: resources whose reports its rules depend on.

    """

    resource: Resource[Any]
    roles: tuple[WorkerPlacement, ...] = ()
    owner: str = ""
    owner_labels: tuple[Mapping[str, str], ...] = ()
    selects: bool = False
    edits: tuple[Key, ...] = ()
    watches: tuple[Key, ...] = ()

    @property
    def references(self) -> frozenset[Key]:
        """The resources that its workers name."""
        return frozenset(key for role in self.roles for key in role.references)

    @property
    def owned(self) -> bool:
        """Whether its own spec says on which nodes it always is."""
        return bool(self.owner) or any(self.owner_labels)

    @property
    def owner_items(self) -> list[tuple[str, str]]:
        """Requirements by which its owners are found: each owner meets one, its name or one label (key, value)."""
        named = [(NODE_NAME, self.owner)] if self.owner else []
        return named + [min(labels.items()) for labels in self.owner_labels if labels]


#: names of the workers of a service that are on one node; empty: the resource has no workers, but is there
Roles = frozenset[str]
T = TypeVar("T")


class ReferenceIndex:
    """The relations between services, the resources that they name, and nodes.

    ``nodes``: all known nodes. ``pods``: whether the cluster runs workers as pods, and its scheduler places them.
    """

    def __init__(self, nodes: Nodes, *, pods: bool = False) -> None:
        self._nodes = nodes
        self._pods = pods
        self._entries: dict[Key, ReferenceEntry] = {}
        #: the nodes of each service with its workers there, and the services of each node
        self._placed: dict[Key, dict[str, Roles]] = {}
        self._assigned: dict[str, set[Key]] = {}
        #: by a resource: the services that name it
        self._users: dict[Key, set[Key]] = {}
        #: by a node's name, or by one label: the services with a worker that names or selects it
        self._requirements: dict[tuple[str, str], set[Key]] = {}
        #: by a node's name, or by one label: the resources that such nodes own
        self._owned: dict[tuple[str, str], set[Key]] = {}
        #: by namespace: the Models, and the services that select among them
        self._models: dict[str, set[Key]] = {}
        self._choosers: dict[str, set[Key]] = {}
        #: by a resource: those whose rules depend on its reports
        self._watchers: dict[Key, set[Key]] = {}
        #: the nodes of each worker's pods, by the worker's name
        self._scheduled: dict[Key, dict[str, frozenset[str]]] = {}

    def get(self, key: Key) -> ReferenceEntry | None:
        """Return the entry of a resource; None: it is not in the index."""
        return self._entries.get(key)

    def put(self, key: Key, entry: ReferenceEntry | None) -> set[Key]:
        """Add, replace or remove (None) a resource; return the other resources that this concerns."""
        concerned, before = {*self._users.get(key, ()), *self.watchers(key)}, dict(self._placed.get(key, {}))
        if key.plural == MODELS:
            concerned |= self._choosers.get(key.namespace, set())
        if (old := self._entries.pop(key, None)) is not None:
            for index, at in self._memberships(key, old):
                _discard(index, at, key)
            if entry is not None and entry.resource.metadata.uid != old.resource.metadata.uid:
                self._scheduled.pop(key, None)  # a new resource of that name has no pods yet
        if entry is None:
            self._scheduled.pop(key, None)
            self._update_placement(key, {})
            return concerned | (old.references if old else frozenset())
        self._entries[key] = entry
        for index, at in self._memberships(key, entry):
            index.setdefault(at, set()).add(key)
        self._update_placement(key, self._find(key, entry.roles))
        if old is not None and _references_of(old) == _references_of(entry) and before == self._placed.get(key, {}):
            return concerned  # its references are placed as before
        return concerned | entry.references | (old.references if old else frozenset())

    def _memberships(self, key: Key, entry: ReferenceEntry) -> Iterator[tuple[dict[Any, set[Key]], Any]]:
        """Yield the places of a resource in the indexes: an index, and the item by which it has the resource."""
        if key.plural == MODELS:
            yield self._models, key.namespace
        if entry.selects:
            yield self._choosers, key.namespace
        yield from ((self._owned, item) for item in entry.owner_items)
        yield from ((self._users, reference) for reference in entry.references)
        yield from ((self._watchers, watched) for watched in entry.watches)
        yield from ((self._requirements, _requirement(role.pod)) for role in entry.roles)

    def watchers(self, key: Key) -> Collection[Key]:
        """Return the resources whose rules depend on the reports on a resource."""
        return self._watchers.get(key, ())

    def models(self, namespace: str) -> list[Resource[Any]]:
        """Return the Models of a namespace, sorted by name."""
        return [self._entries[key].resource for key in sorted(self._models.get(namespace, ()))]

    def set_scheduled(self, key: Key, nodes: Mapping[str, frozenset[str]]) -> set[Key]:
        """Set the nodes of each worker's pods, by the worker's name; return the resources that this concerns.

        A worker without pods keeps its last nodes: a pod that is being replaced must not delete resources from its
        node.
        """
        entry, previous = self._entries.get(key), self._scheduled.get(key, {})
        now = previous | {role: names for role, names in nodes.items() if names}
        if entry is None or now == previous:
            return set()
        self._scheduled[key] = now
        self._update_placement(key, self._find(key, entry.roles))
        return {key, *entry.references}

    def node_changed(self, node: str) -> set[Key]:
        """Place the resources again that are on a node, or may be there now; return all resources that this concerns.

        Call it when the node's labels, its drain mark or its existence have changed. A removed node has no labels: only
        services that name it stay there.
        """
        labels, drained = self._labels(node), self._nodes.is_drained(node)
        candidates = self._candidates(node) | set(self._assigned.get(node, ()))
        # a node that has lost a label may have lost a Model by it
        concerned = candidates.union(*(keys for (name, _), keys in self._owned.items() if name != NODE_NAME))
        for key in () if self._pods else candidates:
            entry = self._entries[key]
            if any(role.most is not None for role in entry.roles):
                self._update_placement(key, self._find(key, entry.roles))  # another node may take its place
                concerned |= entry.references
                continue
            roles = frozenset(r.name for r in entry.roles if matches(r.pod, node, labels, drained=drained))
            if roles != self._placed.get(key, {}).get(node, frozenset()):
                concerned |= entry.references
                self._set(key, node, roles)
        return concerned

    def roles_by_node(self, key: Key) -> Mapping[str, Roles]:
        """Return the nodes of a resource, each with the names of its workers there (none without workers).

        A service is on the nodes of its workers, another resource on its owners, or else where services need it; a
        Model is on both. Empty for an unknown resource that nobody needs.
        """
        entry = self._entries.get(key)
        owners = self._owners(entry)
        if entry is not None and entry.owned and key.plural != MODELS:
            return dict.fromkeys(owners, frozenset())
        if entry is not None and entry.roles:
            return self._placed.get(key, {})
        users = self._users.get(key, ())
        placed = ((user, node) for user in users for node in self._placed.get(user, {}))
        needed = (node for user, node in placed if self._needs(user, key, node))
        return dict.fromkeys((*owners, *needed), frozenset())

    def roles_on(self, key: Key, node: str) -> Roles | None:
        """Return the names of a resource's workers on a node (none without workers); None: it is not placed there."""
        entry = self._entries.get(key)
        owners = self._owners(entry)
        if node in owners or (entry is not None and entry.owned and key.plural != MODELS):
            return frozenset() if node in owners else None
        if entry is not None and entry.roles:
            return self._placed.get(key, {}).get(node)
        needed = any(self._needs(user, key, node) for user in self._users.get(key, ()))
        return frozenset() if needed else None

    def keys_on(self, node: str) -> Collection[Key]:
        """Return the services that have a worker on a node, and the resources that the node owns."""
        owned = (key for item in self._items(node) for key in self._owned.get(item, ()))
        return {*self._assigned.get(node, ()), *(key for key in owned if node in self._owners(self._entries[key]))}

    def stranded_roles(self, node: str) -> list[tuple[Key, str]]:
        """Return services with the name of a worker that would be on a node, drained or not, and is on none now."""
        labels, roles_without_node = self._labels(node), []
        for key in sorted(self._candidates(node)):
            placed = {name for names in self._placed.get(key, {}).values() for name in names}
            roles = (role for role in self._entries[key].roles if matches(role.pod, node, labels))
            roles_without_node += [(key, role.name) for role in roles if role.name not in placed]
        return roles_without_node

    def _owners(self, entry: ReferenceEntry | None) -> Collection[str]:
        """Return the nodes on which a resource always is, sorted."""
        if entry is None:
            return ()
        named = {entry.owner} if entry.owner else set()
        return sorted(named.union(*(self._nodes.match(labels) for labels in entry.owner_labels)))

    def _labels(self, node: str) -> Mapping[str, str]:
        """Return the labels of a node; none of an unknown one."""
        state = self._nodes.get(node)
        return state.labels if state else {}

    def _candidates(self, node: str) -> set[Key]:
        """Return the services that name a node or one of its labels."""
        return set().union(*(self._requirements.get(item, ()) for item in self._items(node)))

    def _items(self, node: str) -> list[tuple[str, str]]:
        """Return the requirements that a node meets: its name, and each of its labels."""
        return [(NODE_NAME, node), *self._labels(node).items()]

    def _find(self, key: Key, roles: Iterable[WorkerPlacement]) -> dict[str, Roles]:
        """Return the nodes where the workers of a service shall be, with the names of those workers."""
        placed: dict[str, set[str]] = {}
        for role in roles:
            if role.pod.node_name:
                nodes: Collection[str] = [role.pod.node_name]
            elif self._pods:
                nodes = self._scheduled.get(key, {}).get(role.name, frozenset())
            else:
                nodes = self._nodes.match(role.pod.node_selector)
            for node in self._limit(key, role, [node for node in nodes if not self._nodes.is_drained(node)]):
                placed.setdefault(node, set()).add(role.name)
        return {node: frozenset(names) for node, names in placed.items()}

    def _limit(self, key: Key, role: WorkerPlacement, nodes: list[str]) -> list[str]:
        """Return ``nodes``, at most as many as a worker may have: those of its layer first, then present, then online.

        A node that goes offline keeps the worker: it may still run it, and only a user knows whether it returns.
        """
        if role.most is None or self._pods:
            return nodes
        present = self._placed.get(key) or role.present

        def rank(node: str) -> tuple[bool, bool, bool, str]:
            return role.layer not in self._labels(node), node not in present, not self._nodes.is_online(node), node

        return sorted(nodes, key=rank)[: role.most]

    def _update_placement(self, key: Key, placed: Mapping[str, Roles]) -> None:
        """Set all nodes of a service."""
        for node in [node for node in self._placed.get(key, {}) if node not in placed]:
            self._set(key, node, frozenset())
        for node, roles in placed.items():
            self._set(key, node, roles)

    def _set(self, key: Key, node: str, roles: Roles) -> None:
        """Set which workers of a service are on a node; none: the service leaves the node."""
        if roles:
            self._placed.setdefault(key, {})[node] = roles
            self._assigned.setdefault(node, set()).add(key)
            return
        self._placed.get(key, {}).pop(node, None)
        if not self._placed.get(key):
            self._placed.pop(key, None)
        _discard(self._assigned, node, key)

    def _needs(self, user: Key, key: Key, node: str) -> bool:
        """Whether a worker of the service ``user`` on a node names the resource ``key``."""
        here = self._placed.get(user, {}).get(node, frozenset())
        return any(role.name in here and key in role.references for role in self._entries[user].roles)


def _references_of(entry: ReferenceEntry) -> dict[str, tuple[Key, ...]]:
    """Return the resources that each worker names, by the worker's name."""
    return {role.name: role.references for role in entry.roles}


def _requirement(pod: PodSpec) -> tuple[str, str]:
    """Return one requirement of a pod that a node must meet: its name, or one label of the selector.

    A pod without both gets an empty requirement, which no node meets.
    """
    if pod.node_name:
        return NODE_NAME, pod.node_name
    return min(pod.node_selector.items(), default=("", ""))


def _discard(index: dict[T, set[Key]], at: T, key: Key) -> None:
    """Remove a key from the set at an item of an index, and the item if its set is empty then."""
    if keys := index.get(at):
        keys.discard(key)
        if not keys:
            del index[at]
