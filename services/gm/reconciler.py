"""Reconciles resources (``Reconciler``): takes a key from the queue, reads a snapshot, decides, and acts.

The controller of the kind decides from the snapshot (``Observed``) which nodes shall hold the resource, and
``Downstream`` sends that to the nodes. When these messages are on their way, the reconciler writes the objects (on
Kubernetes: Deployments and others) and the status. A failed action is tried again later, and the status has its
problem. Reconciliation may be repeated at any time, so events only name the resource, not what happened. Reports with
new counts cause at most one reconciliation of a resource per second, however many nodes report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from halimede.api import Resource
from halimede.blobs.uris import GM, url
from halimede.errors import HalimedeError, InvalidFieldError, TooLargeError
from halimede.messages import Status
from halimede.names import Key
from services.gm.cluster.port import (
    Cluster,
    ConflictError,
    NotAcceptedError,
    NotOursError,
    Ref,
    StoredResource,
    utc_now,
)
from services.gm.controllers.base import (
    CONTROLLERS,
    Action,
    AddFinalizer,
    ClearStatus,
    Edit,
    Finalize,
    Forget,
    Keep,
    NodeAction,
    Observed,
    Pull,
    RecordEvent,
    Send,
    ServiceWorkload,
    WriteStatus,
    conflicts,
    finalizers_and_node_actions,
    has_new_phase,
    objects_and_status,
)
from services.gm.downstream import Downstream
from services.gm.nodes import Nodes
from services.gm.reference_index import ReferenceEntry, ReferenceIndex, Roles
from services.gm.reports import NodeReports
from services.gm.service_status import Problem
from services.gm.status_topics import StatusTopics
from services.gm.worker_file_store import WorkerFileStore
from services.gm.workloads.diff import Ensure, Remove
from services.gm.workloads.object_names import digest
from services.gm.workloads.pod_history import PodHistory
from services.gm.workloads.pod_settings import PodSettings
from services.gm.workloads.pod_status import starting_uids, templates
from services.gm.workqueue import TICK, WorkQueue, has_come

log = structlog.get_logger()
#: seconds between two writes of one status: if only counts differ, and if phase or reason differ
STATUS_SPACING, URGENT_SPACING = 1.0, 0.1
#: seconds of one pass in which each status is written once though only its times differ: two passes are below 300 s
HEARTBEAT = 120.0
#: most seconds for which a status waits until the messages to nodes are sent
LONGEST_HEAD_START = 0.1
#: seconds until a missing Secret is read again: Secrets are not watched
SECRET_PATIENCE = 5.0
#: seconds until a resource is reconciled again after a write conflict, unless its change arrives sooner
CONFLICT_PATIENCE = 0.2
#: seconds until a write that the cluster refused is repeated
TROUBLE_PATIENCE = 10.0
#: the problem's reason if an edit of another resource was refused: a repetition would be refused as well
EDIT_NOT_ACCEPTED = "EditNotAccepted"


@dataclass(frozen=True, slots=True)
class SnapshotReader:
    """Reads a snapshot for a controller: a resource's status, nodes, reports and references at that moment.

    Attributes:
        cluster: has the resources.
        nodes: the nodes that GM knows.
        reports: the last reports of nodes.
        index: which resources name which others, and where each is placed.
        downstream: knows which nodes may hold a resource.
        pods: whether the cluster runs workers as pods.
        files: knows which files of workers GM's store has.
        troubles: the problems of the last attempt to write a resource's objects, and of its edits of others.
        history: how long pods start, and how often they fail.

    """

    cluster: Cluster
    nodes: Nodes
    reports: NodeReports
    index: ReferenceIndex
    downstream: Downstream
    pods: bool
    files: WorkerFileStore
    troubles: dict[Key, tuple[Problem, ...]] = field(default_factory=dict)
    history: PodHistory = field(default_factory=PodHistory)

    def read(self, stored: StoredResource, entry: ReferenceEntry, node: str | None = None) -> Observed:
        """Return the snapshot of a resource, for all nodes, or for only one to decide what that node shall hold.

        ``entry``: the resource as nodes receive it. The service's pods are added by ``read_workload``.
        """
        key = stored.key
        placed: Mapping[str, Roles]
        if node is None:
            placed, holders = self.index.roles_by_node(key), self.downstream.holders(key)
        else:
            roles = self.index.roles_on(key, node)
            placed = {} if roles is None else {node: roles}
            holders = frozenset({node}) if self.downstream.may_hold(key, node) else frozenset()
        if not stored.deleting:
            # a node whose labels are not known yet is not changed
            holders = frozenset(holder for holder in holders if self.nodes.has_labels(holder))
        resources = {watched: self._find_stored(watched) for watched in entry.watches}
        return Observed(
            now=utc_now(),
            original=stored.resource,
            status=stored.status,
            placed=placed,
            holders=holders,
            nodes=self.nodes,
            reports=self.reports.of(key),
            references={reference: self._find_resource(reference) for reference in entry.references},
            models=tuple(self.index.models(key.namespace)) if entry.selects else (),
            without_finalizer=self._without_finalizer(key, entry) if self.pods else (),
            as_pods=self.pods,
            edited={target: self._find_stored(target) for target in entry.edits},
            pulled=self.files.states if entry.edits else {},
            watched={watched: self.reports.of(watched) if current else None for watched, current in resources.items()},
            refused=tuple(problem for problem in self.troubles.get(key, ()) if problem.reason == EDIT_NOT_ACCEPTED),
            statuses={watched: current.status for watched, current in resources.items() if current},
            related=self.related_resources(entry),
        )

    def _find_stored(self, key: Key) -> StoredResource | None:
        """Return a resource as its user wrote it; None: it is missing or being deleted."""
        stored = self.cluster.get(key)
        return stored if stored and not stored.deleting else None

    def related_resources(self, entry: ReferenceEntry) -> dict[Key, Resource[Any]]:
        """Return the resources whose reports a resource's rules depend on, and the others with rules on one of them."""
        keys = {*entry.watches}.union(*(self.index.watchers(key) for key in entry.watches)) - {entry.resource.key}
        return {related: current.resource for related in keys if (current := self.index.get(related))}

    async def read_workload(self, observed: Observed, entry: ReferenceEntry, settings: PodSettings) -> Observed:
        """Return the snapshot with the objects and pods of a service, and the metadata of the Secrets that it names.

        A Secret that cannot be read becomes a problem of the service.
        """
        key = entry.resource.key
        workers, now = self.cluster.workers(key), asyncio.get_running_loop().time()
        self.history.observe(key, workers.pods, templates(workers.objects), now)
        late, backoffs = self.history.late_pods(key, now), self.history.backoffs(key, workers.pods)
        secret_names = CONTROLLERS[key.plural].secret_names(entry.resource, observed.references, settings)
        troubles = self.troubles.get(key, ())
        secrets: Mapping[str, dict[str, Any] | None] = {}
        try:
            secrets = await self.cluster.secrets(key.namespace, secret_names)
        except HalimedeError as error:
            # the Secrets are unknown: running pods are kept
            troubles = (Problem("SecretsNotRead", str(error)), *troubles)
        events = await self.cluster.pod_warnings(key.namespace, late & starting_uids(workers.pods))
        workers = replace(workers, secrets=secrets)
        return replace(observed, workload=ServiceWorkload(workers, settings, troubles, late, events, backoffs))

    def _find_resource(self, key: Key) -> Resource[Any] | None:
        """Return a resource as nodes receive it; None: it is missing or being deleted."""
        entry = self.index.get(key)
        return entry.resource if entry and entry.resource.metadata.deletion_timestamp is None else None

    def _without_finalizer(self, key: Key, entry: ReferenceEntry) -> tuple[StoredResource, ...]:
        """Return those of a resource and its references whose deletion would not wait for the nodes."""
        resources = (self.cluster.get(named) for named in sorted({key, *entry.references}))
        return tuple(stored for stored in resources if stored and not stored.has_finalizer and not stored.deleting)


class Reconciler:
    """Carries out the actions of controllers. Add a key to ``queue``, which the caller runs, to reconcile a resource.

    ``pods``: the settings of worker pods; None: nodes start workers. ``changed``: called with a resource that GM itself
    has edited, or whose status changes what nodes receive.
    """

    def __init__(
        self,
        cluster: Cluster,
        index: ReferenceIndex,
        downstream: Downstream,
        *,
        display: StatusTopics,
        snapshots: SnapshotReader,
        pods: PodSettings | None,
        changed: Callable[[Key], Awaitable[None]],
    ) -> None:
        self.queue: WorkQueue[Key] = WorkQueue("reconcile", self._reconcile, spacing=STATUS_SPACING)
        #: number of statuses written
        self.writes = 0
        #: the event loop's time until which retained reports may arrive: no status is written before that. 0: at once
        self.settled_at = 0.0
        self._cluster = cluster
        self._index = index
        self._downstream = downstream
        self._display = display
        self._snapshots = snapshots
        self._pods = pods
        self._changed = changed
        #: when each status was written last, by the event loop's time
        self._written: dict[Key, float] = {}
        #: writes that the cluster refused: of each resource, by the object or the other resource
        self._refused: dict[Key, dict[Ref | Key, _Refusal]] = {}
        #: resources whose status must be written even if only its times differ
        self._heartbeats: set[Key] = set()

    def decide(self, key: Key, node: str) -> Iterable[NodeAction]:
        """Return what a node shall hold of a resource, and of the resources that this one names.

        Returns nothing for an unknown resource. If its deletion, or that of a resource that it names, would not wait
        for the nodes yet, the resource is queued for that, and nothing returned.
        """
        stored, entry = self._cluster.get(key), self._index.get(key)
        if stored is None or entry is None:
            return []
        observed = self._snapshots.read(stored, entry, node)
        if stored.deleting:
            return [Forget(n, key, stored.uid, entry.resource.metadata.generation) for n in observed.holders]
        if observed.without_finalizer:
            self.queue.add(key)  # first make its deletion wait for the node
            return []
        return CONTROLLERS[key.plural].node_actions(entry.resource, observed)

    def apply_node_action(self, action: NodeAction) -> None:
        """Carry out a decision: set what a node shall hold, keep or delete."""
        match action:
            case Send(node, resource):
                self._downstream.set_desired(node, resource)
            case Keep(node, key, uid):
                self._downstream.keep(node, key, uid)
            case Forget(node, key, uid, generation):
                self._downstream.forget(node, key, uid, generation)

    async def run_heartbeats(self) -> None:
        """Have each status written at least every 300 s, so that its times show that GM checks it; until cancelled."""
        while True:
            keys = [stored.key for stored in self._cluster.resources()]
            for key in keys:
                await asyncio.sleep(HEARTBEAT / len(keys))
                self._heartbeats.add(key)
                self.queue.add(key)
            if not keys:
                await asyncio.sleep(HEARTBEAT)

    async def _reconcile(self, key: Key) -> None:
        """Reconcile a resource; forget one that is deleted or cannot be read.

        Raises HalimedeError after a temporary failure: then the queue calls again.
        """
        stored, entry = self._cluster.get(key), self._index.get(key)
        if stored is None or entry is None:
            self.queue.forget(key)
            self._display.forget(key)
            self._written.pop(key, None)
            self._snapshots.troubles.pop(key, None)
            self._refused.pop(key, None)
            self._heartbeats.discard(key)
            self._snapshots.history.forget(key)
            return
        observed = replace(self._snapshots.read(stored, entry), heartbeat=key in self._heartbeats)
        if self._pods and entry.roles and not stored.deleting:
            observed = await self._observe_pods(observed, entry, self._pods)
        # first what nodes shall hold, after the finalizers; of a deleted resource, all actions
        actions, outcome = finalizers_and_node_actions(entry.resource, observed), _Outcome()
        await asyncio.gather(*(self._add_finalizer(a, outcome) for a in actions if isinstance(a, AddFinalizer)))
        try:
            before = self._downstream.queue.waiting
            for action in actions:
                if not isinstance(action, Send | Keep | Forget):
                    await self._do(action, stored, outcome)
                elif not (isinstance(action, Send) and action.resource.key in outcome.without_finalizer):
                    self.apply_node_action(action)  # without a finalizer the deletion would not reach the node
            if self._downstream.queue.waiting > before:
                # nodes receive their work before the status is summed up, which takes time as well
                await self._downstream.queue.let_pass(LONGEST_HEAD_START)
            # then the objects, the edits of other resources, and the status
            actions = objects_and_status(entry.resource, observed)
            actions += conflicts(self._cluster.namesakes(key), stored, observed.now)
            for action in actions:
                if isinstance(action, WriteStatus) and (due := self._may_write(action, stored)):
                    # the latest status counts: the key is reconciled again when the interval is over
                    self.queue.add(key, at=due)
                    break
                await self._do(action, stored, outcome)
        except ConflictError as error:
            outcome.conflict = str(error)
        self._finish(key, outcome)

    def _finish(self, key: Key, outcome: _Outcome) -> None:
        """Schedule a retry of failed actions, and keep their problems for the status. Raises a temporary failure."""
        previous = self._snapshots.troubles.pop(key, ())
        if outcome.troubles:
            self._snapshots.troubles[key] = tuple(outcome.troubles)
            self.queue.add(key, at=asyncio.get_running_loop().time() + TROUBLE_PATIENCE)
        # compare only the reasons: the messages of an API server may vary
        if [trouble.reason for trouble in outcome.troubles] != [trouble.reason for trouble in previous]:
            self.queue.add(key)
        if outcome.conflict:
            log.debug("stale object retried", key=str(key), reason=outcome.conflict)
            self.queue.add(key, at=asyncio.get_running_loop().time() + CONFLICT_PATIENCE)
        if outcome.failure:
            raise outcome.failure

    async def _observe_pods(self, observed: Observed, entry: ReferenceEntry, settings: PodSettings) -> Observed:
        """Return the snapshot with a service's pods; queue the service for when time alone changes what they mean."""
        key, now = entry.resource.key, asyncio.get_running_loop().time()
        observed = await self._snapshots.read_workload(observed, entry, settings)
        if observed.workload and None in observed.workload.workers.secrets.values():
            self.queue.add(key, at=now + SECRET_PATIENCE)
        if due := self._snapshots.history.due_at(key, now):
            self.queue.add(key, at=due)
        return observed

    async def _add_finalizer(self, action: AddFinalizer, outcome: _Outcome) -> None:
        """Make a resource's deletion wait for the nodes; a failure is recorded in ``outcome``."""
        try:
            await self._cluster.add_finalizer(action.key, action.uid)
        except HalimedeError as error:
            outcome.without_finalizer.add(action.key)
            outcome.add_failure(error)

    async def _ensure(self, action: Ensure, key: Key, outcome: _Outcome) -> None:
        """Write an object; a failure is recorded in ``outcome``. A refused object is not written again for 10 s."""
        ref, content = Ref.of(action.body), digest(action.body)
        if self._must_wait(key, ref, content, outcome):
            return
        try:
            await self._cluster.ensure(action.body)
        except (NotOursError, NotAcceptedError) as error:
            self._refuse(key, ref, content, outcome.add_failure(error))
        except HalimedeError as error:
            outcome.add_failure(error)

    def _must_wait(self, key: Key, target: Ref | Key, content: str, outcome: _Outcome) -> bool:
        """Whether a write must wait because the cluster refused the same content; the problem is recorded again."""
        refused = self._refused.get(key, {})
        if (last := refused.get(target)) and last.content == content and asyncio.get_running_loop().time() < last.until:
            outcome.troubles.append(last.problem)
            return True
        refused.pop(target, None)
        return False

    def _refuse(self, key: Key, target: Ref | Key, content: str, problem: Problem) -> None:
        """Remember that the cluster refused a write; ``content``: its digest."""
        until = asyncio.get_running_loop().time() + TROUBLE_PATIENCE - TICK
        self._refused.setdefault(key, {})[target] = _Refusal(content, until, problem)

    async def _remove(self, action: Remove, outcome: _Outcome) -> None:
        """Delete an object; a failure is recorded in ``outcome``."""
        try:
            await self._cluster.remove(action.ref, action.uid)
        except HalimedeError as error:
            outcome.add_failure(error)

    async def _edit(self, action: Edit, key: Key, outcome: _Outcome) -> None:
        """Edit another resource. Raises ConflictError; another failure is recorded in ``outcome``.

        A refused edit is not repeated for 10 s, unless its user edits that resource meanwhile.
        """
        edited = action.stored
        content = digest([edited.uid, edited.resource.metadata.generation, action.fields])
        if self._must_wait(key, edited.key, content, outcome):
            return
        try:
            await self._cluster.edit(edited, action.fields)
            await self._changed(edited.key)  # an adapter need not announce what GM itself has written
            for file in _removed_files(action):
                if not any(file in str(stored.resource.body) for stored in self._cluster.resources()):
                    await self._snapshots.files.drop(file)
        except ConflictError:
            raise
        except (NotAcceptedError, InvalidFieldError, TooLargeError) as error:
            problem = Problem(EDIT_NOT_ACCEPTED, f"{edited.key} cannot be edited: {error}")
            outcome.troubles.append(problem)
            self._refuse(key, edited.key, content, problem)
        except HalimedeError as error:
            outcome.add_failure(error)

    def _may_write(self, action: WriteStatus, stored: StoredResource) -> float:
        """Return the event loop's time from which a status may be written; 0: now, and the next interval begins.

        Counts can wait, but a new phase or reason cannot: users wait for it.
        """
        key, last = stored.key, self._written.get(stored.key, float("-inf"))
        spacing = URGENT_SPACING if has_new_phase(action.status, stored.status) else STATUS_SPACING
        due = max(last + spacing, self.settled_at)
        if not has_come(due):
            return due
        self._written[key] = asyncio.get_running_loop().time()
        self._heartbeats.discard(key)
        return 0.0

    async def _write(self, action: WriteStatus, stored: StoredResource) -> None:
        """Write a status, and have it published, unless it is that of a namesake.

        If the status changes what nodes receive, the resource is processed as after an edit. Raises ConflictError if
        the resource was edited or replaced.
        """
        key, status, namesake = action.key, action.status, action.namesake
        current = namesake or self._cluster.get(key)
        if current is None or (namesake is None and current.uid != stored.uid):
            raise ConflictError(f"{key} was replaced by another resource")
        before = current.status
        await self._cluster.write_status(current, status)
        self.writes += 1
        if not namesake:
            self._display.queue.add(key)
            if _part_for_nodes(status) != _part_for_nodes(before):
                await self._changed(key)

    async def _do(self, action: Action, stored: StoredResource, outcome: _Outcome) -> None:
        """Carry out an action, except those that ``_reconcile`` itself handles: node actions and finalizers."""
        match action:
            case WriteStatus():
                await self._write(action, stored)
            case ClearStatus(key):
                await self._display.clear(key)
            case Pull(key, file):
                self._snapshots.files.pull(key, file)
            case Edit():
                await self._edit(action, stored.key, outcome)
            case Ensure():
                await self._ensure(action, stored.key, outcome)
            case Remove():
                await self._remove(action, outcome)
            case Finalize(key, uid):
                await self._cluster.finalize(key, uid)
            case RecordEvent(kind, reason, about, message):
                await self._cluster.record(kind, reason, about, message)


def _removed_files(action: Edit) -> set[str]:
    """Return the digests of files in GM's store whose version an edit removes from a Model."""
    remaining = {version["url"] for version in action.fields.get("versions") or ()}
    if "versions" not in action.fields:
        return set()
    removed = (version for version in action.stored.resource.spec.versions if version.url not in remaining)
    return {version.sha256 for version in removed if version.url == url(GM, version.sha256)}


def _part_for_nodes(status: Status | None) -> object:
    """Return the part of a status that changes what nodes receive: chosen Models, a loop's round, a training's end."""
    if status is None:
        return [], None, None
    ended = status.training and (status.training.version, status.training.withheld)
    return status.chosen, status.loop and (status.loop.get("state"), status.loop.get("round")), ended


@dataclass(slots=True)
class _Outcome:
    """The result of one reconciliation.

    Attributes:
        troubles: problems for the status.
        without_finalizer: resources whose deletion would not wait for the nodes: they must not be sent.
        conflict: why the reconciliation is repeated soon: what was edited meanwhile; empty: nothing was.
        failure: the last temporary failure.

    """

    troubles: list[Problem] = field(default_factory=list)
    without_finalizer: set[Key] = field(default_factory=set)
    conflict: str = ""
    failure: HalimedeError | None = None

    def add_failure(self, error: HalimedeError) -> Problem:
        """Record a failed action; return its problem. The other actions are carried out nevertheless.

        A conflict is not shown in the status: the reconciliation is only repeated soon.
        """
        problem = Problem("NotWritten", str(error))
        match error:
            case NotOursError():
                problem = Problem("NotOurs", str(error))
            case NotAcceptedError():
                problem = Problem("NotAccepted", str(error))
            case ConflictError():
                self.conflict = str(error)
                return problem
            case _:
                self.failure = error
        self.troubles.append(problem)
        return problem


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A write that the cluster refused.

    Attributes:
        content: digest of what was to be written.
        until: the event loop's time before which the same content is not written again.
        problem: for the status.

    """

    content: str
    until: float
    problem: Problem
