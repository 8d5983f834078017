"""Plans what the LC does (``plan``), from held resources, ready files and running workers. Pure.

A swap is the change of a worker's model while the worker runs.

A running worker is stopped only for a known reason: its service was deleted or has another uid, it is no longer placed
here, or a replacement can start at once. While a Model is missing or being downloaded, the old one serves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from halimede.messages import NodeStatus, WorkerInfo, WorkerReport
from halimede.models.desired_state import DesiredModel
from halimede.names import Key
from services.lc.models.lookup import Models, ParsedResource
from services.lc.paths import Worker
from services.lc.planning.node_kinds import NODE_KINDS, NodeItem, NodeKind, WorkerPlanner
from services.lc.planning.resource_state import (
    ABSENT,
    LocalPhase,
    Preparation,
    RequiredFile,
    ResourceState,
    internal_failure,
)
from services.lc.published_content import PublishedFile, usable_digest
from services.lc.supervisor.process import Start

#: nothing is copied
NO_CONTENT: Mapping[Key, PublishedFile] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ObservedWorker:
    """A worker that runs, or is kept running.

    Attributes:
        worker: its name.
        service: key of its service.
        uid: of the service.
        spec_hash: digest of the process that it should be.
        confirmed: whether a plan of this LC has included it; if not, it was found at the LC's start.
        model: its model in the last plan, or the last one that an earlier LC assigned; None: none.
        swaps: whether it can replace its model while it runs; None: it has not reported that yet.

    """

    worker: Worker
    service: Key
    uid: str
    spec_hash: str
    confirmed: bool = True
    model: DesiredModel | None = None
    swaps: bool | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions of a plan.

    Attributes:
        start: workers to start.
        stop: workers to stop.
        prepare: files of Models and Datasets that should be here.
        states: the state of each held resource, for its report.
        swap: running workers that replace their model without a restart, each as it would be started now.
        successors: the next starts of those workers in ``stop`` that are stopped only to be replaced.
        copied: resources whose files this node copies from another one.

    """

    start: tuple[Start, ...]
    stop: tuple[Worker, ...]
    prepare: Mapping[Key, RequiredFile]
    states: Mapping[Key, ResourceState]
    swap: tuple[Start, ...] = ()
    successors: tuple[Start, ...] = ()
    copied: frozenset[Key] = frozenset()

    @property
    def lacking(self) -> bool:
        """Whether a held resource names a Model that the node does not hold."""
        return any(
            lack is not None and lack.reason == ABSENT
            for state in self.states.values()
            for lack in (state.settled, *state.lacks.values())
        )


def plan(
    items: Mapping[Key, ParsedResource],
    preparations: Mapping[Key, Preparation],
    running: Mapping[Worker, ObservedWorker],
    planner: WorkerPlanner,
    *,
    complete: bool = True,
    is_deleted: Callable[[str], bool] = lambda _: False,
    content: Mapping[Key, PublishedFile] = NO_CONTENT,
) -> Plan:
    """Return what to do now.

    ``items``: the held resources. ``preparations``: the progress of files. ``running``: the present workers.
    ``planner``: how workers run on this node. ``complete``: whether the store has all desired resources; if not, no
    worker of an unknown resource is stopped. ``is_deleted``: whether GM has deleted a uid: its workers are stopped in
    any case. ``content``: the published content of resources whose files this node copies.
    """
    ready: dict[Key, Preparation] = {}  # filled below: the rules of the kinds name the files, and they need ``models``
    models = Models(items, preparations, ready)
    plannable = {key: pair for key, item in items.items() if (pair := _kind_and_item(item, planner, models, content))}
    prepare = {key: file for key, (kind, item) in plannable.items() if (file := kind.required_file(item))}
    ready.update((key, p) for key, p in preparations.items() if p.required == prepare.get(key) and p.phase == "Ready")
    states: dict[Key, ResourceState] = {}
    starts: dict[Worker, Start] = {}
    keep: set[Worker] = set()
    for key, item in items.items():
        uid = item.stored.uid
        try:
            if key not in plannable:
                states[key] = _unplannable_state(item)
                continue
            kind, node_item = plannable[key]
            states[key], service_starts = kind.state(node_item)
        except Exception as error:  # noqa: BLE001  # an unexpected error in one resource must not stop the others
            states[key] = ResourceState(key, uid, item.stored.generation, settled=internal_failure(key, error))
            keep |= {worker for worker, observed in running.items() if (observed.service, observed.uid) == (key, uid)}
            continue
        starts.update(service_starts)
        keep |= {worker for worker in states[key].lacks if worker in running and running[worker].uid == uid}
    stop = [
        worker
        for worker, observed in running.items()
        if worker not in keep
        and (
            _must_restart(starts[worker], observed)
            if worker in starts
            else complete or observed.service in items or is_deleted(observed.uid)
        )
    ]
    swap = [
        s
        for worker, s in starts.items()
        if worker in running
        and worker not in stop
        and running[worker].swaps
        and s.desired_model != running[worker].model
    ]
    start = [s for worker, s in starts.items() if worker not in running or not running[worker].confirmed]
    return Plan(
        tuple(s for s in start if s.worker not in stop),
        tuple(stop),
        prepare,
        states,
        tuple(swap),
        tuple(starts[worker] for worker in stop if worker in starts),
        frozenset(key for key, (kind, item) in plannable.items() if kind.must_copy(item)),
    )


def _must_restart(start: Start, observed: ObservedWorker) -> bool:
    """Whether a worker must be restarted: its process has changed, or it cannot swap to its new model."""
    if start.spec.digest != observed.spec_hash:
        return True
    if start.desired_model is None or start.desired_model == observed.model or observed.swaps is not False:
        return False
    return observed.model is None or not start.desired_model.matches(observed.model)


def _kind_and_item(
    item: ParsedResource, planner: WorkerPlanner, models: Models, content: Mapping[Key, PublishedFile]
) -> tuple[NodeKind, NodeItem] | None:
    """Return the rules of a resource's kind, with the resource; None: it cannot be read, or there are no rules."""
    kind = NODE_KINDS.get(item.resource.kind.plural) if item.resource else None
    if item.resource is None or kind is None:
        return None
    digest = usable_digest(content, item.stored.key, item.stored.uid, item.stored.generation)
    return kind, NodeItem(item.stored, item.resource, planner, models, digest)


def _unplannable_state(item: ParsedResource) -> ResourceState:
    """Return the state of a resource that cannot be read, or whose kind this node does not know."""
    settled = LocalPhase("Failed", item.reason, item.error)
    if item.resource is not None:
        text = f"this node cannot run a {item.resource.kind.kind}: update its LC"
        settled = LocalPhase("Failed", "UnsupportedKind", text)
    return ResourceState(item.stored.key, item.stored.uid, item.stored.generation, settled=settled)


class WorkerBackend(Protocol):
    """The workers of a node: processes (``Supervisor``), or pods that the cluster runs (``PodWorkers``).

    ``restarts``: number of restarts of workers since the LC's start.
    """

    restarts: int

    @property
    def running(self) -> Mapping[Worker, ObservedWorker]:
        """The workers that plans may stop, by name."""

    @property
    def models(self) -> Collection[Path | str] | None:
        """The models that workers use or may return to, by path or digest; None: not known yet."""

    def adopt(self) -> None:
        """Take over workers of an earlier LC. Called before anything else."""

    def tasks(self) -> dict[str, Coroutine[None, None, None]]:
        """Return the coroutines to run as long as the LC, by name."""

    def carry_out(self, plan: Plan) -> None:
        """Carry out the parts of a plan that concern workers. Does not wait for their ends."""

    def receive(self, worker: Worker, info: WorkerInfo) -> Key | None:
        """Process a worker's report; return the key of its service, None: the worker is unknown."""

    def status(self, state: ResourceState) -> NodeStatus:
        """Return the report on a resource, from its state in the last plan and its workers' reports."""

    def reports(self) -> list[WorkerReport]:
        """Return the states of all workers."""

    def is_busy(self, service: Key) -> bool:
        """Whether a worker of a service still runs for whose end this node must wait."""

    def clear_away(self, service: Key) -> None:
        """Remove the files of a deleted service's workers. Called after their ends."""

    async def stop_all(self) -> None:
        """Stop what ends with the LC, and wait for it."""
