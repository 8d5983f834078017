"""What to do, given what is held, which files are ready and what runs. Pure: plain values in, actions out.

A worker that runs is stopped only for a known reason: its service is gone, it belongs to another uid, it has no place
here any more, or a better one can take over at once. While a Model is away or still on its way, the old one serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import structlog

from halimede.api import Resource, dataset, jointinference, matches, model, placements
from halimede.api.placement import Placement, worker_name
from halimede.errors import InvalidFieldError
from halimede.messages import ModelOutput
from halimede.models import redact
from halimede.names import Key, check_name
from services.lc.credentials import NodeCredentials
from services.lc.environment import WORKER_HTTP, environment
from services.lc.folders import Folders, Worker
from services.lc.items import Item
from services.lc.process import Role, Start
from services.lc.store import Held
from services.lc.template import Host, RefusalError, grace, to_process

log = structlog.get_logger()

Phase = Literal["Pending", "Running", "Failed", "Ready"]


@dataclass(frozen=True, slots=True)
class Node:
    """The node: its name and labels, its files, where its workers find the broker and what they show it."""

    name: str
    labels: Mapping[str, str]
    folders: Folders
    broker: str
    host: Host
    credentials: NodeCredentials | None = None
    http: str = WORKER_HTTP


@dataclass(frozen=True, slots=True)
class Want:
    """A Model's file, or a Dataset's, that should be on this node. The generation is that of its resource."""

    key: Key
    uid: str
    generation: int
    url: str
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Preparation:
    """How far a Want has come; ``path`` once it is there."""

    want: Want
    phase: Phase = "Pending"
    reason: str = "Preparing"
    message: str = ""
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A worker that is being looked after. Not ``confirmed``: found at boot, and nobody has asked for it yet."""

    worker: Worker
    service: Key
    uid: str
    spec_hash: str
    confirmed: bool = True


@dataclass(frozen=True, slots=True)
class Lack:
    """Why a worker that should run is not as it should be."""

    phase: Phase
    reason: str
    message: str


#: why a worker waits for a Model that its service names and that is not held here
ABSENT = "ModelNotFound"


@dataclass(frozen=True, slots=True)
class Standing:
    """What is to be reported of a resource, beside what its workers say."""

    key: Key
    uid: str
    generation: int
    workers: Mapping[Worker, Role] = field(default_factory=dict)
    lacks: Mapping[Worker, Lack] = field(default_factory=dict)
    models: tuple[ModelOutput, ...] = ()
    #: set for resources without workers
    settled: Lack | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions: stop what should not run, start what should, prepare files, report."""

    start: tuple[Start, ...]
    stop: tuple[Worker, ...]
    prepare: Mapping[Key, Want]
    standings: Mapping[Key, Standing]

    @property
    def lacking(self) -> bool:
        """Whether something held here names what has not arrived."""
        return any(lack.reason == ABSENT for standing in self.standings.values() for lack in standing.lacks.values())


def plan(
    items: Mapping[Key, Item],
    preparations: Mapping[Key, Preparation],
    running: Mapping[Worker, Running],
    node: Node,
    *,
    complete: bool = True,
) -> Plan:
    """Decide. Not ``complete``: what is held may not be all (the store was lost), so nothing unknown is stopped."""
    prepare = {key: want for key, item in items.items() if (want := _want(item))}
    ready = {key: p for key, p in preparations.items() if p.want == prepare.get(key) and p.phase == "Ready"}
    view = _View(items, preparations, ready, node)
    standings: dict[Key, Standing] = {}
    starts: dict[Worker, Start] = {}
    kept: set[Worker] = set()
    for key, item in items.items():
        uid = item.held.uid
        try:
            if item.resource is None or item.resource.kind.plural != jointinference.PLURAL:
                standings[key] = _without_workers(item, preparations.get(key))
                continue
            standings[key], started = view.service(item.held, item.resource)
        except Exception as error:  # noqa: BLE001  # one resource that nobody foresaw must not end the node's work
            standings[key] = Standing(key, uid, item.held.generation, settled=_broke(key, error))
            kept |= {worker for worker, runs in running.items() if (runs.service, runs.uid) == (key, uid)}
            continue
        starts |= started
        kept |= {worker for worker in standings[key].lacks if worker in running and running[worker].uid == uid}
    stop = [
        worker
        for worker, runs in running.items()
        if worker not in kept
        and (starts[worker].spec.digest != runs.spec_hash if worker in starts else complete or runs.service in items)
    ]
    start = [s for worker, s in starts.items() if worker not in running or not running[worker].confirmed]
    return Plan(tuple(s for s in start if s.worker not in stop), tuple(stop), prepare, standings)


def _want(item: Item) -> Want | None:
    held, resource = item.held, item.resource
    if resource is None or resource.kind.plural not in {model.PLURAL, dataset.PLURAL}:
        return None
    return Want(held.key, held.uid, held.generation, resource.spec.url, getattr(resource.spec, "sha256", ""))


def _without_workers(item: Item, preparation: Preparation | None) -> Standing:
    held, resource = item.held, item.resource
    models: tuple[ModelOutput, ...] = ()
    if resource is None:
        settled = Lack("Failed", item.reason, item.error)
    elif (want := _want(item)) is None:
        settled = Lack("Failed", "UnsupportedKind", f"this node cannot run a {resource.kind.kind}: update its LC")
    else:
        known = preparation if preparation and preparation.want == want else Preparation(want)
        settled = Lack(known.phase, known.reason, known.message)
        if resource.kind.plural == model.PLURAL:
            models = (_output(resource),)
    return Standing(held.key, held.uid, held.generation, models=models, settled=settled)


def _output(resource: Resource[model.ModelSpec]) -> ModelOutput:
    return ModelOutput(format=resource.spec.format, url=redact(resource.spec.url))


@dataclass(frozen=True, slots=True)
class _View:
    """What the plan of one service looks at."""

    items: Mapping[Key, Item]
    preparations: Mapping[Key, Preparation]
    ready: Mapping[Key, Preparation]
    node: Node

    def service(self, held: Held, resource: Resource[Any]) -> tuple[Standing, dict[Worker, Start]]:
        """Return how a joint inference service stands on this node, and its workers that can run."""
        starts: dict[Worker, Start] = {}
        lacks: dict[Worker, Lack] = {}
        workers: dict[Worker, Role] = {}
        models: list[ModelOutput] = []
        for placement in placements(resource.spec):
            if not matches(placement.pod, self.node.name, self.node.labels):
                continue
            worker = Worker(held.key.namespace, worker_name(held.key.name, placement.role, self.node.name))
            workers[worker] = placement.role
            used = self.items.get(_model_key(placement, held.key))
            if used and used.resource:
                models.append(_output(used.resource))
            outcome = self._place(resource, placement, worker)
            if isinstance(outcome, Lack):
                lacks[worker] = outcome
            else:
                starts[worker] = outcome
        nowhere = Lack("Pending", "NoPlacement", f"none of its workers asks for node {self.node.name}")
        settled = None if workers else nowhere
        return Standing(held.key, held.uid, held.generation, workers, lacks, tuple(models), settled), starts

    def _place(self, resource: Resource[Any], placement: Placement, worker: Worker) -> Start | Lack:
        key = _model_key(placement, resource.key)
        used, prepared = self.items.get(key), self.ready.get(key)
        if used is None:
            return Lack("Pending", ABSENT, f"Model {key.name} has not arrived on node {self.node.name}")
        if used.resource is None:
            return Lack("Failed", "ModelNotReady", f"Model {key.name}: {used.error}")
        if prepared is None or prepared.path is None:
            known = self.preparations.get(key)
            phase: Phase = "Failed" if known and known.phase == "Failed" else "Pending"
            progress = known.message if known and known.message else "on its way to this node"
            return Lack(phase, "ModelNotReady", f"Model {key.name}: {progress}")
        return self._start(resource, placement, worker, used.resource, prepared.path)

    def _start(
        self, resource: Resource[Any], placement: Placement, worker: Worker, used: Resource[Any], path: Path
    ) -> Start | Lack:
        node = self.node
        try:
            check_name("worker name", worker.name)
            folder = node.folders.worker(worker)
            template = placement.worker.template
            told = environment(
                resource,
                placement,
                used,
                path,
                worker=worker,
                node=node.name,
                broker=node.broker,
                folder=folder,
                grace_s=grace(template),
                credentials=node.credentials.worker(placement.role) if node.credentials else None,
                http=node.http,
            )
            spec = to_process(template, placement.role, told, folder, node.host)
        except RefusalError as error:
            return Lack("Failed", error.reason, str(error))
        except InvalidFieldError as error:
            return Lack("Failed", "NameTooLong", str(error))
        except Exception as error:  # noqa: BLE001  # as in plan(): the service's other worker goes on
            return _broke(resource.key, error)
        return Start(worker, resource.key, resource.metadata.uid, placement.role, spec, path)


def _broke(key: Key, error: Exception) -> Lack:
    """Report a mistake of ours; what the error says is for the log alone, since it may hold a secret."""
    log.error("planning a resource broke", key=str(key), exc_info=error)
    return Lack("Failed", "Internal", f"this node could not plan it: {type(error).__name__}; its log says more")


def _model_key(placement: Placement, service: Key) -> Key:
    return Key(model.PLURAL, service.namespace, placement.worker.model.name)
