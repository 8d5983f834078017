"""Keeps a cache of all objects of one kind in the Kubernetes API up to date (``Informer``): lists once, then watches.

A watch is a request whose response is a stream of changes. No change is lost when a watch breaks, ends silently or has
a version that is too old: either the watch continues from the last version, or a new list is compared with the cache.
Both give differences, so a missed event is only a late one. After errors it waits with growing pauses.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from halimede.system.backoff import exponential
from services.gm.cluster.kubernetes.api_paths import OPENED, ApiResource, Object
from services.gm.cluster.kubernetes.client import GoneError, KubernetesApiError, UnavailableError

log = structlog.get_logger()
T = TypeVar("T")

#: approximate seconds of one watch: shorter than the idle time after which proxies drop a connection
WATCH = 60.0
#: seconds between two failed attempts: at first, and at most
FIRST_PAUSE, LAST_PAUSE = 0.5, 10.0
#: seconds after which a watch counts as successful even without an event
WORTHWHILE = 5.0
#: most uids of deleted objects that are remembered
MAX_DELETED = 4096


class KubernetesSource(Protocol):
    """The methods of ``KubernetesClient`` that an informer uses. Both raise KubernetesApiError."""

    def pages(self, api: ApiResource, *, selector: str = "") -> AsyncIterator[tuple[list[Object], str]]:
        """Yield all objects page by page, with the version of the list. ``selector``: by labels; empty: all."""

    def watch(
        self, api: ApiResource, version: str, *, selector: str = "", seconds: float
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield (type, object): OPENED, then each change after ``version``, for about ``seconds``. Raises GoneError."""


@dataclass(frozen=True, slots=True)
class CachedObject(Generic[T]):
    """A cached object: its identity in the API, and what ``convert`` has returned for it.

    Attributes:
        namespace: empty for a kind without namespaces.
        name: within its namespace.
        uid: another one for each object of that name.
        version: the resource version, which each write changes.
        value: the object as the rest of GM uses it.

    """

    namespace: str
    name: str
    uid: str
    version: str
    value: T


#: receives the cached object before a change, after it, and whether GM itself made the change
Changed = Callable[[CachedObject[T] | None, CachedObject[T] | None, bool], None]


class Informer(Generic[T]):
    """Caches all objects of a kind, as ``convert`` returns them, while ``run`` runs; iterate over it for the objects.

    ``changed(old, new, ours)`` is called on each change. ``old`` None: the object is new; ``new`` None: it was deleted;
    if the name has another uid, it is called for both. ``ours``: whether GM made the change. ``selector``: by labels;
    empty: all objects. ``watch_s``: approximate seconds of one watch.
    """

    def __init__(
        self,
        source: KubernetesSource,
        api: ApiResource,
        convert: Callable[[Object], T],
        changed: Changed[T],
        *,
        selector: str = "",
        watch_s: float = WATCH,
    ) -> None:
        self.api = api
        #: set once all objects have been listed
        self.synced = asyncio.Event()
        #: why the cache is not up to date; empty when it is
        self.trouble = ""
        #: number of complete lists
        self.lists = 0
        self._source = source
        self._convert = convert
        self._changed = changed
        self._selector = selector
        self._watch_s = watch_s
        self._items: dict[tuple[str, str], CachedObject[T]] = {}
        # By uid. True: deleted for good, although a watch that lags may still report the object. False: the watch
        # reports it as deleted (or no longer selected), although a late response to a write may contain it.
        self._deleted: OrderedDict[str, bool] = OrderedDict()
        #: the version from which the next watch continues; empty: list first
        self._version = ""
        #: whether the present attempt has succeeded
        self._progress = False

    def __iter__(self) -> Iterator[CachedObject[T]]:
        return iter(self._items.values())

    def get(self, namespace: str, name: str) -> CachedObject[T] | None:
        """Return an object; None: it is not cached. ``namespace`` is empty for a kind without namespaces."""
        return self._items.get((namespace, name))

    async def run(self) -> None:
        """List and watch until cancelled."""
        failures, listing_anew = 0, False
        while True:
            self._progress, retry_after_s = False, 0.0
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except GoneError as error:
                self._version = ""
                self._report(str(error))
                if not listing_anew:  # not reported as trouble yet: an outage may only have lasted too long
                    listing_anew = True
                    continue
            except KubernetesApiError as error:
                retry_after_s = error.retry_after_s if isinstance(error, UnavailableError) else 0.0
                self._report(str(error))
            failures = 0 if self._progress else failures + 1
            listing_anew = listing_anew and not self._progress
            pause = exponential(failures, FIRST_PAUSE, LAST_PAUSE)
            await asyncio.sleep(max(pause * random.uniform(0.5, 1.0), retry_after_s))  # noqa: S311

    def learn(self, body: Object, before: str) -> None:
        """Cache the response to GM's own call, unless another change was cached meanwhile, or the object was deleted.

        ``before``: the version that was cached before the call; empty: the object was not cached.
        """
        item = self._item(body)
        old = self._items.get((item.namespace, item.name))
        if (old.version if old else "") == before and item.uid not in self._deleted:
            self._put(item.namespace, item.name, item, ours=True)

    def mark_deleted(self, namespace: str, name: str, uid: str) -> None:
        """Drop an object from the cache for good, although a watch that lags may still report it."""
        self._drop(namespace, name, uid, for_good=True)

    # --- list and watch ---------------------------------------------------------------------------------------

    async def _list(self) -> None:
        """List all objects, and cache the differences. Raises KubernetesApiError."""
        listed: dict[tuple[str, str], CachedObject[T]] = {}
        version = ""
        async with contextlib.aclosing(self._source.pages(self.api, selector=self._selector)) as pages:  # type: ignore[type-var]
            async for bodies, listed_at in pages:
                version = listed_at
                for body in bodies:
                    item = self._item(body)
                    listed[item.namespace, item.name] = item
        for namespace, name in [at for at in self._items if at not in listed]:
            self._put(namespace, name, None)
        for (namespace, name), item in listed.items():
            self._deleted.pop(item.uid, None)
            self._put(namespace, name, item)
        self._version = version
        self.lists += 1
        self._clear_trouble()
        self.synced.set()

    async def _watch(self) -> None:
        """Cache changes of one watch, until it ends. Raises KubernetesApiError."""
        began = asyncio.get_running_loop().time()
        seconds = self._watch_s * random.uniform(0.8, 1.2)  # noqa: S311
        events = self._source.watch(self.api, self._version, selector=self._selector, seconds=seconds)
        try:
            async with contextlib.aclosing(events):  # type: ignore[type-var]
                async for kind, body in events:
                    self._process(kind, body)
        finally:
            self._progress |= asyncio.get_running_loop().time() - began >= WORTHWHILE

    def _process(self, kind: str, body: Object) -> None:
        """Process one event of a watch."""
        if kind == OPENED:
            self._clear_trouble()
            return
        if kind in {"ADDED", "MODIFIED"}:
            item = self._item(body)
            if not self._deleted.get(item.uid):
                self._deleted.pop(item.uid, None)
                self._put(item.namespace, item.name, item)
        elif kind == "DELETED":
            metadata = body["metadata"]
            self._drop(metadata.get("namespace", ""), metadata["name"], metadata.get("uid", ""), for_good=False)
        elif kind != "BOOKMARK":
            return
        self._version = body["metadata"]["resourceVersion"]
        self._progress = True
        self._clear_trouble()

    # --- the objects ------------------------------------------------------------------------------------------

    def _item(self, body: Object) -> CachedObject[T]:
        """Return an object in the form of the cache; the cached one if it has not changed."""
        metadata = body["metadata"]
        namespace, name = metadata.get("namespace", ""), metadata["name"]
        uid, version = metadata.get("uid", ""), metadata.get("resourceVersion", "")
        cached = self._items.get((namespace, name))
        if cached is not None and cached.uid == uid and cached.version == version:
            return cached
        # the API omits version and kind of objects in lists
        body["apiVersion"], body["kind"] = self.api.version, self.api.kind
        return CachedObject(namespace, name, uid, version, self._convert(body))

    def _drop(self, namespace: str, name: str, uid: str, *, for_good: bool) -> None:
        """Remove an object from the cache, and remember its uid. ``for_good``: a watch that reports it is wrong."""
        self._deleted[uid] = for_good
        while len(self._deleted) > MAX_DELETED:
            self._deleted.popitem(last=False)
        old = self._items.get((namespace, name))
        if old is not None and old.uid == uid:
            self._put(namespace, name, None)

    def _put(self, namespace: str, name: str, new: CachedObject[T] | None, *, ours: bool = False) -> None:
        """Cache an object, or remove it (None), and call ``changed``."""
        old = self._items.get((namespace, name))
        if old is new:
            return
        if old is not None and new is not None and old.uid != new.uid:
            self._put(namespace, name, None)
            old = None
        if new is None:
            del self._items[namespace, name]
        else:
            self._items[namespace, name] = new
        self._changed(old, new, ours)

    def _report(self, trouble: str) -> None:
        """Set why the cache is not up to date; log it if it is new."""
        if trouble != self.trouble:
            log.warning("watch interrupted", kind=self.api.kind, group=self.api.version, error=trouble)
        self.trouble = trouble

    def _clear_trouble(self) -> None:
        """Set that the cache is up to date."""
        if self.trouble:
            log.info("watch restored", kind=self.api.kind, group=self.api.version)
        self.trouble = ""
