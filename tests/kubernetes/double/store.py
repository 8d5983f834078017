"""What is kept: the newest version of every object, and how it came about, for as long as the history reaches.

Versions are never edited, so one encoding serves every reader and every watcher.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec

Storage = tuple[str, str]
Name = tuple[str, str]
#: as many events of one resource are kept as the real server keeps at the most
HISTORY = 102_400
_encode = msgspec.json.Encoder().encode


class Version:
    """One state of one object. Its body must not be edited: ``copy()`` it."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        self.rv = int(body["metadata"]["resourceVersion"])
        self._forms: dict[Any, bytes] = {}

    @property
    def metadata(self) -> dict[str, Any]:
        return self.body["metadata"]

    @property
    def name(self) -> Name:
        """Namespace (may be empty) and name."""
        return self.metadata.get("namespace", ""), self.metadata["name"]

    @cached_property
    def data(self) -> bytes:
        return _encode(self.body)

    def form(self, key: Any, make: Callable[[Version], Any]) -> bytes:
        """Return the JSON of another form of it, made once."""
        data = self._forms.get(key)
        if data is None:
            data = self._forms[key] = _encode(make(self))
        return data

    def copy(self) -> dict[str, Any]:
        """Return a body that may be edited."""
        body: dict[str, Any] = msgspec.json.decode(self.data)
        return body


class Event:
    """One change: from nothing, to nothing, or from one version to the next."""

    __slots__ = ("lines", "new", "old", "rv")

    def __init__(self, rv: int, old: Version | None, new: Version | None) -> None:
        self.rv = rv
        self.old = old
        self.new = new
        #: encoded once for all watches of one form
        self.lines: dict[Any, bytes] = {}


class Watch:
    """The end of one client's watch."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.ready = asyncio.Event()

    def offer(self, event: Event) -> None:
        self.events.append(event)
        self.ready.set()


class Table:
    """All objects of one resource."""

    def __init__(self, floor: int) -> None:
        self.objects: dict[Name, Version] = {}
        self.history: deque[Event] = deque(maxlen=HISTORY)
        #: changes up to here may be forgotten
        self.floor = floor
        self.watches: set[Watch] = set()

    def since(self, rv: int) -> list[Event]:
        """Return what happened after a version that the history reaches."""
        found: list[Event] = []
        for event in reversed(self.history):
            if event.rv <= rv:
                break
            found.append(event)
        found.reverse()
        return found


class Store:
    """Objects by resource, one counter of versions for all of them, and who wants to hear of changes."""

    def __init__(self) -> None:
        self.rv = 1
        self._tables: dict[Storage, Table] = {}
        self.listeners: list[Callable[[Storage, Event], None]] = []

    def table(self, storage: Storage) -> Table:
        table = self._tables.get(storage)
        if table is None:
            table = self._tables[storage] = Table(self.rv)
        return table

    def drop(self, storage: Storage) -> None:
        self._tables.pop(storage, None)

    def get(self, storage: Storage, name: Name) -> Version | None:
        return self.table(storage).objects.get(name)

    def put(self, storage: Storage, body: dict[str, Any]) -> Version:
        """Keep a new version; its resourceVersion is set here."""
        self.rv += 1
        body["metadata"]["resourceVersion"] = str(self.rv)
        version = Version(body)
        table = self.table(storage)
        old = table.objects.get(version.name)
        table.objects[version.name] = version
        self._tell(storage, table, Event(self.rv, old, version))
        return version

    def remove(self, storage: Storage, name: Name, last: dict[str, Any] | None = None) -> None:
        """Forget an object. Watchers see its last state under the version of its removal."""
        self.rv += 1
        table = self.table(storage)
        gone = table.objects.pop(name)
        body = last if last is not None else gone.copy()
        body["metadata"]["resourceVersion"] = str(self.rv)
        self._tell(storage, table, Event(self.rv, Version(body), None))

    def _tell(self, storage: Storage, table: Table, event: Event) -> None:
        if len(table.history) == table.history.maxlen:
            table.floor = table.history[0].rv
        table.history.append(event)
        for watch in table.watches:
            watch.offer(event)
        for listener in self.listeners:
            listener(storage, event)

    def expire(self) -> None:
        """Forget all history: whoever asks for changes since an earlier version is told 410."""
        for table in self._tables.values():
            table.history.clear()
            table.floor = self.rv

    def at(self, storage: Storage, rv: int) -> dict[Name, Version] | None:
        """Return the objects as they were at a version; None: older than the history."""
        table = self.table(storage)
        if rv < table.floor:
            return None
        objects = dict(table.objects)
        for event in reversed(table.since(rv)):
            if event.new is not None and event.old is None:
                objects.pop(event.new.name, None)
            elif event.old is not None:
                objects[event.old.name] = event.old
        return objects
