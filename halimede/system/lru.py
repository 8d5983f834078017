"""A bounded cache of recent keys, such as for deduplication."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """At most ``limit`` keys with their values. A new key beyond that evicts the least recently used one.

    ``get`` and ``put`` use a key; ``in`` does not.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: OrderedDict[K, V] = OrderedDict()

    def __contains__(self, key: K) -> bool:
        return key in self._items

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: K) -> V | None:
        """Return the value of a key; None if it is not cached."""
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def put(self, key: K, value: V) -> None:
        """Cache a value, in place of the key's earlier one if there is one."""
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._limit:
            self._items.popitem(last=False)

    def pop(self, key: K) -> V | None:
        """Remove a key and return its value; None if it is not cached."""
        return self._items.pop(key, None)
