"""Halimede's resources in the Kubernetes API (``CustomResources``): an informer (cache) for each kind, and the writes.

A key is plural, namespace and name. Two API groups have kinds with the same plural, so two objects may claim one key:
the older one has it (``NameConflicts``). GM does not reconcile an object that is not valid, or that waits for its key:
it only writes the reason into the status, and removes its finalizer so that the object can be deleted. A write names
the version that was read, so that it fails if the object was edited meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from halimede.messages import Status
from halimede.names import Key
from halimede.system.backoff import exponential
from services.gm.cluster.kubernetes.api_paths import Object, resources
from services.gm.cluster.kubernetes.client import KubernetesClient, NotFoundError, StaleError, refusals_for_users
from services.gm.cluster.kubernetes.conversion import Custom, custom, finalizer_patch, status_patch
from services.gm.cluster.kubernetes.informer import CachedObject, Informer
from services.gm.cluster.kubernetes.leader_election import Leadership, check_leading
from services.gm.cluster.port import FINALIZER, ConflictError, StoredResource, utc_now
from services.gm.controllers.base import is_same_status
from services.gm.service_status import Readiness, conclude
from services.gm.workqueue import WorkQueue, has_come

#: seconds between two attempts to write an object after a write conflict: at first, and at most
FIRST_PAUSE, LAST_PAUSE = 0.2, 8.0
#: reasons of objects that are not reconciled
INVALID, CONFLICT = "Invalid", "NameConflict"


class NameConflicts:
    """Decides which object has which key: the oldest one that claims it; others wait.

    An object that is not valid keeps its key: a field that is wrong for an hour, or that only a newer GM knows, must
    not give the running workers of that name to another object. ``announce`` is called with each key to reconcile,
    ``aside`` with key and uid of each object that waits or is not valid, because no controller handles those.
    """

    def __init__(self, announce: Callable[[Key], None], aside: Callable[[tuple[Key, str]], None]) -> None:
        self._announce = announce
        self._handle_unreconciled = aside
        #: all objects that claim a key, by uid
        self._objects: dict[Key, dict[str, Custom]] = {}
        #: the same objects in order; the first one has the key
        self._order: dict[Key, tuple[Custom, ...]] = {}

    def changed(self, old: CachedObject[Custom] | None, new: CachedObject[Custom] | None, ours: bool) -> None:  # noqa: FBT001
        """Process a change of an object: a ``Changed`` handler of an informer.

        GM's own changes announce nothing, unless they change the order or the validity of objects.
        """
        item = new or old
        if item is None:
            return
        key = item.value.key
        objects = self._objects.setdefault(key, {})
        before = [(claim.uid, claim.stored is None) for claim in self._order.get(key, ())]
        if new is None:
            objects.pop(item.uid, None)
        else:
            objects[item.uid] = new.value
        order = self._order[key] = tuple(sorted(objects.values(), key=lambda claim: (claim.created, claim.uid)))
        if not objects:
            del self._objects[key], self._order[key]
        if ours and before == [(claim.uid, claim.stored is None) for claim in order]:
            return
        self._announce(key)
        for uid in objects:
            if self.aside(key, uid):
                self._handle_unreconciled((key, uid))

    def get(self, key: Key) -> StoredResource | None:
        """Return the resource that has a key; None: there is none, or it is not valid."""
        first = self.first(key)
        return first.stored if first else None

    def namesakes(self, key: Key) -> tuple[StoredResource, ...]:
        """Return the valid resources that wait for a key, the oldest first."""
        return tuple(claim.stored for claim in self._order.get(key, ())[1:] if claim.stored)

    def first(self, key: Key) -> Custom | None:
        """Return the object that has a key, valid or not; None: there is none."""
        return next(iter(self._order.get(key, ())), None)

    def find(self, key: Key, uid: str) -> Custom | None:
        """Return the object of this uid that claims a key, valid or not; None: there is none."""
        return self._objects.get(key, {}).get(uid)

    def aside(self, key: Key, uid: str) -> Custom | None:
        """Return the object of this uid if it waits for its key or is not valid; else None."""
        first = self.get(key)
        return None if first is not None and first.uid == uid else self.find(key, uid)

    def all(self, plural: str = "", namespace: str = "") -> Iterator[StoredResource]:
        """Yield the valid resources that have their keys, all or only those of a kind (by plural) or of a namespace."""
        for key, order in self._order.items():
            if (stored := order[0].stored) and plural in {"", key.plural} and namespace in {"", key.namespace}:
                yield stored


class ConflictBackoff:
    """Delays writes of objects, by uid, after a write conflict: the cached version is outdated.

    Call ``end`` when an object has changed or was deleted, so that its entry is dropped.
    """

    def __init__(self) -> None:
        #: number of conflicts in a row, and the event loop's time of the end of the pause
        self._pauses: dict[str, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._pauses)

    def must_wait(self, uid: str) -> bool:
        """Whether an object's pause is not over yet."""
        return uid in self._pauses and not has_come(self._pauses[uid][1])

    def lengthen(self, uid: str) -> None:
        """Begin the next pause, twice as long as the last one, at most ``LAST_PAUSE``."""
        failures = self._pauses.get(uid, (0, 0.0))[0] + 1
        due = asyncio.get_running_loop().time() + exponential(failures, FIRST_PAUSE, LAST_PAUSE)
        self._pauses[uid] = failures, due

    def end(self, uid: str) -> None:
        """End the pause: the next write is sent at once."""
        self._pauses.pop(uid, None)


class CustomResources:
    """The resources of all kinds, with their informers and writes; the caller runs ``informers`` and ``unhandled``.

    ``announce`` is called with each key to reconcile; ``report`` with the reason, the object and a message when an
    object is not reconciled. Writes raise KubernetesApiError, and NotLeadingError if another GM may lead.
    """

    def __init__(
        self,
        client: KubernetesClient,
        leadership: Leadership,
        announce: Callable[[Key], None],
        report: Callable[[str, Custom, str], None],
    ) -> None:
        self._client = client
        self._leadership = leadership
        self._report = report
        #: key and uid of objects that are not reconciled: GM only writes their problem and removes the finalizer
        self.unhandled: WorkQueue[tuple[Key, str]] = WorkQueue("left alone", self._process_unhandled)
        self.claims = NameConflicts(announce, self.unhandled.add)
        #: one write at a time for each object, by uid: each write then sees the result of the one before
        self._writing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._pauses = ConflictBackoff()
        self._by_api = {api: Informer(client, api, partial(custom, api), self._changed) for api in resources()}

    @property
    def informers(self) -> Iterator[Informer[Custom]]:
        """The informers, one for each kind."""
        return iter(self._by_api.values())

    async def write_status(self, stored: StoredResource, status: Status) -> None:
        """Replace a status. Raises ConflictError if anything about the resource has changed since it was read."""
        async with self._lock_of(stored.uid):
            claim = self.claims.find(stored.key, stored.uid)
            if claim is None or claim.version != stored.resource_version:
                raise ConflictError(f"{stored.key} was edited while its status was computed")
            await self._write_status(claim, status)

    async def edit(self, stored: StoredResource, fields: Mapping[str, Any]) -> None:
        """Set fields of a spec. Raises ConflictError if anything about the resource has changed since it was read."""
        async with self._lock_of(stored.uid):
            claim = self.claims.find(stored.key, stored.uid)
            if claim is None or claim.deleting or claim.version != stored.resource_version:
                raise ConflictError(f"{stored.key} was edited in the meantime")
            metadata = {"uid": stored.uid, "resourceVersion": claim.version}
            await self._patch(claim, {"metadata": metadata, "spec": dict(fields)})

    async def add_finalizer(self, key: Key, uid: str) -> None:
        """Add the finalizer, if it is missing. Raises ConflictError if the resource has changed or is being deleted."""
        async with self._lock_of(uid):
            claim = self.claims.find(key, uid)
            if claim is None or claim.deleting:
                raise ConflictError(f"{key} was deleted or is being deleted")
            if not claim.has_finalizer:
                await self._patch(claim, finalizer_patch(claim, [*claim.finalizers, FINALIZER]))

    async def finalize(self, key: Key, uid: str) -> None:
        """Remove the finalizer, if it is set and deletion was requested."""
        async with self._lock_of(uid):
            claim = self.claims.find(key, uid)
            if claim is not None and claim.deleting and claim.has_finalizer:
                await self._release(claim)

    def _lock_of(self, uid: str) -> asyncio.Lock:
        """Return the lock for writes of an object."""
        return self._writing.setdefault(uid, asyncio.Lock())

    async def _process_unhandled(self, at: tuple[Key, str]) -> None:
        """Write the problem of an object that is not reconciled, or remove its finalizer."""
        claim = self.claims.aside(*at)
        if claim is None:
            self.unhandled.forget(at)
        elif claim.deleting:
            if claim.has_finalizer:
                await self._release(claim)
        elif claim.problem:
            await self._explain(claim, INVALID, claim.problem)
        elif (first := self.claims.first(claim.key)) and first.problem:  # the reconciler reports the other conflicts
            text = f"{first.api.version} {claim.key} already has that name and is not valid: correct or delete it"
            await self._explain(claim, CONFLICT, text)

    async def _explain(self, claim: Custom, reason: str, text: str) -> None:
        """Write into the status of an object why it is not reconciled, and report it, unless that is known."""
        earlier = claim.status
        status = conclude(earlier or Status(), Readiness("Failed", reason, text), earlier, claim.generation, utc_now())
        if not is_same_status(status, earlier):
            await self._write_status(claim, status)
            self._report(reason, claim, text)

    async def _write_status(self, claim: Custom, status: Status) -> None:
        """Replace the status of an object as it was read."""
        await self._patch(claim, status_patch(status, claim.version, claim.written), "status")

    async def _patch(self, claim: Custom, patch: Object, subresource: str = "") -> None:
        """Patch the version that was read, and cache the response at once, ahead of the watch. Raises ConflictError."""
        try:
            answer = await self._send(claim, patch, subresource)
        except NotFoundError as error:
            raise ConflictError(f"{claim.key} has just been deleted") from error
        self._by_api[claim.api].learn(answer, claim.version)

    async def _send(self, claim: Custom, patch: Object, subresource: str = "") -> Object:
        """Patch the version that was read; return the object.

        Raises ConflictError if the object has another version, and then without a call, until the watch has delivered
        the change or a pause is over.
        """
        check_leading(self._leadership)
        if self._pauses.must_wait(claim.uid):
            raise ConflictError(f"{claim.key} has changed, and the watch has not delivered the change yet")
        try:
            with refusals_for_users(f"{claim.api.kind} {claim.namespace}/{claim.name}"):
                api, at = claim.api, (claim.namespace, claim.name)
                return await self._client.patch(api, *at, patch, subresource=subresource)
        except StaleError:
            if self.claims.find(claim.key, claim.uid) is claim:
                self._pauses.lengthen(claim.uid)
            raise

    def _changed(self, old: CachedObject[Custom] | None, new: CachedObject[Custom] | None, ours: bool) -> None:  # noqa: FBT001
        """Process a change of an object: the ``Changed`` handler of all informers."""
        if old is not None:  # also after a successful write by GM
            self._pauses.end(old.uid)
        self.claims.changed(old, new, ours)

    async def _release(self, claim: Custom) -> None:
        """Remove the finalizer of an object whose deletion was requested."""
        informer, remaining = self._by_api[claim.api], [name for name in claim.finalizers if name != FINALIZER]
        try:
            answer = await self._send(claim, finalizer_patch(claim, remaining))
        except NotFoundError:
            remaining = []
        if remaining:
            informer.learn(answer, claim.version)
        else:
            informer.mark_deleted(claim.namespace, claim.name, claim.uid)
