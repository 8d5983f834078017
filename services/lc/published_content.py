"""The content of the Models and Datasets that this node copies from other nodes (``PublishedContent``).

GM publishes the digests in the statuses of these resources. They are stored, so that a node that starts without GM or
broker knows which content its copies have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from halimede import topics
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.errors import BusError, InvalidFieldError
from halimede.messages import StatusDocument
from halimede.names import Key
from halimede.system.files import write_atomic
from halimede.topic import Filter

log = structlog.get_logger()


class PublishedFile(Struct, frozen=True):
    """The content of a resource: the SHA-256 of a Model's file, or of the list of a Dataset's files.

    ``uid`` and ``generation``: the resource's life, and the version of its spec.
    """

    uid: str
    generation: int
    digest: str


class PublishedContent:
    """The content of the resources of ``set_required``: ``load`` reads what was stored, ``run`` follows the statuses.

    ``path``: the file with the stored content.

    Attributes:
        files: the known content, by resource.

    """

    def __init__(self, bus: Bus, path: Path) -> None:
        self.files: dict[Key, PublishedFile] = {}
        self._bus = bus
        self._path = path
        self._changed: Callable[[], None] = _nothing
        #: resources that shall be followed, and those whose status topic is subscribed
        self._required: set[Key] = set()
        self._followed: set[Key] = set()
        self._wake = asyncio.Event()
        #: names of the nodes that have each resource, or will
        self._peers: dict[Key, frozenset[str]] = {}

    def load(self) -> None:
        """Read the stored content. A damaged file counts as missing: GM's statuses bring the content again."""
        if not self._path.exists():
            return
        try:
            stored = msgspec.json.decode(self._path.read_bytes(), type=dict[str, PublishedFile])
            self.files = {Key.parse(text): file for text, file in stored.items()}
        except (OSError, msgspec.DecodeError, InvalidFieldError) as error:
            log.warning("published content not readable", path=str(self._path), error=str(error))

    def peers(self, key: Key) -> Collection[str]:
        """Return the names of the online nodes that have a resource or prepare it, by GM's last status."""
        return self._peers.get(key, frozenset())

    def set_required(self, keys: Collection[Key]) -> None:
        """Follow exactly these resources from now on."""
        if self._required != set(keys):
            self._required = set(keys)
            self._wake.set()

    async def run(self, changed: Callable[[], None]) -> None:
        """Subscribe to the statuses of required resources, until cancelled; call ``changed`` after each new content."""
        self._changed = changed
        while True:
            await self._wake.wait()
            self._wake.clear()
            for key in self._followed - self._required:
                self._followed.discard(key)
                self._peers.pop(key, None)
                if self.files.pop(key, None):
                    self._store()
                await self._bus.unsubscribe(_status(key))
            for key in sorted(self._required - self._followed):
                self._followed.add(key)
                try:
                    await self._bus.subscribe(_status(key), self._on_status, queue=1)
                except BusError as error:
                    log.warning("status not readable: the node cannot copy files", key=str(key), error=str(error))

    async def _on_status(self, delivery: Delivery[StatusDocument]) -> None:
        """Read nodes and content in a status that GM publishes."""
        document, names = delivery.body, delivery.names
        key, status = Key(names["plural"], names["ns"], names["name"]), document.status
        self._peers[key] = frozenset(node.node for node in status.nodes if node.online and node.phase != "Failed")
        digest = status.dataset.listing if status.dataset else status.model.digest if status.model else ""
        file = PublishedFile(document.uid, status.observed_generation, digest)
        if digest and self.files.get(key) != file:
            self.files[key] = file
            self._store()
            self._changed()

    def _store(self) -> None:
        """Write the known content to the file; a failure is only logged."""
        data = msgspec.json.encode({str(key): file for key, file in self.files.items()}, order="sorted")
        try:
            write_atomic(self._path, data)
        except OSError as error:
            log.warning("published content not stored", path=str(self._path), error=error.strerror)


def _nothing() -> None:
    """Do nothing: nobody waits for the content yet."""


def usable_digest(files: Mapping[Key, PublishedFile], key: Key, uid: str, generation: int) -> str:
    """Return the digest of a resource's content; empty: it is unknown for this uid and generation."""
    file = files.get(key)
    return file.digest if file and file.uid == uid and file.generation >= generation else ""


def _status(key: Key) -> Filter[StatusDocument]:
    """Return the filter of the topic with a resource's status."""
    return topics.STATUS.filter(ns=key.namespace, plural=key.plural, name=key.name)
