"""Who has which key. Two groups have JointInferenceServices, so two objects may claim one key: the older one has it,
the other waits. What cannot be read has its key nevertheless: a field that is wrong for an hour, or that only a newer
GM knows, must not hand what runs under that name to somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from halimede.names import Key
from services.gm.cluster.kubernetes.conversion import Custom
from services.gm.cluster.kubernetes.informer import CachedObject
from services.gm.cluster.port import StoredResource


class NameConflicts:
    """What the informers of all kinds hold. ``announce`` hears which key to look at; ``aside`` of each object that
    waits or cannot be read (key and uid): nobody else takes care of it.
    """

    def __init__(self, announce: Callable[[Key], None], aside: Callable[[tuple[Key, str]], None]) -> None:
        self._announce = announce
        self._aside = aside
        #: of each key all claimants, by uid
        self._objects: dict[Key, dict[str, Custom]] = {}
        #: the same, the one that has the key first
        self._order: dict[Key, tuple[Custom, ...]] = {}

    def changed(self, old: CachedObject[Custom] | None, new: CachedObject[Custom] | None, ours: bool) -> None:  # noqa: FBT001
        """Take in a difference (see ``Informer``). What we did ourselves is no reason to look again."""
        of = new or old
        if of is None:
            return
        key = of.value.key
        objects = self._objects.setdefault(key, {})
        before = [(each.uid, each.stored is None) for each in self._order.get(key, ())]
        if new is None:
            objects.pop(of.uid, None)
        else:
            objects[of.uid] = new.value
        order = self._order[key] = tuple(sorted(objects.values(), key=lambda each: (each.created, each.uid)))
        if not objects:
            del self._objects[key], self._order[key]
        if ours and before == [(each.uid, each.stored is None) for each in order]:
            return
        self._announce(key)
        for uid in objects:
            if self.aside(key, uid):
                self._aside((key, uid))

    def get(self, key: Key) -> StoredResource | None:
        """Return the resource that has the key, if it can be read."""
        first = self.first(key)
        return first.stored if first else None

    def seconds(self, key: Key) -> tuple[StoredResource, ...]:
        """Return those that wait for the key and can be read."""
        return tuple(each.stored for each in self._order.get(key, ())[1:] if each.stored)

    def first(self, key: Key) -> Custom | None:
        """Return the one that has the key, readable or not."""
        return next(iter(self._order.get(key, ())), None)

    def find(self, key: Key, uid: str) -> Custom | None:
        """Return one that claims the key, in whichever state it is."""
        return self._objects.get(key, {}).get(uid)

    def aside(self, key: Key, uid: str) -> Custom | None:
        """Return one that does not have the key or cannot be read, if that is so."""
        first = self.get(key)
        return None if first is not None and first.uid == uid else self.find(key, uid)

    def all(self, plural: str = "", namespace: str = "") -> Iterator[StoredResource]:
        """Return those that have their keys (of one kind, of one namespace)."""
        for key, order in self._order.items():
            if (stored := order[0].stored) and plural in {"", key.plural} and namespace in {"", key.namespace}:
                yield stored
