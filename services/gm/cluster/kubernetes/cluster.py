"""The cluster on an API server: reads from the informers' caches, writes directly to the API.

Only the leader opens it, so each action belongs to an epoch. Once leadership may be lost, it writes nothing. It does
not reconcile a resource that cannot be read, or whose key belongs to another object: it only writes the status, and
removes the finalizer so that the resource can be deleted.
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
from types import TracebackType
from typing import Any, Self

import structlog

from halimede.api.worker_environment import SESSION_KEY, SESSION_KEY_DIGITS
from halimede.errors import InvalidFieldError, first_error, shorten_middle
from halimede.messages import NodeStatus, NodeSummary, Output, Status
from halimede.names import Key
from halimede.system.backoff import exponential
from services.gm.cluster.kubernetes.api_paths import EVENTS, LEASES, MANAGER, NODES, SECRETS, Object
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
#: seconds until each kind was listed once: an API server that is starting needs time
SYNC_PATIENCE = 60.0
NODE = "node/"
#: seconds for which a Secret's metadata is cached: if it exists (it is seldom deleted), and if it does not exist yet
THERE, NOT_THERE = 60.0, 5.0
MAX_CACHED_SECRETS = 5000
#: phases that a node has reported; Pending may also mean that there is no report
REPORTED_PHASES = {"Running": "Running", "Ready": "Ready", "Failed": "Failed"}
#: events in the queue, and written events whose names are remembered to raise their counts
MAX_WAITING, MAX_WRITTEN_EVENTS = 1000, 2000
#: attempts, and the pause in seconds after the first
TRIES, PAUSE = 4, 1.0
#: characters of a message, as the API allows
MAX_MESSAGE = 1000
#: characters of an object's name in the name of its event; the API allows 253 in all
MAX_NAME = 230


def reports_of(stored: StoredResource) -> Iterator[NodeReport]:
    """Yield a report for each node of a status: the only memory of a GM that takes over.

    The status has the counts of a node that is offline. Such a report is used until the node sends its own.
    """
    for summary in stored.status.nodes if stored.status else ():
        if summary.phase in REPORTED_PHASES or summary.task_info is not None:
            yield _report(stored, summary)


def _report(stored: StoredResource, summary: NodeSummary) -> NodeReport:
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
    """Whether an edge worker has ever run on the node: of nodes that were left, a status names only those."""
    info = summary.task_info
    edge = info is not None and any((info.edge_inference_number, info.skipped, info.lost))
    return edge or summary.phase == LEFT_PHASE


class Secrets:
    """Reads the metadata of single Secrets: a watch of all Secrets would need more rights and memory.

    It never requests their data, so the data cannot leak from here. It creates the Secrets with session keys.
    """

    def __init__(self, client: KubernetesClient) -> None:
        self._client = client
        self._cached: dict[tuple[str, str], tuple[float, Object | None]] = {}

    async def get(self, namespace: str, names: Collection[str]) -> Mapping[str, Object | None]:
        """Return the metadata of each; None for those that do not exist."""
        return {name: await self._get(namespace, name) for name in names}

    async def ensure(self, body: Object) -> None:
        """Create a Secret with a session key, unless its service has it. Raises NotOursError if another owns it."""
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
    """Cluster on ``client``, for as long as ``elector`` leads; open inside ``async with``, within ``elector.lead``."""

    def __init__(self, client: KubernetesClient, elector: LeaderElection, *, sync_s: float = SYNC_PATIENCE) -> None:
        self._client = client
        self._elector = elector
        self._sync_s = sync_s
        # changes in their order, each once; a node stands for itself by its name
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
        self._happened = {what: None for what in self._happened if isinstance(what, str)}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    # --- what it is -------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of leaderships so far: each start of one raises it."""
        return self._elector.epoch

    async def overtake(self, epoch: int) -> bool:
        """Raise the epoch, if the Lease shows that no other GM leads."""
        return await self._elector.overtake(epoch)

    @property
    def leads(self) -> bool:
        """Whether this GM holds the Lease, by its own clock."""
        return self._elector.leading

    @property
    def identity(self) -> str:
        """The uid of the Lease: all GMs that lead by it have the same resources."""
        return self._elector.uid

    @property
    def complete(self) -> bool:
        """Always True: the API server loses no resource."""
        return True

    @property
    def failures(self) -> int:
        """The number of writes that failed."""
        return self._client.failures

    def check(self) -> str:
        """Return why a cache is not up to date, else why the last call failed, else an empty text."""
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
        """Always empty: pods get it from a Secret."""
        return ""

    def get(self, key: Key) -> StoredResource | None:
        """Return a resource."""
        return self._custom_resources.claims.get(key)

    def exists(self, key: Key, uid: str) -> bool:
        """Whether the resource exists, readable or not, with its key or without."""
        return self._custom_resources.claims.find(key, uid) is not None

    def namesakes(self, key: Key) -> tuple[StoredResource, ...]:
        """Return the resources that claim the key of an older resource of the other group."""
        return self._custom_resources.claims.namesakes(key)

    def resources(self, plural: str = "", namespace: str = "") -> Iterator[StoredResource]:
        """Return all resources (of one kind, of one namespace)."""
        return self._custom_resources.claims.all(plural, namespace)

    def workers(self, key: Key) -> ClusterWorkers:
        """Return the objects and pods of the resource that has the key."""
        stored = self.get(key)
        return self._owned_objects.of(key.namespace, stored.uid) if stored else ClusterWorkers()

    async def secrets(self, namespace: str, names: Collection[str]) -> Mapping[str, dict[str, Any] | None]:
        """Return the metadata of Secrets; None for those that do not exist. Requests only what is not cached."""
        return await self._secrets.get(namespace, names)

    async def pod_warnings(self, namespace: str, uids: Collection[str]) -> Mapping[str, tuple[str, str]]:
        """Return the last warning about each pod that has one."""
        return await self._warnings.get(namespace, uids)

    async def changes(self) -> AsyncIterator[Happening]:
        """Yield changes to one consumer, first the nodes that exist."""
        while True:
            await self._happening.wait()
            self._happening.clear()
            while self._happened:
                what = next(iter(self._happened))
                del self._happened[what]
                if isinstance(what, str):
                    node = self._nodes.get("", what)
                    yield NodeSeen(what, node.value if node else None)
                else:
                    yield what

    # --- writing ----------------------------------------------------------------------------------------------

    async def write_status(self, stored: StoredResource, status: Status) -> None:
        """Replace a status. Raises ConflictError if anything about the resource has changed since."""
        await self._custom_resources.write_status(stored, status)

    async def edit(self, stored: StoredResource, fields: Mapping[str, Any]) -> None:
        """Set fields of a spec. Raises ConflictError if anything about the resource has changed since."""
        check_leading(self._elector)
        await self._custom_resources.edit(stored, fields)

    async def add_finalizer(self, key: Key, uid: str) -> None:
        """Add the finalizer, if it is missing. Raises ConflictError if the resource has changed or is being deleted."""
        await self._custom_resources.add_finalizer(key, uid)

    async def finalize(self, key: Key, uid: str) -> None:
        """Remove the finalizer."""
        await self._custom_resources.finalize(key, uid)

    async def ensure(self, body: Object) -> None:
        """Create the object, or update the fields that differ. A Secret gets a new session key when it is created."""
        check_leading(self._elector)
        await (self._secrets if body["kind"] == SECRETS.kind else self._owned_objects).ensure(body)

    async def remove(self, ref: Ref, uid: str) -> None:
        """Delete it."""
        check_leading(self._elector)
        await self._owned_objects.remove(ref, uid)

    # --- remembering ------------------------------------------------------------------------------------------

    async def record(self, type_: EventType, reason: str, about: str, message: str) -> None:
        """Queue an event of the object, or of GM's Lease if the object does not exist. Does not wait."""
        involved, subject = self._find_object(about)
        if times := self._repeats.times(reason, about):
            self._events.add(type_, reason, involved, f"{subject}{message}", times)

    async def bury(self, uid: str, generation: int) -> None:
        """Do nothing: each resource that is missing here was deleted."""

    def deleted_generation(self, uid: str) -> int | None:  # noqa: ARG002
        """Always None: not used where ``complete`` is True."""
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
        yield from self._custom_resources.informers
        yield self._nodes
        yield from self._owned_objects.informers

    async def _synced(self) -> None:
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

    def _announce(self, what: Key | WorkersChanged | str) -> None:
        self._happened[what] = None
        self._happening.set()

    def _node_changed(
        self,
        old: CachedObject[RegisteredNode] | None,
        new: CachedObject[RegisteredNode] | None,
        _: bool,  # noqa: FBT001
    ) -> None:
        node = new or old
        if node is not None and (old is None or new is None or old.value != new.value):
            self._announce(node.name)

    def _report_trouble(self, reason: str, of: Custom, message: str) -> None:
        """Queue an event about a resource that does not have its key."""
        if times := self._repeats.times(reason, of.uid):
            self._events.add("Warning", reason, _reference(of), message, times)

    def _find_object(self, about: str) -> tuple[Object, str]:
        """Return the object that a name of the event log refers to, and a prefix for the message."""
        if about.startswith(NODE) and (node := self._nodes.get("", about.removeprefix(NODE))):
            return {"apiVersion": NODES.version, "kind": NODES.kind, "name": node.name, "uid": node.uid}, ""
        with contextlib.suppress(InvalidFieldError):
            key = Key.parse(about)
            if first := self._custom_resources.claims.first(key):
                return _reference(first), ""
        lease = {
            "apiVersion": LEASES.version,
            "kind": LEASES.kind,
            "namespace": self._elector.namespace,
            "name": self._elector.name,
            "uid": self._elector.uid,
        }
        return lease, "" if about == "gm" else f"{about}: "


def _reference(of: Custom) -> Object:
    return {
        "apiVersion": of.api.version,
        "kind": of.api.kind,
        "namespace": of.namespace,
        "name": of.name,
        "uid": of.uid,
    }


@dataclass(frozen=True, slots=True)
class Happened:
    """An event to write. ``involved`` names the object; events of an object without a namespace are in ``default``."""

    type: EventType
    reason: str
    involved: tuple[tuple[str, str], ...]
    message: str


class Events:
    """Writes events in the order in which they were added; ``kubectl describe`` shows them with their objects.

    Its own task writes them from a bounded queue, so that callers neither wait nor fail. A repeated event raises the
    count of the existing one.
    """

    def __init__(self, client: KubernetesClient, leadership: Leadership) -> None:
        self._client = client
        self._leadership = leadership
        self._waiting: asyncio.Queue[tuple[Happened, int]] = asyncio.Queue(MAX_WAITING)
        self._written: OrderedDict[Happened, tuple[str, int]] = OrderedDict()
        #: events that were not written: the queue was full, or the server refused them
        self.dropped = 0

    def add(self, type_: EventType, reason: str, involved: Object, message: str, times: int = 1) -> None:
        """Queue an event that occurred ``times`` times to an object. Does not wait."""
        happened = Happened(type_, reason, tuple(sorted(involved.items())), shorten_middle(message, MAX_MESSAGE))
        try:
            self._waiting.put_nowait((happened, times))
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            happened, times = await self._waiting.get()
            try:
                await self._write_event(happened, times)
            except KubernetesApiError as error:
                self.dropped += 1
                log.warning("event not published", reason=happened.reason, message=happened.message, error=str(error))

    async def _write_event(self, happened: Happened, times: int) -> None:
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
