"""The objects that GM makes for services on Kubernetes (``OwnedObjects``), such as Deployments, and their pods.

GM changes an object only if its owner reference names the service that it was made for; other objects are left alone,
whatever their name. If the server does not keep a field as requested, GM requests it once, not forever.

An owner is in the namespace of its objects, so entries are kept by namespace and uid: a copied uid in another namespace
is not the same service.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import structlog

from halimede.names import Key
from services.gm.cluster.kubernetes.api_paths import MANAGED, MANAGED_KINDS, PODS, Object
from services.gm.cluster.kubernetes.client import (
    AlreadyExistsError,
    KubernetesApiError,
    KubernetesClient,
    NotFoundError,
    StaleError,
    refusals_for_users,
)
from services.gm.cluster.kubernetes.conversion import service_of, service_of_pod, trim, trim_pod
from services.gm.cluster.kubernetes.informer import CachedObject, Informer
from services.gm.cluster.port import ClusterWorkers, ConflictError, NotOursError, Ref
from services.gm.workloads.diff import patch_for
from services.gm.workloads.object_names import is_owned_by

log = structlog.get_logger()


class OwnedObjects:
    """The objects and pods of all services; the caller runs ``informers``.

    ``announce`` is called with a service's key on each change that GM did not make. Writes raise KubernetesApiError.
    """

    def __init__(self, client: KubernetesClient, announce: Callable[[Key], None]) -> None:
        self._client = client
        self._announce = announce
        #: objects, and pods by name, of each service by its namespace and uid
        self._objects: dict[tuple[str, str], dict[Ref, Object]] = {}
        self._pods: dict[tuple[str, str], dict[str, Object]] = {}
        self._by_kind = {
            api.kind: Informer(client, api, trim, self._object_changed, selector=MANAGED) for api in MANAGED_KINDS
        }
        self._pod_informer = Informer(client, PODS, trim_pod, self._pod_changed, selector=MANAGED)
        #: objects that differ from what GM wrote: uid, generation after the write, and the patch that would be needed
        self._moot: dict[Ref, tuple[str, int, Object]] = {}

    @property
    def informers(self) -> Iterator[Informer[Any]]:
        """The informers (caches) of all kinds of objects, and of pods."""
        yield from self._by_kind.values()
        yield self._pod_informer

    def of(self, namespace: str, uid: str) -> ClusterWorkers:
        """Return the objects and pods of a service by its namespace and uid, without Secrets."""
        owner = namespace, uid
        return ClusterWorkers(dict(self._objects.get(owner, {})), tuple(self._pods.get(owner, {}).values()))

    async def ensure(self, body: Object) -> None:
        """Create an object, or update it to ``body``; do nothing while it is being deleted.

        Raises NotOursError if it has another owner, ConflictError if it has changed or was deleted meanwhile, and
        NotAcceptedError if the server refuses it, also for a field that the server does not know.
        """
        ref = Ref.of(body)
        with refusals_for_users(ref):
            await self._ensure(ref, body)

    async def _ensure(self, ref: Ref, body: Object) -> None:
        """Create or update an object, as ``ensure`` does; refusals are raised as the server has sent them."""
        informer = self._by_kind[ref.kind]
        if (item := informer.get(ref.namespace, ref.name)) is not None:
            await self._update(informer, item.value, item.version, body)
            return
        try:
            answer = await self._client.create(informer.api, ref.namespace, body, strict=True)
        except AlreadyExistsError:
            # the watch lags, the object's label was removed, or the object has another owner
            try:
                existing = await self._client.get(informer.api, ref.namespace, ref.name)
            except NotFoundError as error:
                raise ConflictError(f"{ref} is being deleted") from error
            await self._update(informer, trim(existing), "", body)
        else:
            self._wrote(informer, answer, "", body)

    async def remove(self, ref: Ref, uid: str) -> None:
        """Delete an object and what it owns. Does nothing if it is gone or has another uid."""
        with refusals_for_users(ref), contextlib.suppress(NotFoundError, StaleError):
            await self._client.delete(self._by_kind[ref.kind].api, ref.namespace, ref.name, uid=uid)

    async def _update(self, informer: Informer[Object], existing: Object, version: str, body: Object) -> None:
        """Update an existing object to ``body``; ``version``: the cached one, empty if it is not cached.

        Raises as ``ensure`` does.
        """
        ref, metadata = Ref.of(body), existing["metadata"]
        service = service_of(body)
        if service is None or not is_owned_by(existing, service[1]):
            raise NotOursError(f"{ref} exists and does not belong to this service: delete or rename one of the two")
        if metadata.get("deletionTimestamp"):
            return  # it is created again once it is deleted
        patch = patch_for(existing, body)
        if patch is None or self._moot.get(ref) == (metadata["uid"], metadata.get("generation", 0), patch):
            return
        patch = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": metadata["resourceVersion"]}}
        try:
            answer = await self._client.patch(informer.api, ref.namespace, ref.name, patch, strict=True)
        except StaleError:
            await self._catch_up(informer, ref, version)
            raise
        except NotFoundError as error:
            raise ConflictError(f"{ref} has just been deleted") from error
        self._wrote(informer, answer, version, body)

    async def _catch_up(self, informer: Informer[Object], ref: Ref, version: str) -> None:
        """Read an object again that is newer than the cache: until the watch catches up, each write would conflict.

        ``version``: the cached one; empty: it was not cached.
        """
        if not version:
            return  # it was read just now
        try:
            existing = await self._client.get(informer.api, ref.namespace, ref.name)
        except KubernetesApiError as error:
            log.info("object not read again", object=str(ref), error=str(error))
        else:
            informer.learn(existing, version)

    def _wrote(self, informer: Informer[Object], answer: Object, version: str, body: Object) -> None:
        """Cache the server's answer to a write, and record how it differs from ``body``.

        ``version``: the one that was cached before; empty: none.
        """
        ref, metadata = Ref.of(body), answer["metadata"]
        informer.learn(answer, version)
        if (remaining := patch_for(answer, body)) is None:
            self._moot.pop(ref, None)
        else:
            self._moot[ref] = (metadata["uid"], metadata.get("generation", 0), remaining)

    # --- what the informers say -------------------------------------------------------------------------------

    def _object_changed(self, old: CachedObject[Object] | None, new: CachedObject[Object] | None, ours: bool) -> None:  # noqa: FBT001
        """Record a change of an object with its service: a ``Changed`` handler of informers."""
        for item in (old, new):
            if item is not None and (service := service_of(item.value)):
                owner = service[0].namespace, service[1]
                objects = self._objects.setdefault(owner, {})
                objects.pop(Ref.of(item.value), None)
                if item is new:
                    objects[Ref.of(item.value)] = item.value
                elif new is None:
                    self._moot.pop(Ref.of(item.value), None)
                if not objects:
                    del self._objects[owner]
                if not ours:
                    self._announce(service[0])

    def _pod_changed(self, old: CachedObject[Object] | None, new: CachedObject[Object] | None, _: bool) -> None:  # noqa: FBT001
        """Record a change of a pod with its service: the ``Changed`` handler of the informer of pods."""
        for item in (old, new):
            if item is not None and (service := service_of_pod(item.value)):
                owner = service[0].namespace, service[1]
                pods = self._pods.setdefault(owner, {})
                pods.pop(item.name, None)
                if item is new:
                    pods[item.name] = item.value
                if not pods:
                    del self._pods[owner]
                self._announce(service[0])
