"""Who has which key. Two groups have JointInferenceServices, so two objects may claim one key: the older one has it,
the other waits. What cannot be read stands aside and claims nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from halimede.names import Key
from services.gm.cluster.kubernetes.informer import Item
from services.gm.cluster.kubernetes.objects import Custom
from services.gm.cluster.port import Stored


class Claims:
    """What the informers of all kinds hold. ``announce`` hears which key to look at; ``aside`` of each object that
    waits or cannot be read (key and uid): nobody else takes care of it.
    """

    def __init__(self, announce: Callable[[Key], None], aside: Callable[[tuple[Key, str]], None]) -> None:
        self._announce = announce
        self._aside = aside
        #: of each key all claimants, by uid
        self._objects: dict[Key, dict[str, Custom]] = {}
        #: of each key those that can be read, the one that has it first
        self._order: dict[Key, tuple[Stored, ...]] = {}

    def changed(self, old: Item[Custom] | None, new: Item[Custom] | None, ours: bool) -> None:  # noqa: FBT001
        """Take in a difference (see ``Informer``). What we did ourselves is no reason to look again."""
        of = new or old
        if of is None:
            return
        key = of.value.key
        objects = self._objects.setdefault(key, {})
        before = self._order.get(key, ())
        if new is None:
            objects.pop(of.uid, None)
        else:
            objects[of.uid] = new.value
        readable = sorted((o for o in objects.values() if o.stored), key=lambda o: (o.created, o.uid))
        self._order[key] = tuple(o.stored for o in readable if o.stored)
        if not objects:
            del self._objects[key], self._order[key]
        if ours and [s.uid for s in before] == [s.uid for s in self._order.get(key, ())]:
            return
        self._announce(key)
        for uid in objects:
            if self.aside(key, uid):
                self._aside((key, uid))

    def get(self, key: Key) -> Stored | None:
        """Return the resource that has the key."""
        order = self._order.get(key)
        return order[0] if order else None

    def seconds(self, key: Key) -> tuple[Stored, ...]:
        """Return those that wait for the key."""
        return self._order.get(key, ())[1:]

    def named(self, key: Key) -> Custom | None:
        """Return the one that has the key, else any that claims it."""
        objects, first = self._objects.get(key, {}), self.get(key)
        return objects[first.uid] if first else next(iter(objects.values()), None)

    def find(self, key: Key, uid: str) -> Custom | None:
        """Return one that claims the key, in whichever state it is."""
        return self._objects.get(key, {}).get(uid)

    def aside(self, key: Key, uid: str) -> Custom | None:
        """Return one that does not have the key, if that is so."""
        first = self.get(key)
        return None if first is not None and first.uid == uid else self.find(key, uid)

    def all(self, plural: str = "", namespace: str = "") -> Iterator[Stored]:
        """Return those that have their keys (of one kind, of one namespace)."""
        for key, order in self._order.items():
            if order and plural in {"", key.plural} and namespace in {"", key.namespace}:
                yield order[0]
