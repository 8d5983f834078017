"""A node that runs workers itself: which of a service's workers belong here, and the process that each of them is.

Pure, the part of a plan that a node of pods does otherwise (``pods/workers.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from halimede.api import Resource, matches, placements
from halimede.api.model import ModelSpec
from halimede.api.placement import Placement, Service
from halimede.api.worker_environment import MountedModel, WorkerEnvironment, common
from halimede.errors import InvalidFieldError
from halimede.messages import ModelFacts, ModelOutput
from halimede.models.desired_state import Desired, DesiredModel
from halimede.names import check_name
from halimede.observe.http import OFF
from services.lc.credentials import NodeCredentials
from services.lc.models.lookup import Found, Models
from services.lc.models.preparation import Preparation, RequiredFile
from services.lc.paths import NodePaths, Worker
from services.lc.planning import serving_planner
from services.lc.planning.resource_state import Lack, ResourceState, broke
from services.lc.planning.template_process import Host, RefusalError, grace, to_process
from services.lc.store.database import NodeResource
from services.lc.supervisor.process import Role, Start
from services.lc.supervisor.rollout import WISH

#: where a worker has its health and metrics, unless its template says otherwise: a free port on loopback
WORKER_HTTP = "127.0.0.1:0"
#: what of a Model says nothing about how its file is used
ABOUT = frozenset({
    "credentialName", "deviceSocVersions", "device_soc_versions", "metrics", "rollout", "sha256", "targetVersion",
    "task", "url", "versions",
})  # fmt: skip
#: characters of a digest that stand for a version without a name
SHORT = 12


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The node: its name and labels, its files, where its workers find the broker and what they show it."""

    name: str
    labels: Mapping[str, str]
    folders: NodePaths
    broker: str
    host: Host
    credentials: NodeCredentials | None = None
    http: str = WORKER_HTTP

    def leaves(self, resource: Resource[Any]) -> str:  # noqa: ARG002  # of the port
        """Nothing: whatever its workers need is brought here first."""
        return ""

    def service(
        self, held: NodeResource, resource: Resource[Any], models: Models
    ) -> tuple[ResourceState, dict[Worker, Start]]:
        """Return how a service stands on this node, and its workers that can run."""
        starts: dict[Worker, Start] = {}
        lacks: dict[Worker, Lack] = {}
        workers: dict[Worker, Role] = {}
        parts: dict[Worker, str] = {}
        used: list[ModelOutput] = []
        places = placements(resource.spec)
        several = any(place.part for place in places)
        for placement in places:
            if not matches(placement.pod, self.name, self.labels):
                continue
            worker = Worker(held.key.namespace, placement.on(held.key.name, self.name))
            workers[worker] = placement.role
            if several:
                parts[worker] = placement.name
            used += models.output(placement, held.key)
            outcome = self._find_paths(resource, placement, worker, models)
            if isinstance(outcome, Lack):
                lacks[worker] = outcome
            else:
                starts[worker] = outcome
        nowhere = Lack("Pending", "NoPlacement", f"none of its workers asks for node {self.name}")
        settled = None if workers else nowhere
        standing = ResourceState(held.key, held.uid, held.generation, workers, lacks, tuple(used), settled, parts=parts)
        return standing, starts

    def served(self, held: NodeResource, resource: Resource[Any]) -> RequiredFile | None:
        """Return the file of the version that is to be served here."""
        return serving_planner.want(held, resource) if serving_planner.here(resource, self.name, self.labels) else None

    def server(
        self, held: NodeResource, resource: Resource[Any], preparation: Preparation | None
    ) -> tuple[ResourceState, dict[Worker, Start]]:
        """Return how an InferenceModel stands on this node, and its server if it can run."""
        if not serving_planner.here(resource, self.name, self.labels):
            nowhere = Lack("Pending", "NoPlacement", f"it does not ask for node {self.name}")
            return ResourceState(held.key, held.uid, held.generation, settled=nowhere), {}
        told = {"HALIMEDE_BROKER": self.broker}
        if self.credentials:
            told["HALIMEDE_CREDENTIALS"] = str(self.credentials.worker(resource.spec.deploy_to_layer))
        # off is said of health and metrics: a model has to be somewhere, and nobody has opened it to others
        address = "127.0.0.1" if self.http == OFF else self.http.rpartition(":")[0]
        return serving_planner.serve(held, resource, preparation, node=self.name, folders=self.folders, told=told,
                             host=self.host, address=address)  # fmt: skip

    def _find_paths(
        self, resource: Resource[Any], placement: Placement, worker: Worker, models: Models
    ) -> Start | Lack:
        found: dict[str, Found] = {}
        for name in placement.models:
            one = models.find(name, resource.key, self.name)
            if isinstance(one, Lack):
                return one
            found[name] = one
        return models.data(placement, resource) or self._start(resource, placement, worker, found)

    def _start(
        self, resource: Resource[Any], placement: Placement, worker: Worker, found: Mapping[str, Found]
    ) -> Start | Lack:
        try:
            check_name("worker name", worker.name)
            folder = self.folders.worker(worker)
            template = placement.worker.template
            models = {what: found[name] for what, name in placement.needs.items()}
            wish = desired(*models["model"]) if "model" in models else None
            told = environment(
                resource,
                placement,
                {what: MountedModel(model, str(prepared.path)) for what, (model, prepared) in models.items()},
                worker=worker,
                node=self.name,
                broker=self.broker,
                folder=folder,
                grace_s=grace(template),
                credentials=self.credentials.worker(placement.role) if self.credentials else None,
                http=self.http,
            )
            spec = to_process(template, placement.program, told, folder, self.host, at=placement.at)
        except RefusalError as error:
            return Lack("Failed", error.reason, str(error))
        except InvalidFieldError as error:
            return Lack("Failed", "NameTooLong", str(error))
        except Exception as error:  # noqa: BLE001  # as in plan(): the service's other worker goes on
            return broke(resource.key, error)
        model = models["model"][1].path if wish else None
        told_by_file = Desired(models=[wish]) if wish else None
        return Start(worker, resource.key, resource.metadata.uid, placement.role, spec, model, told_by_file)


def environment(
    service: Resource[Service],
    placement: Placement,
    models: Mapping[str, MountedModel],
    *,
    worker: Worker,
    node: str,
    broker: str,
    folder: Path,
    grace_s: float,
    credentials: Path | None = None,
    http: str = WORKER_HTTP,
) -> WorkerEnvironment:
    """Return the variables of a worker of ``service`` in the role of ``placement``: docs/worker-environment.md.

    Of the node's credentials, a worker gets only the folder of its own role.
    """
    told = common(service, placement, models, broker=broker, state=str(folder), grace_s=grace_s)
    facts = {"WORKER_NAME": worker.name, "NODE_NAME": node}
    if "model" in models:
        facts["MODEL_FILE"] = f"{folder}/{WISH}"
    if credentials:
        facts["HALIMEDE_CREDENTIALS"] = str(credentials)
    return WorkerEnvironment(told.facts | facts, told.defaults | {"DATA_PATH_PREFIX": "", "HALIMEDE_HTTP": http})


def desired(model: Resource[ModelSpec], here: Preparation) -> DesiredModel:
    """Return the wish that a worker answers with a Model whose file is ``here``.

    What has been opened by its trial is not tried again by each worker.
    """
    facts = here.facts if isinstance(here.facts, ModelFacts) else ModelFacts()
    spec, used = model.spec, msgspec.to_builtins(model.spec)
    return DesiredModel(
        name=model.metadata.name,
        path=str(here.path),
        version=spec.target_version or facts.digest[:SHORT],
        digest=facts.digest,
        spec={name: value for name, value in used.items() if name not in ABOUT},
        canary_percent=spec.rollout.canary_percent if spec.rollout else 100,
        tried=bool(facts.outputs),
    )
