"""Carries out operators' orders to a source of files: store one of the operator's files, list files, remove one.

``BlobNode`` is the whole of a process that serves files. To store a file, it downloads the file from the operator like
any other: resumed, verified, and invisible until it is complete. Orders may be repeated: each is carried out once, and
answered each time.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from halimede import topics
from halimede.blobs.client import BlobClient
from halimede.blobs.download import BusOpener, with_fallback
from halimede.blobs.server import BUS, BlobServer, FairQueue, FileProvider, Find, of_cache
from halimede.blobs.uris import ANY, SCHEME, url
from halimede.bus.message import Delivery
from halimede.bus.port import Bus
from halimede.errors import BusError, HalimedeError, RefusedError, first_error, shorten_middle
from halimede.messages import BlobAnswer, BlobEntry, BlobOrder
from halimede.models import Cache, FetchError, fetch
from halimede.models.cache import Fetched, in_thread
from halimede.models.source_types import TransferLimits

log = structlog.get_logger()
#: most files in one list, waiting orders of one requester, waiting requesters, orders in the subscription's queue
MAX_LISTED, MAX_ORDERS, MAX_REQUESTERS, QUEUE_SIZE = 1000, 8, 64, 100


class StoreFullError(HalimedeError):
    """A file is too large for the space that is left in a store. The text says what to do."""


@dataclass(frozen=True, slots=True)
class ManagedCache:
    """A cache of files. ``max_bytes``: most bytes of all files; 0: no limit here, because others enforce one.

    ``removable``: users may remove files.
    """

    cache: Cache
    max_bytes: int = 0
    removable: bool = False

    async def store(self, opener: BusOpener, digest: str, size: int) -> Fetched:
        """Return a file of ``size`` bytes by its SHA-256, downloaded through ``opener`` if the cache lacks it.

        Raises StoreFullError, FetchError and BusError.
        """
        fetched = await self.cache.find(digest)
        if fetched is not None:
            return fetched
        used = sum((await in_thread(self.cache.digests)).values()) if self.max_bytes else 0
        if self.max_bytes and used + size > self.max_bytes:
            raise StoreFullError(
                f"{used + size} bytes would be more than its {self.max_bytes}: free space with `halimede blob delete`"
            )
        limits = TransferLimits(max_bytes=max(1, size))
        openers = {SCHEME: opener}
        fetched = await with_fallback(fetch, url(ANY, digest), "", self.cache, openers=openers, limits=limits)
        log.info("blob stored", digest=digest, size=fetched.size)
        return fetched


class BlobAdmin:
    """Carries out one order after another under a name on the bus (``gm``, ``lc.edge0``).

    The caller enters the bus, calls ``start`` once, and runs ``run``.
    """

    def __init__(self, bus: Bus, name: str, store: ManagedCache, client: BlobClient) -> None:
        self._bus = bus
        self._name = name
        self._store = store
        self._client = client
        self._orders: FairQueue[Delivery[BlobOrder]] = FairQueue(per_asker=MAX_ORDERS, askers=MAX_REQUESTERS)
        #: requester, operation and digest of the order in progress; None: there is none
        self._running: tuple[str, str, str] | None = None

    async def start(self) -> None:
        """Subscribe to orders for this name. Raises RefusedError."""
        await self._bus.subscribe(topics.BLOB_ORDER.filter(source=self._name), self._on_order, queue=QUEUE_SIZE)

    async def run(self) -> None:
        """Carry out orders, one after another, until cancelled."""
        while True:
            delivery = await self._orders.take()
            asker, order = delivery.names["asker"], delivery.body
            self._running = (asker, order.op, order.digest)
            try:
                answer = await self._carry_out(asker, order)
            except (FetchError, OSError) as error:
                answer = BlobAnswer(outcome="refused", message=shorten_middle(str(error), 4096))
            except Exception:
                log.exception("blob transfer failed", asker=asker, op=order.op)
                answer = BlobAnswer(outcome="refused", message="it failed, by an error in the store: see its log")
            self._running = None
            await self._publish(delivery, answer)

    async def _on_order(self, delivery: Delivery[BlobOrder]) -> None:
        """Queue an order, unless it is in progress; refuse it if too many are waiting."""
        asker, order = delivery.names["asker"], delivery.body
        key = (asker, order.op, order.digest)
        if key != self._running and not self._orders.put(asker, key[1:], delivery):
            refusal = BlobAnswer(outcome="refused", message="too many orders are waiting: try again later")
            await self._publish(delivery, refusal)

    async def _publish(self, delivery: Delivery[BlobOrder], answer: BlobAnswer) -> None:
        """Answer an order; without a connection the operator repeats it."""
        address = topics.BLOB_ANSWER.at(asker=delivery.names["asker"], source=self._name)
        try:
            await self._bus.publish(address, answer, correlation=delivery.packet.correlation)
        except BusError as error:
            log.info("blob transfer not answered", asker=delivery.names["asker"], error=str(error))

    async def _carry_out(self, asker: str, order: BlobOrder) -> BlobAnswer:
        """Return the answer to an order after it was carried out. Raises FetchError, OSError and BusError."""
        if order.op == "list":
            return await in_thread(self._list, order.after)
        if not order.digest:
            return BlobAnswer(outcome="refused", message=f"{order.op}: name a digest")
        return await (self._keep(asker, order) if order.op == "keep" else in_thread(self._remove, order.digest))

    async def _keep(self, asker: str, order: BlobOrder) -> BlobAnswer:
        """Store a file that the requester has; return the answer. Raises FetchError, OSError and BusError."""
        try:
            stored = await self._store.store(BusOpener(self._client, [asker]), order.digest, order.size)
        except StoreFullError as error:
            return BlobAnswer(outcome="refused", message=str(error))
        return BlobAnswer(outcome="kept", size=stored.size)

    def _list(self, after: str) -> BlobAnswer:
        """Return the first MAX_LISTED files whose digests are behind ``after``, in their order, with their bytes."""
        cache = self._store.cache
        digests = sorted(digest for digest in cache.digests() if digest > after and cache.may_have(BUS, digest))
        blobs = []
        for digest in digests[:MAX_LISTED]:
            try:
                blobs.append(BlobEntry(digest=digest, size=cache.path(digest).stat().st_size))
            except FileNotFoundError:  # evicted just now
                continue
        return BlobAnswer(outcome="listed", blobs=blobs, truncated=len(digests) > MAX_LISTED)

    def _remove(self, digest: str) -> BlobAnswer:
        """Remove a file, if users may and nothing uses it; return the answer."""
        if not self._store.removable:
            return BlobAnswer(outcome="refused", message="a node removes unused files itself when it needs space")
        if not self._store.cache.path(digest).exists():
            return BlobAnswer(outcome="refused", message=f"sha256:{digest} is not here: see `halimede blob list`")
        if not self._store.cache.remove(digest):
            return BlobAnswer(outcome="refused", message=f"sha256:{digest} is in use: try again later")
        log.info("blob removed", digest=digest)
        return BlobAnswer(outcome="removed")


class BlobNode:
    """A process's part that serves and requests files. Takes a bus that is not entered yet; ``run`` it until cancelled.

    ``name``: the name on the bus (``gm``, ``lc.edge0``). ``store``: the cache whose files are served. ``find``: finds
    files to serve in addition to those of the cache; None: there are none.

    Attributes:
        opener: the fetcher's opener for ``bus://``. While ``run`` does not run, it fails as without a broker.

    """

    def __init__(self, bus: Bus, name: str, store: ManagedCache, find: Find | None = None) -> None:
        self.bus = bus
        self.store = store
        self.client = BlobClient(bus, name)
        finders = [find, of_cache(store.cache)] if find else [of_cache(store.cache)]
        #: serves the files of this process
        self.source = BlobServer(bus, name, FileProvider(finders))
        self.opener = BusOpener(self.client)
        self._admin = BlobAdmin(bus, name, store, self.client)

    async def run(self) -> None:
        """Serve, request and store files until cancelled. If the broker's rules refuse that, log it and only wait."""
        async with self.bus:
            try:
                for component in (self.client, self.source, self._admin):
                    await component.start()
            except RefusedError as error:
                event = "blobs not available: the broker's access rules are older than this version"
                log.warning(event, error=str(error))
                await asyncio.get_running_loop().create_future()
            with first_error():
                async with asyncio.TaskGroup() as group:
                    group.create_task(self.source.run(), name="blob source")
                    group.create_task(self._admin.run(), name="blob admin")
