"""The cluster on a Kubernetes API server (``KubernetesCluster``): reads caches of informers, writes to the API.

An informer keeps all objects of one kind up to date in memory. Only the leader (one of several GMs) opens the cluster,
so each action belongs to its epoch, the number of the leadership. Once leadership may be lost, nothing is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import structlog

from halimede.api.worker_environment import SESSION_KEY, SESSION_KEY_DIGITS
from halimede.errors import InvalidFieldError, first_error, shorten_middle
from halimede.messages import NodeStatus, NodeSummary, Output, Status
from halimede.names import Key
from halimede.system.backoff import exponential
from services.gm.cluster.kubernetes.api_paths import EVENTS, LEASES, MANAGER, NODES, SECRETS, ApiResource, Object
from services.gm.cluster.kubernetes.client import (
    AlreadyExistsError,
    KubernetesApiError,
    KubernetesClient,
    NotFoundError,
    UnavailableError,
    refusals_for_users,
)
from services.gm.cluster.kubernetes.conversion import Custom, registered_node, trim
from services.gm.cluster.kubernetes.custom_resources import CustomResources
from services.gm.cluster.kubernetes.informer import CachedObject, Informer
from services.gm.cluster.kubernetes.leader_election import LeaderElection, Leadership, check_leading
from services.gm.cluster.kubernetes.owned_objects import OwnedObjects
from services.gm.cluster.kubernetes.pod_warnings import PodWarnings
from services.gm.cluster.port import (
    ClusterWorkers,
    EventType,
    Happening,
    Memory,
    NodeReport,
    NodeSeen,
    NotOursError,
    Ref,
    RegisteredNode,
    StoredResource,
    WorkersChanged,
)
from services.gm.rate_limit import EventDeduplicator
from services.gm.service_status import LEFT_PHASE
from services.gm.workloads.object_names import is_owned_by

log = structlog.get_logger()
#: most seconds until each kind was listed once: an API server that is starting needs time
SYNC_PATIENCE = 60.0
#: how the names of nodes begin in the event log
NODE = "node/"
#: seconds for which a Secret's metadata is cached: if it exists (it is seldom deleted), and if it does not exist yet
THERE, NOT_THERE = 60.0, 5.0
#: most Secrets whose metadata is cached
MAX_CACHED_SECRETS = 5000
#: phases of a node in a status that the node has reported; Pending may also mean that there is no report
REPORTED_PHASES = {"Running": "Running", "Ready": "Ready", "Failed": "Failed"}
#: most events in the queue, and most written events whose names are remembered to raise their counts
MAX_WAITING, MAX_WRITTEN_EVENTS = 1000, 2000
#: attempts to write an event, and the pause in seconds after the first
TRIES, PAUSE = 4, 1.0
#: most characters of an event's message, as the API allows
MAX_MESSAGE = 1000
#: most characters of an object's name in the name of its event; the API allows 253 in all
MAX_NAME = 230


def reports_of(stored: StoredResource) -> Iterator[NodeReport]:
    """Yield the last report of each node by the status of a resource: the only memory of a GM that takes over.

    It has the node's phase and counts, and is used until the node sends its own report.
    """
    for summary in stored.status.nodes if stored.status else ():
        if summary.phase in REPORTED_PHASES or summary.task_info is not None:
            yield _report(stored, summary)


def _report(stored: StoredResource, summary: NodeSummary) -> NodeReport:
    """Return the report of a node, as the status of a resource shows it."""
    generation = stored.status.observed_generation if stored.status else 0
    status = NodeStatus(
        phase=REPORTED_PHASES.get(summary.phase, "Pending"),  # type: ignore[arg-type]
        output=Output(task_info=summary.task_info) if summary.task_info else None,
        uid=stored.uid,
        observed_generation=generation,
        reason=summary.reason,
        message=summary.message,
    )
    return NodeReport(stored.key, summary.node, status, live=summary.phase in REPORTED_PHASES, edge=_has_edge(summary))


def _has_edge(summary: NodeSummary) -> bool:
    """Whether an edge worker has ever run on a node, by its counts, or because the service has left the node.

    Of nodes that a service has left, a status names only those with edge workers.
    """
    info = summary.task_info
    edge = info is not None and any((info.edge_inference_number, info.skipped, info.lost))
    return edge or summary.phase == LEFT_PHASE


class Secrets:
    """Reads the metadata of single Secrets, never their data, and creates the Secrets with session keys.

    A session key is the secret of a service's MQTT sessions. A watch of all Secrets would need more rights and memory.
    """

    def __init__(self, client: KubernetesClient) -> None:
        self._client = client
        #: by namespace and name: the event loop's time of the end of validity, and the metadata
        self._cached: dict[tuple[str, str], tuple[float, Object | None]] = {}

    async def get(self, namespace: str, names: Collection[str]) -> Mapping[str, Object | None]:
        """Return the metadata of Secrets by name, from a cache or the API; None: it does not exist.

        Raises KubernetesApiError.
        """
        return {name: await self._get(namespace, name) for name in names}

    async def ensure(self, body: Object) -> None:
        """Create the Secret ``body`` with a random session key, unless it exists.

        Raises NotOursError if an existing one has another owner, else KubernetesApiError.
        """
        ref = Ref.of(body)
        with refusals_for_users(ref):
            try:
                key = {SESSION_KEY: secrets.token_hex(SESSION_KEY_DIGITS // 2)}
                await self._client.create(SECRETS, ref.namespace, {**body, "stringData": key})
            except AlreadyExistsError as error:  # it was created a moment ago, or before this GM led
                self._cached.pop((ref.namespace, ref.name), None)
                existing = await self._get(ref.namespace, ref.name)
                owner = body["metadata"]["ownerReferences"][0]["uid"]
                if existing is not None and not is_owned_by({"metadata": existing}, owner):
                    text = f"{ref} exists and does not belong to this service: delete or rename one of the two"
                    raise NotOursError(text) from error
        self._cached.pop((ref.namespace, ref.name), None)

    async def _get(self, namespace: str, name: str) -> Object | None:
        """Return the metadata of a Secret, from the cache or the API; None: it does not exist."""
        now = asyncio.get_running_loop().time()
        until, cached = self._cached.get((namespace, name), (0.0, None))
        if now < until:
            return cached
        metadata: Object | None = None
        with contextlib.suppress(NotFoundError):
            metadata = trim(await self._client.get(SECRETS, namespace, name, metadata_only=True))["metadata"]
        if len(self._cached) >= MAX_CACHED_SECRETS:
            self._cached = {at: (until, cached) for at, (until, cached) in self._cached.items() if now < until}
        if len(self._cached) < MAX_CACHED_SECRETS:
            self._cached[namespace, name] = (now + (NOT_THERE if metadata is None else THERE), metadata)
        return metadata


class KubernetesCluster:
    """The ``Cluster`` (``port.py`` describes it) on ``client``, for as long as ``elector`` leads.

    It is open inside ``async with``, within ``elector.lead``. Entering raises UnavailableError if a kind cannot be
    listed within ``sync_s`` seconds. Writes raise KubernetesApiError, and NotLeadingError if another GM may lead.
    """

    def __init__(self, client: KubernetesClient, elector: LeaderElection, *, sync_s: float = SYNC_PATIENCE) -> None:
        self._client = client
        self._elector = elector
        self._sync_s = sync_s
        #: changes that wait for ``changes``, in their order, each once; a text is the name of a node
        self._happened: dict[Key | WorkersChanged | str, None] = {}
        self._happening = asyncio.Event()
        self._custom_resources = CustomResources(client, elector, self._announce, self._report_trouble)
        self._owned_objects = OwnedObjects(client, lambda key: self._announce(WorkersChanged(key)))
        self._secrets = Secrets(client)
        self._warnings = PodWarnings(client)
        self._events = Events(client, elector)
        self._repeats = EventDeduplicator()
        self._nodes = Informer(client, NODES, registered_node, self._node_changed)
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(first_error())
            group = await stack.enter_async_context(asyncio.TaskGroup())
            tasks = [group.create_task(i.run(), name=f"informer {i.api.plural} {i.api.version}") for i in self._all()]
            tasks.append(group.create_task(self._events.run(), name="events"))
            tasks.append(group.create_task(self._custom_resources.unhandled.run(), name="left alone"))
            for task in tasks:
                stack.callback(task.cancel)
            await self._synced()
            self._stack = stack.pop_all()
        # resources and workers are read at once when GM starts; only nodes need an event
        self._happened = {change: None for change in self._happened if isinstance(change, str)}
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    # --- what it is -------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of this leadership: each start of one raises it."""
        return self._elector.epoch

    async def overtake(self, epoch: int) -> bool:
        """Raise the epoch above another one if the Lease shows that no other GM leads; return whether it is above."""
        return await self._elector.overtake(epoch)

    @property
    def leads(self) -> bool:
        """Whether this GM holds the Lease, by its own clock."""
        return self._elector.leading

    @property
    def identity(self) -> str:
        """The uid of the Lease: all GMs that lead by this Lease have the same resources."""
        return self._elector.uid

    @property
    def complete(self) -> bool:
        """Always True: the API server loses no resource."""
        return True

    @property
    def failures(self) -> int:
        """The number of writes to the API that failed."""
        return self._client.failures

    def check(self) -> str:
        """Return why this GM may not write, why a cache is not up to date, or why the last call failed; else empty."""
        if not self._elector.leading:
            return "not the leader: another global manager may lead"
        return next((informer.trouble for informer in self._all() if informer.trouble), self._client.trouble)

    @property
    def quarantined(self) -> str:
        """Always empty: the API server has its own store."""
        return ""

    async def repair(self) -> None:
        """Do nothing: the API server has its own store."""

    # --- reading ----------------------------------------------------------------------------------------------

    def session_key(self, uid: str) -> str:  # noqa: ARG002
        """Always empty: pods get the session key from a Secret."""
        return ""

    def get(self, key: Key) -> StoredResource | None:
        """Return the resource that has a key; None: there is none, or it is not valid."""
        return self._custom_resources.claims.get(key)

    def exists(self, key: Key, uid: str = "") -> bool:
        """Whether a resource exists with this uid (empty: any), valid or not, also if it waits for its key."""
        claims = self._custom_resources.claims
        return (claims.find(key, uid) if uid else claims.first(key)) is not None

    def namesakes(self, key: Key) -> tuple[StoredResource, ...]:
        """Return the valid resources of the other API group that wait for the key of an older resource."""
        return self._custom_resources.claims.namesakes(key)

    def resources(self, plural: str = "", namespace: str = "") -> Iterator[StoredResource]:
        """Yield the valid resources that have their keys, all or only those of a kind (by plural) or of a namespace."""
        return self._custom_resources.claims.all(plural, namespace)

    def workers(self, key: Key) -> ClusterWorkers:
        """Return the objects and pods of the resource that has a key; nothing without a valid one."""
        stored = self.get(key)
        return self._owned_objects.of(key.namespace, stored.uid) if stored else ClusterWorkers()

    async def secrets(self, namespace: str, names: Collection[str]) -> Mapping[str, dict[str, Any] | None]:
        """Return the metadata of Secrets by their names, from a cache of some seconds; None: it does not exist."""
        return await self._secrets.get(namespace, names)

    async def pod_warnings(self, namespace: str, uids: Collection[str]) -> Mapping[str, tuple[str, str]]:
        """Return reason and message of each pod's last warning, by uid, from a cache of some seconds, if it has one."""
        return await self._warnings.get(namespace, uids)

    async def changes(self) -> AsyncIterator[Happening]:
        """Yield changes without end, to one caller; first the nodes that exist.

        Handlers of the informers call ``_announce``, which keeps each change once until it is yielded.
        """
        while True:
            await self._happening.wait()
            self._happening.clear()
            while self._happened:
                change = next(iter(self._happened))
                del self._happened[change]
                if isinstance(change, str):
                    node = self._nodes.get("", change)
                    yield NodeSeen(change, node.value if node else None)
                else:
                    yield change

    # --- writing ----------------------------------------------------------------------------------------------

    async def write_status(self, stored: StoredResource, status: Status) -> None:
        """Replace a status. Raises ConflictError if anything about the resource has changed since it was read."""
        await self._custom_resources.write_status(stored, status)

    async def edit(self, stored: StoredResource, fields: Mapping[str, Any]) -> None:
        """Set fields of a spec. Raises ConflictError if anything about the resource has changed since it was read."""
        check_leading(self._elector)
        await self._custom_resources.edit(stored, fields)

    async def add_finalizer(self, key: Key, uid: str) -> None:
        """Add the finalizer, if it is missing. Raises ConflictError if the resource has changed or is being deleted."""
        await self._custom_resources.add_finalizer(key, uid)

    async def finalize(self, key: Key, uid: str) -> None:
        """Remove the finalizer of a resource whose deletion was requested, so that the server removes the resource."""
        await self._custom_resources.finalize(key, uid)

    async def ensure(self, body: Object) -> None:
        """Create an object, or update the fields that differ. A Secret gets a random session key when it is created.

        Raises NotOursError, NotAcceptedError or ConflictError as the port says.
        """
        check_leading(self._elector)
        await (self._secrets if body["kind"] == SECRETS.kind else self._owned_objects).ensure(body)

    async def remove(self, ref: Ref, uid: str) -> None:
        """Delete an object. Does nothing if it is gone or has another uid."""
        check_leading(self._elector)
        await self._owned_objects.remove(ref, uid)

    # --- remembering ------------------------------------------------------------------------------------------

    async def record(self, type_: EventType, reason: str, about: str, message: str) -> None:
        """Queue an event, unless it repeats too often, about an object or else about GM's Lease. Does not wait."""
        involved, subject = self._find_object(about)
        if times := self._repeats.times(reason, about):
            self._events.add(type_, reason, involved, f"{subject}{message}", times)

    async def bury(self, uid: str, generation: int) -> None:
        """Do nothing: each resource that is missing here was deleted."""

    def deleted_generation(self, uid: str) -> int | None:  # noqa: ARG002
        """Always None: it is not used where ``complete`` is True."""
        return None

    async def remember(self, memory: Memory) -> None:
        """Do nothing: statuses are the only memory."""

    async def forget_node(self, node: str) -> None:
        """Do nothing: the next written statuses no longer contain the node."""

    async def recall(self) -> Memory:
        """Return the nodes' reports that the statuses contain."""
        return Memory(reports=tuple(report for stored in self.resources() for report in reports_of(stored)))

    # --- within -----------------------------------------------------------------------------------------------

    def _all(self) -> Iterator[Informer[Any]]:
        """Yield all informers."""
        yield from self._custom_resources.informers
        yield self._nodes
        yield from self._owned_objects.informers

    async def _synced(self) -> None:
        """Wait until each kind was listed once. Raises UnavailableError with the late ones."""
        try:
            async with asyncio.timeout(self._sync_s):
                for informer in self._all():
                    await informer.synced.wait()
        except TimeoutError as error:
            late = [i for i in self._all() if not i.synced.is_set()]
            names = ", ".join(f"{i.api.plural} ({i.api.version})" for i in late)
            fix = "apply deploy/crds and the rights of deploy/base" if late[0].trouble else "check the API server"
            why = f"not listed within {self._sync_s:g} s: {late[0].trouble or 'no answer'}; {fix}"
            raise UnavailableError(names, 0, why) from error

    def _announce(self, change: Key | WorkersChanged | str) -> None:
        """Have ``changes`` yield a change; a text is the name of a node."""
        self._happened[change] = None
        self._happening.set()

    def _node_changed(
        self,
        old: CachedObject[RegisteredNode] | None,
        new: CachedObject[RegisteredNode] | None,
        _: bool,  # noqa: FBT001
    ) -> None:
        """Announce a change of a node that is of interest: a ``Changed`` handler of an informer."""
        node = new or old
        if node is not None and (old is None or new is None or old.value != new.value):
            self._announce(node.name)

    def _report_trouble(self, reason: str, claim: Custom, message: str) -> None:
        """Queue an event about a resource that is not reconciled, unless it repeats too often."""
        if times := self._repeats.times(reason, claim.uid):
            involved = _reference(claim.api, claim.name, claim.uid, claim.namespace)
            self._events.add("Warning", reason, involved, message, times)

    def _find_object(self, about: str) -> tuple[Object, str]:
        """Return the object that a name of the event log refers to, else GM's Lease, and a prefix for the message."""
        if about.startswith(NODE) and (node := self._nodes.get("", about.removeprefix(NODE))):
            return _reference(NODES, node.name, node.uid), ""
        with contextlib.suppress(InvalidFieldError):
            if first := self._custom_resources.claims.first(Key.parse(about)):
                return _reference(first.api, first.name, first.uid, first.namespace), ""
        lease = _reference(LEASES, self._elector.name, self._elector.uid, self._elector.namespace)
        return lease, "" if about == "gm" else f"{about}: "


def _reference(api: ApiResource, name: str, uid: str, namespace: str = "") -> Object:
    """Return how an event names its object; an empty namespace is left out."""
    reference = {"apiVersion": api.version, "kind": api.kind, "name": name, "uid": uid}
    return {**reference, "namespace": namespace} if namespace else reference


@dataclass(frozen=True, slots=True)
class Happened:
    """An event to write. Equal events are one event with a count.

    Attributes:
        type: Normal or Warning.
        reason: one word.
        involved: names and values of the reference to its object. An event is in the namespace of its object, or in
            ``default``.
        message: for users.

    """

    type: EventType
    reason: str
    involved: tuple[tuple[str, str], ...]
    message: str


class Events:
    """Writes events in the order of ``add``, while ``run`` runs; ``kubectl describe`` shows them with their objects.

    They come from a bounded queue, so that callers neither wait nor fail. A repeated event raises the count of the
    existing one.
    """

    def __init__(self, client: KubernetesClient, leadership: Leadership) -> None:
        self._client = client
        self._leadership = leadership
        self._waiting: asyncio.Queue[tuple[Happened, int]] = asyncio.Queue(MAX_WAITING)
        #: written events with their names in the API and counts, the oldest first
        self._written: OrderedDict[Happened, tuple[str, int]] = OrderedDict()
        #: number of events that were not written: the queue was full, writes failed, or another GM may lead
        self.dropped = 0

    def add(self, type_: EventType, reason: str, involved: Object, message: str, times: int = 1) -> None:
        """Queue an event that has happened ``times`` times to an object (a reference). Does not wait."""
        happened = Happened(type_, reason, tuple(sorted(involved.items())), shorten_middle(message, MAX_MESSAGE))
        try:
            self._waiting.put_nowait((happened, times))
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Write queued events until cancelled."""
        while True:
            happened, times = await self._waiting.get()
            try:
                await self._write_event(happened, times)
            except KubernetesApiError as error:
                self.dropped += 1
                log.warning("event not published", reason=happened.reason, message=happened.message, error=str(error))

    async def _write_event(self, happened: Happened, times: int) -> None:
        """Write an event, with some attempts, unless another GM may lead. Raises KubernetesApiError."""
        for attempt in range(1, TRIES + 1):
            if not self._leadership.leading:
                self.dropped += 1
                return
            try:
                await self._write(happened, times)
            except UnavailableError as error:
                if attempt == TRIES:
                    raise
                await asyncio.sleep(max(exponential(attempt, PAUSE, math.inf), error.retry_after_s))
            else:
                return

    async def _write(self, happened: Happened, times: int) -> None:
        """Create an event, or raise the count of the existing one. Raises KubernetesApiError."""
        involved = dict(happened.involved)
        namespace = involved.get("namespace") or "default"
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        if happened in self._written:
            name, count = self._written[happened]
            try:
                await self._client.patch(EVENTS, namespace, name, {"count": count + times, "lastTimestamp": now})
            except NotFoundError:  # the server deletes events after an hour
                del self._written[happened]
            else:
                self._written[happened] = (name, count + times)
                return
        name = f"{involved['name'][:MAX_NAME].rstrip('.-')}.{secrets.token_hex(8)}"
        body = {
            "apiVersion": EVENTS.version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": involved,
            "type": happened.type,
            "reason": happened.reason,
            "message": happened.message,
            "source": {"component": MANAGER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": times,
        }
        await self._client.create(EVENTS, namespace, body)
        self._written[happened] = (name, times)
        while len(self._written) > MAX_WRITTEN_EVENTS:
            self._written.popitem(last=False)
