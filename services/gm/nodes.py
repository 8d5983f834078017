"""The nodes that GM knows (``Nodes``): which are online, their labels, and which match a selector.

A node's local controller publishes its presence as a retained message: a birth when it connects, and a will, which the
broker publishes when the connection ends. Each connection has a number, the epoch, which grows. A sync is a message
with the list of what the node holds.

Three rules exclude outdated messages. A birth or will with a lower epoch is ignored. A sync proves that its sender is
online, because the broker never retains it. A retained birth proves nothing, because it may have outlived its node: the
node is unconfirmed until it sends a sync, a new birth, or a report on its present connection.

An offline node keeps its resources: only a user can decide that it will not return. A user may drain a node: the mark
does not depend on its connection, and no selector matches the node. On Kubernetes the cluster has nodes as well
(``register``): such a node may have no local controller, and its labels are those of both.
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
    """A node as GM knows it.

    Attributes:
        name: unique on the broker.
        online: whether its local controller is connected.
        epoch: number of the local controller's latest connection; 0: there was none.
        presence: the last birth, or a will if GM knows no birth; None: only syncs so far, or no local controller.
        drained: whether a user has drained it.
        registered: the node in the Kubernetes cluster; None: it is not there, or there is no such cluster.

    """

    name: str
    online: bool
    epoch: int
    presence: Presence | None = None
    drained: bool = False
    registered: RegisteredNode | None = None

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of its birth and of the cluster, and its name under Kubernetes' label for host names."""
        birth_labels = self.presence.labels if self.presence else {}
        return {HOSTNAME: self.name, **birth_labels, **(self.registered.labels if self.registered else {})}

    @property
    def unready(self) -> str:
        """Why Kubernetes takes it as not ready, such as not reached; empty: it is ready, or not in a cluster."""
        return self.registered.unready if self.registered else ""

    @property
    def controlled(self) -> bool:
        """Whether its local controller was ever connected."""
        return self.presence is not None or self.epoch > 0


@dataclass(frozen=True, slots=True)
class Change:
    """What an event has changed of a node.

    Attributes:
        online: whether it came online or went offline.
        labels: whether selectors find it by other labels than before, or it is new in the cluster or was removed.
        ready: whether Kubernetes takes it as ready again, or as not ready for a new reason.

    """

    online: bool = False
    labels: bool = False
    ready: bool = False


#: no change
NOTHING = Change()
#: most store identities that are remembered for one node name, the latest
STORES = 4


class Nodes(Mapping[str, Node]):
    """A mapping from names to all nodes that were ever seen and not removed.

    Messages of nodes and of the cluster change it. Most methods that process one return what has changed (``Change``).
    """

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        #: names of nodes by label (key, value), so that no selector walks over all nodes
        self._by_label: dict[tuple[str, str], set[str]] = {}
        #: names of nodes that have changed since ``take_dirty``
        self._dirty: set[str] = set()
        #: presences that were ignored for their epoch, by node: a sync with that epoch makes them valid
        self._doubtful: dict[str, Presence] = {}
        #: online nodes that have sent nothing that proves it since GM's last connection
        self._unconfirmed: set[str] = set()
        #: identities of the stores of local controllers that had a name, the latest last
        self._stores: dict[str, list[str]] = {}
        #: names that users have drained, known or not
        self._drained_names: set[str] = set()
        #: the nodes of the Kubernetes cluster
        self._registered: dict[str, RegisteredNode] = {}

    def __getitem__(self, name: str) -> Node:
        return self._nodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def is_online(self, name: str) -> bool:
        """Whether a node is online; False for an unknown one."""
        node = self._nodes.get(name)
        return node is not None and node.online

    def restore(self, presence: Presence) -> None:
        """Add a node from GM's store. Called before any message of nodes is processed."""
        self._put(Node(presence.node, presence.online, presence.epoch, presence))

    def register(self, name: str, node: RegisteredNode | None) -> Change:
        """Set a node as the Kubernetes cluster has it; None: it was deleted there.

        A deleted node that never had a local controller is removed, with its drain mark.
        """
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
        """Whether a user has drained a node, whether GM knows the node or not."""
        return name in self._drained_names

    def set_drained(self, name: str, *, drained: bool) -> Change:
        """Mark a node as drained, or remove the mark; GM need not know the node yet."""
        (self._drained_names.add if drained else self._drained_names.discard)(name)
        node = self._nodes.get(name)
        return self._put(node) if node else NOTHING

    def process_presence(self, presence: Presence, *, retained: bool = False) -> Change:
        """Process a birth or will. ``retained``: the broker sends it because GM has subscribed, however old it is.

        A retained birth of a connection that GM does not know yet makes the node unconfirmed; one of a known connection
        does not change whether the node is online. A message of an earlier connection is ignored.
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
        """Whether a birth proves that two local controllers use one name; its store's identity is remembered.

        Call it for each birth, not for wills: the will of an old connection may arrive at any time. The proof is a
        birth with a store's identity that returns after another one. A node that lost its store gets a new identity,
        but then the old identity never returns.
        """
        stores = self._stores.setdefault(birth.node, [])
        if not birth.store or stores[-1:] == [birth.store]:
            return False
        again = birth.store in stores
        self._stores[birth.node] = [*(store for store in stores if store != birth.store), birth.store][-STORES:]
        return again

    def process_sync(self, name: str, epoch: int) -> Change:
        """Record that the sender of a sync is online with an epoch, even a lower one: its store may be new."""
        old = self._nodes.get(name) or Node(name, online=False, epoch=epoch)
        self._unconfirmed.discard(name)
        self._dirty.add(name)
        birth = self._doubtful.pop(name, None)
        presence = birth if birth is not None and birth.epoch == epoch else old.presence
        return self._put(replace(old, online=True, epoch=epoch, presence=presence))

    def confirm(self, name: str, epoch: int) -> None:
        """Record that a report, not retained, was sent on the connection with an epoch: the node is confirmed.

        A node that is offline stays offline: the report may be processed after the will.
        """
        node = self._nodes.get(name)
        if node is not None and node.epoch == epoch:
            self._unconfirmed.discard(name)

    def doubt(self) -> None:
        """Mark all online nodes as unconfirmed: GM was disconnected, and may have missed wills."""
        self._unconfirmed = {name for name, node in self._nodes.items() if node.online}

    def is_unconfirmed(self, name: str) -> bool:
        """Whether a node counts as online, and has sent nothing that proves it."""
        return name in self._unconfirmed

    def list_unconfirmed(self) -> list[str]:
        """Return the names of unconfirmed nodes, sorted."""
        return sorted(self._unconfirmed)

    def set_offline(self, name: str) -> Change:
        """Mark a known node as offline, because it did not confirm that it is online."""
        self._unconfirmed.discard(name)
        self._dirty.add(name)
        return self._put(replace(self._nodes[name], online=False))

    def remove(self, name: str) -> None:
        """Forget a known node and its drain mark, as if it had never been seen."""
        for item in _index_labels(self._nodes.pop(name)):
            self._discard(item, name)
        self._dirty.discard(name)
        self._drained_names.discard(name)
        self._unconfirmed.discard(name)
        self._doubtful.pop(name, None)
        self._stores.pop(name, None)

    def has_labels(self, name: str) -> bool:
        """Whether the labels of a node's present connection are known, so that resources can be placed there.

        Its birth brings them; those of the Kubernetes cluster suffice as well. A drained node needs none, because
        nothing is placed there. False for an unknown node.
        """
        node = self._nodes.get(name)
        if node is None or node.drained or node.registered is not None:
            return node is not None
        return node.presence is not None and node.presence.epoch >= node.epoch

    def match(self, selector: Mapping[str, str]) -> Collection[str]:
        """Return the names of nodes with all labels of a selector, without drained ones; none for an empty selector."""
        sets = sorted((self._by_label.get(item, set()) for item in selector.items()), key=len)
        return set.intersection(*sets) if sets else ()

    def take_dirty(self) -> tuple[Presence, ...]:
        """Return the births of nodes that have changed since the last call, to be stored."""
        names, self._dirty = self._dirty, set()
        nodes = [self._nodes[name] for name in names]
        return tuple(msgspec.structs.replace(n.presence, online=n.online) for n in nodes if n.presence)

    def put_back(self, presences: Iterable[Presence]) -> None:
        """Mark the nodes of presences as changed again: the presences could not be stored."""
        self._dirty |= {presence.node for presence in presences} & self._nodes.keys()

    def _put(self, node: Node) -> Change:
        """Set a node, with its marks and its labels in the index; return what that changes."""
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
        """Remove a node from the index at a label."""
        self._by_label[item].discard(name)
        if not self._by_label[item]:
            del self._by_label[item]


def _index_labels(node: Node) -> Iterable[tuple[str, str]]:
    """Return the labels by which selectors find a node: none of a drained one."""
    return () if node.drained else node.labels.items()
