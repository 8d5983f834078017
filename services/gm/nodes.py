"""The nodes, from their presence: which are online, their labels, and which match a selector.

Two rules keep stale news out: a will or birth of an earlier connection (lower epoch) is ignored, and a sync, which
the broker never keeps, proves that its sender lives now. Labels are indexed, so that a selector costs no walk over
all nodes. A node that is away keeps what it was given: only a user can say that it is gone for good. One that is
drained is known by a mark of its own, which does not come and go with the node, and no selector finds it.

Where a cluster knows its nodes (``register``), one may be known without a local controller, and has its labels from
there as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from halimede.api.placement import HOSTNAME
from halimede.messages import Presence


@dataclass(frozen=True, slots=True)
class Node:
    """A node. ``epoch`` is that of its latest connection; ``presence`` its last birth (None: only a sync so far)."""

    name: str
    online: bool
    epoch: int
    presence: Presence | None = None
    #: an operator has asked for it to be empty
    drained: bool = False
    #: its labels as the cluster knows them; None: the cluster does not know it
    registered: Mapping[str, str] | None = None

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels, and its name under Kubernetes' own one."""
        return {HOSTNAME: self.name, **(self.presence.labels if self.presence else {}), **(self.registered or {})}

    @property
    def controlled(self) -> bool:
        """Whether a local controller was ever seen on it."""
        return self.presence is not None or self.epoch > 0


@dataclass(frozen=True, slots=True)
class Change:
    """What a presence or sync changed."""

    online: bool = False
    labels: bool = False


NOTHING = Change()
#: the latest stores under one name that are remembered
STORES = 4


class Nodes(Mapping[str, Node]):
    """All nodes that were ever seen and not removed since."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._by_label: dict[tuple[str, str], set[str]] = {}
        self._dirty: set[str] = set()
        self._doubtful: dict[str, Presence] = {}
        self._unconfirmed: set[str] = set()
        self._stores: dict[str, list[str]] = {}
        self._drained: set[str] = set()
        self._registered: dict[str, Mapping[str, str]] = {}

    def __getitem__(self, name: str) -> Node:
        return self._nodes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def online(self, name: str) -> bool:
        """Whether a node is there now."""
        node = self._nodes.get(name)
        return node is not None and node.online

    def restore(self, presence: Presence) -> None:
        """Take a node from GM's memory, as it was then."""
        self._put(Node(presence.node, presence.online, presence.epoch, presence))

    def register(self, name: str, labels: Mapping[str, str] | None) -> Change:
        """Take what the cluster says of a node; None: it knows it no more."""
        if labels is not None:
            self._registered[name] = labels
        elif self._registered.pop(name, None) is None:
            return NOTHING
        old = self._nodes.get(name) or Node(name, online=False, epoch=0)
        if labels is None and not old.controlled:
            self.remove(name)
            return Change(labels=True)
        return self._put(old)

    def drained(self, name: str) -> bool:
        """Whether a node, known or not yet, is to be empty."""
        return name in self._drained

    def mark(self, name: str, *, drained: bool) -> Change:
        """Have a node emptied, or let it be used again."""
        (self._drained.add if drained else self._drained.discard)(name)
        node = self._nodes.get(name)
        return self._put(node) if node else NOTHING

    def saw(self, presence: Presence) -> Change:
        """Take a birth or will."""
        old = self._nodes.get(presence.node)
        self._unconfirmed.discard(presence.node)
        if old is not None and presence.epoch < old.epoch:
            # old news, or a node that lost its count: then its sync will say so
            self._doubtful[presence.node] = presence
            return NOTHING
        self._doubtful.pop(presence.node, None)
        known = old.presence if old else None
        # a will need not repeat what the birth said
        told = known if known is not None and not presence.online else presence
        self._dirty.add(presence.node)
        return self._put(Node(presence.node, presence.online, presence.epoch, told))

    def doubled(self, birth: Presence) -> bool:
        """Whether a birth proves that two LCs go by that name: one speaks again after the other has spoken.

        A store that was lost is replaced by another one, too, but does not come back. Wills prove nothing: that of a
        connection long gone may come at any time.
        """
        stores = self._stores.setdefault(birth.node, [])
        if not birth.store or stores[-1:] == [birth.store]:
            return False
        again = birth.store in stores
        self._stores[birth.node] = [*(each for each in stores if each != birth.store), birth.store][-STORES:]
        return again

    def synced(self, name: str, epoch: int) -> Change:
        """Take the sender of a sync: it is there with that epoch, even a lower one (its own store may be new)."""
        old = self._nodes.get(name) or Node(name, online=False, epoch=epoch)
        self._unconfirmed.discard(name)
        self._dirty.add(name)
        birth = self._doubtful.pop(name, None)
        if birth is not None and birth.epoch == epoch:
            return self._put(replace(old, online=True, epoch=epoch, presence=birth))
        return self._put(replace(old, online=True, epoch=epoch))

    def doubt(self) -> None:
        """GM was away itself and may have missed wills: all nodes have to show that they are there."""
        self._unconfirmed = {name for name, node in self._nodes.items() if node.online}

    def unconfirmed(self) -> list[str]:
        """Return the doubted nodes of which nothing was heard since."""
        return sorted(self._unconfirmed)

    def lost(self, name: str) -> Change:
        """Take a node as gone that did not show itself."""
        self._unconfirmed.discard(name)
        self._dirty.add(name)
        return self._put(replace(self._nodes[name], online=False))

    def remove(self, name: str) -> None:
        """Forget a node, as if it had never been seen."""
        node = self._nodes.pop(name)
        for item in _offered(node):
            self._discard(item, name)
        self._dirty.discard(name)
        self._drained.discard(name)
        self._unconfirmed.discard(name)
        self._doubtful.pop(name, None)
        self._stores.pop(name, None)

    def described(self, name: str) -> bool:
        """Whether the birth of the node's present connection has arrived, and its labels with it.

        Of a drained node nothing needs to be known: nothing belongs there. The cluster's word does as well.
        """
        node = self._nodes.get(name)
        if node is None or node.drained or node.registered is not None:
            return node is not None
        return node.presence is not None and node.presence.epoch >= node.epoch

    def matching(self, selector: Mapping[str, str]) -> Collection[str]:
        """Return the nodes that have all labels of a non-empty selector, without the drained ones."""
        sets = sorted((self._by_label.get(item, set()) for item in selector.items()), key=len)
        return set.intersection(*sets) if sets else ()

    def take_dirty(self) -> tuple[Presence, ...]:
        """Return what changed since the last call, to be remembered."""
        names, self._dirty = self._dirty, set()
        nodes = [self._nodes[name] for name in names]
        return tuple(msgspec.structs.replace(n.presence, online=n.online) for n in nodes if n.presence)

    def put_back(self, presences: Iterable[Presence]) -> None:
        """Hand these out again: they could not be remembered."""
        self._dirty |= {presence.node for presence in presences} & self._nodes.keys()

    def _put(self, node: Node) -> Change:
        old = self._nodes.get(node.name)
        node = replace(node, drained=node.name in self._drained, registered=self._registered.get(node.name))
        self._nodes[node.name] = node
        before = set(_offered(old)) if old else set()
        after = set(_offered(node))
        for item in before - after:
            self._discard(item, node.name)
        for item in after - before:
            self._by_label.setdefault(item, set()).add(node.name)
        appeared = old is None and node.registered is not None
        return Change(online=node.online != (old is not None and old.online), labels=before != after or appeared)

    def _discard(self, item: tuple[str, str], name: str) -> None:
        self._by_label[item].discard(name)
        if not self._by_label[item]:
            del self._by_label[item]


def _offered(node: Node) -> Iterable[tuple[str, str]]:
    """Return the labels by which selectors find a node: a drained one hides them."""
    return () if node.drained else node.labels.items()
