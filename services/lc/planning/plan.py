"""What to do, given what is held, which files are ready and what runs. Pure: plain values in, actions out.

A worker that runs is stopped only for a known reason: its service is gone, it belongs to another uid, it has no place
here any more, or a better one can take over at once. While a Model is away or still on its way, the old one serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from halimede.api import Resource, dataset, inferencemodel, jointinference, model, multiedge
from halimede.messages import DatasetFacts, ModelFacts, ModelOutput
from halimede.models.desired_state import DesiredModel
from halimede.names import Key
from services.lc.models.lookup import Models, output
from services.lc.models.preparation import Preparation, RequiredFile
from services.lc.paths import Worker
from services.lc.planning.resource_state import ABSENT, Lack, ResourceState, broke
from services.lc.store.database import NodeResource
from services.lc.store.parsed_resources import ParsedResource
from services.lc.supervisor.process import Start


@dataclass(frozen=True, slots=True)
class ObservedWorker:
    """A worker that is being looked after. Not ``confirmed``: found at boot, and nobody has asked for it yet.

    ``model`` is what it was last asked to answer with. ``swaps``: whether it takes another one while it runs; None: it
    has not said so yet.
    """

    worker: Worker
    service: Key
    uid: str
    spec_hash: str
    confirmed: bool = True
    model: DesiredModel | None = None
    swaps: bool | None = None


#: kinds whose workers take samples
SERVICES = frozenset({jointinference.PLURAL, multiedge.PLURAL})


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions: stop what should not run, start what should, prepare files, report.

    ``swap``: workers that run and take another model as they are, each as it would be started now.
    """

    start: tuple[Start, ...]
    stop: tuple[Worker, ...]
    prepare: Mapping[Key, RequiredFile]
    standings: Mapping[Key, ResourceState]
    swap: tuple[Start, ...] = ()

    @property
    def lacking(self) -> bool:
        """Whether something held here names what has not arrived."""
        return any(
            lack is not None and lack.reason == ABSENT
            for standing in self.standings.values()
            for lack in (standing.settled, *standing.lacks.values())
        )


class WorkerPart(Protocol):
    """What a plan asks where it depends on who runs the workers of this node."""

    def leaves(self, resource: Resource[Any]) -> str:
        """Return why a Model or Dataset is not this controller's to bring, empty if it is."""

    def service(
        self, held: NodeResource, resource: Resource[Any], models: Models
    ) -> tuple[ResourceState, Mapping[Worker, Start]]:
        """Return how a service stands on this node, and its workers that are to run."""

    def served(self, held: NodeResource, resource: Resource[Any]) -> RequiredFile | None:
        """Return the file that an InferenceModel needs on this node."""

    def server(
        self, held: NodeResource, resource: Resource[Any], preparation: Preparation | None
    ) -> tuple[ResourceState, Mapping[Worker, Start]]:
        """Return how an InferenceModel stands on this node, and its server if it is to run."""


def plan(
    items: Mapping[Key, ParsedResource],
    preparations: Mapping[Key, Preparation],
    running: Mapping[Worker, ObservedWorker],
    part: WorkerPart,
    *,
    complete: bool = True,
) -> Plan:
    """Decide. Not ``complete``: what is held may not be all (the store was lost), so nothing unknown is stopped."""
    wants = {key: _model_file(item, part) for key, item in items.items()}
    left = {key: _left(item, part) for key, item in items.items()}
    prepare = {key: want for key, want in wants.items() if want and not left[key]}
    ready = {key: p for key, p in preparations.items() if p.want == prepare.get(key) and p.phase == "Ready"}
    models = Models(items, preparations, ready)
    standings: dict[Key, ResourceState] = {}
    starts: dict[Worker, Start] = {}
    kept: set[Worker] = set()
    for key, item in items.items():
        uid = item.held.uid
        try:
            plural = item.resource.kind.plural if item.resource else ""
            known = preparations.get(key)
            if item.resource and plural in SERVICES:
                standings[key], started = part.service(item.held, item.resource, models)
            elif item.resource and plural == inferencemodel.PLURAL:
                current = known if known and known.want == prepare.get(key) else None
                standings[key], started = part.server(item.held, item.resource, current)
            else:
                standings[key] = _without_workers(item, known, left[key], wants[key])
                continue
        except Exception as error:  # noqa: BLE001  # one resource that nobody foresaw must not end the node's work
            standings[key] = ResourceState(key, uid, item.held.generation, settled=broke(key, error))
            kept |= {worker for worker, runs in running.items() if (runs.service, runs.uid) == (key, uid)}
            continue
        starts.update(started)
        kept |= {worker for worker in standings[key].lacks if worker in running and running[worker].uid == uid}
    stop = [
        worker
        for worker, runs in running.items()
        if worker not in kept
        and (_replaces(starts[worker], runs) if worker in starts else complete or runs.service in items)
    ]
    swap = [
        s
        for worker, s in starts.items()
        if worker in running and worker not in stop and running[worker].swaps and s.wish != running[worker].model
    ]
    start = [s for worker, s in starts.items() if worker not in running or not running[worker].confirmed]
    return Plan(tuple(s for s in start if s.worker not in stop), tuple(stop), prepare, standings, tuple(swap))


def _replaces(start: Start, runs: ObservedWorker) -> bool:
    """Whether a worker has to be started anew: as another process, or since it takes no other model as it is."""
    if start.spec.digest != runs.spec_hash:
        return True
    if start.wish is None or start.wish == runs.model or runs.swaps is not False:
        return False
    return runs.model is None or not start.wish.same(runs.model)


def _model_file(item: ParsedResource, part: WorkerPart) -> RequiredFile | None:
    held, resource = item.held, item.resource
    if resource and resource.kind.plural == inferencemodel.PLURAL:
        return part.served(held, resource)
    if resource is None or resource.kind.plural not in {model.PLURAL, dataset.PLURAL}:
        return None
    spec = resource.spec
    tried = ""
    if resource.kind.plural == model.PLURAL:
        tried = msgspec.json.encode(msgspec.structs.replace(spec, url="/", credential_name="")).decode()
    return RequiredFile(held.key, held.uid, held.generation, spec.url, getattr(spec, "sha256", ""), spec.format, tried)


def _left(item: ParsedResource, part: WorkerPart) -> str:
    own = item.resource is not None and item.resource.kind.plural in {model.PLURAL, dataset.PLURAL}
    return part.leaves(item.resource) if item.resource and own else ""


def _without_workers(
    item: ParsedResource, preparation: Preparation | None, left: str, want: RequiredFile | None
) -> ResourceState:
    held, resource = item.held, item.resource
    models: tuple[ModelOutput, ...] = ()
    facts: ModelFacts | DatasetFacts | None = None
    if resource is None:
        settled = Lack("Failed", item.reason, item.error)
    elif want is None:
        settled = Lack("Failed", "UnsupportedKind", f"this node cannot run a {resource.kind.kind}: update its LC")
    else:
        known = preparation if preparation and preparation.want == want else Preparation(want)
        facts = None if left else known.facts
        settled = Lack("Ready", "LeftToPods", left) if left else Lack(known.phase, known.reason, known.message)
        if resource.kind.plural == model.PLURAL:
            models = (output(resource),)
    return ResourceState(held.key, held.uid, held.generation, models=models, settled=settled, facts=facts)
