"""The nodes, from their presence: which are online, their labels, and which match a selector.

Three rules exclude outdated messages. A will or birth of an earlier connection (lower epoch) is ignored. A sync, which
the broker never retains, proves that its sender is online. A birth that the broker has retained may have outlived its
node: it proves nothing, and the node must confirm it, by a sync, a new birth, or a report of its present connection.

An index by label avoids a walk over all nodes for a selector. An offline node keeps its resources: only a user can
decide that it will not return. A drained node has a separate mark, which does not depend on its connection, and no
selector matches it.

If the cluster knows its nodes (``register``), a node may be known without a local controller, and also has the labels
that the cluster gives it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from halimede.api.placement import HOSTNAME
from halimede.messages import Presence
from services.gm.cluster.port import RegisteredNode


@dataclass(frozen=True, slots=True)
class Node:
    """A node. ``epoch`` is that of its latest connection; ``presence`` its last birth (None: only syncs so far)."""

    name: str
    online: bool
    epoch: int
    presence: Presence | None = None
    #: an operator has drained it
    drained: bool = False
    #: the cluster's own view of it; None: the cluster does not know it
    registered: RegisteredNode | None = None

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels, and its name under Kubernetes' label for host names."""
        birth_labels = self.presence.labels if self.presence else {}
        return {HOSTNAME: self.name, **birth_labels, **(self.registered.labels if self.registered else {})}

    @property
    def unready(self) -> str:
        """Why the cluster does not reach it, or takes it as not ready; empty where there is no cluster."""
        return self.registered.unready if self.registered else ""

    @property
    def controlled(self) -> bool:
        """Whether its local controller was ever connected."""
        return self.presence is not None or self.epoch > 0


@dataclass(frozen=True, slots=True)
class Change:
    """The change by a presence or a sync."""

    online: bool = False
    labels: bool = False
    ready: bool = False


NOTHING = Change()
#: the latest store identities that are remembered for one name
STORES = 4


class Nodes(Mapping[str, Node]):
    """All nodes that were ever seen and not removed."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._by_label: dict[tuple[str, str], set[str]] = {}
        self._dirty: set[str] = set()
        self._doubtful: dict[str, Presence] = {}
        self._unconfirmed: set[str] = set()
        self._stores: dict[str, list[str]] = {}
        self._drained_names: set[str] = set()
        self._registered: dict[str, RegisteredNode] = {}

    def __getitem__(self, name: str) -> Node:
        return self._nodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def is_online(self, name: str) -> bool:
        """Whether a node is online."""
        node = self._nodes.get(name)
        return node is not None and node.online

    def restore(self, presence: Presence) -> None:
        """Add a node from GM's store, in the stored state."""
        self._put(Node(presence.node, presence.online, presence.epoch, presence))

    def register(self, name: str, node: RegisteredNode | None) -> Change:
        """Set the cluster's view of a node; None: the cluster no longer knows it."""
        if node is not None:
            self._registered[name] = node
        elif self._registered.pop(name, None) is None:
            return NOTHING
        old = self._nodes.get(name) or Node(name, online=False, epoch=0)
        if node is None and not old.controlled:
            self.remove(name)
            return Change(labels=True)
        return self._put(old)

    def is_drained(self, name: str) -> bool:
        """Whether a node, known or not yet, is drained."""
        return name in self._drained_names

    def set_drained(self, name: str, *, drained: bool) -> Change:
        """Mark a node as drained, or as uncordoned."""
        (self._drained_names.add if drained else self._drained_names.discard)(name)
        node = self._nodes.get(name)
        return self._put(node) if node else NOTHING

    def process_presence(self, presence: Presence, *, retained: bool = False) -> Change:
        """Process a birth or will. A node that only a retained birth shows is unconfirmed.

        A retained birth of a connection that has ended since changes nothing.
        """
        old = self._nodes.get(presence.node)
        if old is not None and presence.epoch < old.epoch:
            # an outdated message, which proves nothing, or a node that lost its epoch: then its sync has the new one
            self._doubtful[presence.node] = presence
            return NOTHING
        self._doubtful.pop(presence.node, None)
        if not (retained and presence.online):
            self._unconfirmed.discard(presence.node)
        elif old is None or presence.epoch > old.epoch:
            self._unconfirmed.add(presence.node)
        else:
            presence = msgspec.structs.replace(presence, online=old.online)
        if old is not None and old.online and old.epoch == presence.epoch and old.presence == presence:
            return NOTHING  # a repeated birth: nothing is computed or stored
        previous = old.presence if old else None
        # a will need not repeat the content of the birth
        birth = previous if previous is not None and not presence.online else presence
        self._dirty.add(presence.node)
        return self._put(Node(presence.node, presence.online, presence.epoch, birth))

    def is_duplicate(self, birth: Presence) -> bool:
        """Whether a birth proves that two LCs use that name: a store's birth arrives again after another store's.

        A node that lost its store gets a new one, but then the old one never returns. Wills prove nothing: the will of
        an old connection may arrive at any time.
        """
        stores = self._stores.setdefault(birth.node, [])
        if not birth.store or stores[-1:] == [birth.store]:
            return False
        again = birth.store in stores
        self._stores[birth.node] = [*(store for store in stores if store != birth.store), birth.store][-STORES:]
        return again

    def process_sync(self, name: str, epoch: int) -> Change:
        """Record that the sender of a sync is online with that epoch, even a lower one (its store may be new)."""
        old = self._nodes.get(name) or Node(name, online=False, epoch=epoch)
        self._unconfirmed.discard(name)
        self._dirty.add(name)
        birth = self._doubtful.pop(name, None)
        if birth is not None and birth.epoch == epoch:
            return self._put(replace(old, online=True, epoch=epoch, presence=birth))
        return self._put(replace(old, online=True, epoch=epoch))

    def confirm(self, name: str, epoch: int) -> None:
        """Record a report that was sent on the connection with that epoch, and that no broker has retained.

        It takes a node out of doubt but brings back none: a report may be processed after the will.
        """
        node = self._nodes.get(name)
        if node is not None and node.epoch == epoch:
            self._unconfirmed.discard(name)

    def doubt(self) -> None:
        """Mark all online nodes as unconfirmed: GM was disconnected and may have missed wills."""
        self._unconfirmed = {name for name, node in self._nodes.items() if node.online}

    def is_unconfirmed(self, name: str) -> bool:
        """Whether a node is shown as online and has sent no message since that was in doubt."""
        return name in self._unconfirmed

    def list_unconfirmed(self) -> list[str]:
        """Return the unconfirmed nodes that have sent no message since."""
        return sorted(self._unconfirmed)

    def set_offline(self, name: str) -> Change:
        """Mark a node that did not appear as offline."""
        self._unconfirmed.discard(name)
        self._dirty.add(name)
        return self._put(replace(self._nodes[name], online=False))

    def remove(self, name: str) -> None:
        """Forget a node, as if it had never been seen."""
        node = self._nodes.pop(name)
        for item in _index_labels(node):
            self._discard(item, name)
        self._dirty.discard(name)
        self._drained_names.discard(name)
        self._unconfirmed.discard(name)
        self._doubtful.pop(name, None)
        self._stores.pop(name, None)

    def has_labels(self, name: str) -> bool:
        """Whether the birth of the node's present connection, which has its labels, has arrived.

        A drained node needs no labels, because nothing is placed there. The cluster's labels suffice as well.
        """
        node = self._nodes.get(name)
        if node is None or node.drained or node.registered is not None:
            return node is not None
        return node.presence is not None and node.presence.epoch >= node.epoch

    def match(self, selector: Mapping[str, str]) -> Collection[str]:
        """Return the nodes that have all labels of a non-empty selector, without the drained ones."""
        sets = sorted((self._by_label.get(item, set()) for item in selector.items()), key=len)
        return set.intersection(*sets) if sets else ()

    def take_dirty(self) -> tuple[Presence, ...]:
        """Return the nodes that changed since the last call, to be stored."""
        names, self._dirty = self._dirty, set()
        nodes = [self._nodes[name] for name in names]
        return tuple(msgspec.structs.replace(n.presence, online=n.online) for n in nodes if n.presence)

    def put_back(self, presences: Iterable[Presence]) -> None:
        """Mark these as changed again: they could not be stored."""
        self._dirty |= {presence.node for presence in presences} & self._nodes.keys()

    def _put(self, node: Node) -> Change:
        old = self._nodes.get(node.name)
        node = replace(node, drained=node.name in self._drained_names, registered=self._registered.get(node.name))
        self._nodes[node.name] = node
        before = set(_index_labels(old)) if old else set()
        after = set(_index_labels(node))
        for item in before - after:
            self._discard(item, node.name)
        for item in after - before:
            self._by_label.setdefault(item, set()).add(node.name)
        appeared = old is None and node.registered is not None
        return Change(
            online=node.online != (old is not None and old.online),
            labels=before != after or appeared,
            ready=node.unready != (old.unready if old else ""),
        )

    def _discard(self, item: tuple[str, str], name: str) -> None:
        self._by_label[item].discard(name)
        if not self._by_label[item]:
            del self._by_label[item]


def _index_labels(node: Node) -> Iterable[tuple[str, str]]:
    """Return the labels by which selectors find a node: none of a drained one."""
    return () if node.drained else node.labels.items()
