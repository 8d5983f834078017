"""Plans for a node that runs workers as processes (``ProcessPlanner``): which workers run here, and how. Pure.

``PodPlanner`` is its counterpart for a node of pods. An InferenceModel has one server process, which accepts new
versions of the model while it runs. A file next to the server has the desired version, and the process is restarted
only for changes of the process itself. While a new version is being prepared, the old one serves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from halimede.api import Resource, matches, placements
from halimede.api.file_references import code_files
from halimede.api.inferencemodel import (
    InferenceModelSpec,
    ServedVersionSpec,
    can_run_on_nodes,
    desired_servers,
    model_spec,
    pod,
    target,
)
from halimede.api.model import ModelSpec
from halimede.api.model_formats import FORMAT_NAMES
from halimede.api.placement import Placement, worker_name
from halimede.api.podtemplate import OWN_IMAGE
from halimede.api.quantity import quantity
from halimede.api.worker_environment import (
    LC_PERIOD,
    SESSION_KEY,
    MountedModel,
    WorkerEnvironment,
    common,
    needs_session_key,
)
from halimede.errors import InvalidFieldError
from halimede.hard_samples import FOLDER as HARD_SAMPLES
from halimede.messages import ModelFacts, ModelOutput
from halimede.models import FetchReason
from halimede.models.desired_state import Desired, DesiredModel
from halimede.names import check_name
from halimede.observe.http import OFF
from services.lc.credentials import NodeCredentials
from services.lc.models.lookup import Models, PreparedModel
from services.lc.paths import NodePaths, Worker
from services.lc.planning.node_kinds import NodeState
from services.lc.planning.resource_state import (
    LocalPhase,
    Phase,
    Preparation,
    RequiredFile,
    ResourceState,
    internal_failure,
)
from services.lc.planning.template_process import Host, RefusalError, grace_s_of, to_process
from services.lc.store import NodeResource
from services.lc.supervisor.process import CODE_DIGESTS, SERVER, WORKER, ProcessSpec, Role, Start
from services.lc.supervisor.worker_rollout import DESIRED_FILE

#: default address of a worker's health and metrics, unless its template sets one: a free port on loopback
WORKER_HTTP = "127.0.0.1:0"
#: fields of a Model that do not affect how its file is used
NOT_FOR_USE = frozenset({
    "credentialName", "deviceSocVersions", "device_soc_versions", "metadata", "metrics", "nodeName",
    "nodeSelector", "rollout", "sha256", "syncTo", "targetVersion", "task", "url", "versions",
})  # fmt: skip
#: characters of a digest that stand for a version without a name
SHORT = 12
#: seconds that the server of an InferenceModel has to stop
GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class ProcessPlanner:
    """A ``WorkerPlanner`` of processes; the fields are what it knows of the node.

    Attributes:
        name: of the node.
        labels: of the node.
        folders: paths of the node's files.
        broker: URL of the broker, for workers.
        host: the LC's process.
        credentials: the node's credentials; None: workers need none.
        http: host:port of a worker's health and metrics, unless its template has another.
        fetch_allow: addresses that workers' own cameras may have besides public ones, as text.
        code: the digests of the Python files that services name, by path.
        missing_code: paths of those of them that are missing now.

    """

    name: str
    labels: Mapping[str, str]
    folders: NodePaths
    broker: str
    host: Host
    credentials: NodeCredentials | None = None
    http: str = WORKER_HTTP
    fetch_allow: str = ""
    code: Mapping[str, str] = field(default_factory=dict)
    missing_code: Set[str] = frozenset()

    def skip_reason(self, resource: Resource[Any]) -> str:  # noqa: ARG002  # of the port
        """Always empty: the files that its workers need are brought here first."""
        return ""

    def service(self, stored: NodeResource, resource: Resource[Any], models: Models) -> NodeState:
        """Return the state of a service on this node, and its workers here that can run."""
        starts: dict[Worker, Start] = {}
        lacks: dict[Worker, LocalPhase] = {}
        workers: dict[Worker, Role] = {}
        parts: dict[Worker, str] = {}
        code: dict[str, str] = {}
        missing_code: dict[Worker, str] = {}
        outputs: list[ModelOutput] = []
        all_placements = placements(resource.spec)
        shares_role = any(placement.part for placement in all_placements)
        for placement in all_placements:
            if not matches(placement.pod, self.name, self.labels):
                continue
            worker = Worker(stored.key.namespace, placement.on(stored.key.name, self.name))
            workers[worker] = placement.role
            if shares_role:
                parts[worker] = placement.name
            outputs += models.output(placement, stored.key)
            used_code = self._code(resource, placement)
            code |= used_code
            if missing := sorted(used_code.keys() & self.missing_code):
                missing_code[worker] = missing[0]
            outcome = self._plan_worker(resource, placement, worker, models)
            if isinstance(outcome, LocalPhase):
                lacks[worker] = outcome
            else:
                key = stored.session_key if needs_session_key(placement) else ""
                starts[worker] = _with_session_key(outcome, key) if key else outcome
        nowhere = LocalPhase("Pending", "NoPlacement", f"none of its workers is placed on node {self.name}")
        settled = None if workers else nowhere
        state = ResourceState(
            stored.key,
            stored.uid,
            stored.generation,
            workers,
            lacks,
            tuple(outputs),
            settled,
            parts=parts,
            code=code,
            missing_code=missing_code,
        )
        return state, starts

    def served_file(self, stored: NodeResource, resource: Resource[Any]) -> RequiredFile | None:
        """Return the file of the desired version; None: no server runs here, or the version has no usable file."""
        version = target(resource.spec)
        if version is None or not self._has_server(resource):
            return None
        if not version.is_checksum_valid or not can_run_on_nodes(resource.spec):
            return None
        spec = msgspec.structs.replace(model_spec(resource.spec, version), url="/", credential_name="")
        spec_json, digest = msgspec.json.encode(spec).decode(), version.sha256.lower()
        return RequiredFile(
            stored.key, stored.uid, stored.generation, version.url, digest, spec.format, spec_json, own_code=False
        )

    def server(self, stored: NodeResource, resource: Resource[Any], preparation: Preparation | None) -> NodeState:
        """Return the state of an InferenceModel on this node, and its server if it can run."""
        if not self._has_server(resource):
            nowhere = LocalPhase("Pending", "NoPlacement", f"it is not placed on node {self.name}")
            return ResourceState(stored.key, stored.uid, stored.generation, settled=nowhere), {}
        worker = Worker(stored.key.namespace, worker_name(stored.key.name, "serve", self.name))
        facts = preparation.facts if preparation and isinstance(preparation.facts, ModelFacts) else None
        outcome = self._plan_server(stored, resource, preparation, worker)
        lacks, starts = ({worker: outcome}, {}) if isinstance(outcome, LocalPhase) else ({}, {worker: outcome})
        return ResourceState(stored.key, stored.uid, stored.generation, {worker: "serve"}, lacks, facts=facts), starts

    def _has_server(self, resource: Resource[InferenceModelSpec]) -> bool:
        """Whether a server of an InferenceModel should run on this node."""
        return desired_servers(resource.spec) > 0 and matches(pod(resource.spec), self.name, self.labels)

    def _plan_worker(
        self, resource: Resource[Any], placement: Placement, worker: Worker, models: Models
    ) -> Start | LocalPhase:
        """Return how a worker starts, or why it cannot: a Model or Dataset is missing, or its template is refused."""
        prepared_models: dict[str, PreparedModel] = {}
        for name in placement.needs.values():
            model = models.find(name, resource.key, self.name)
            if isinstance(model, LocalPhase):
                return model
            prepared_models[name] = model
        described = models.described_models(placement, resource.key, self.name)
        if isinstance(described, LocalPhase):
            return described
        data = models.data(placement, resource)
        if isinstance(data, LocalPhase):
            return data
        return self._plan_start(resource, placement, worker, _Files(prepared_models, described, data))

    def _plan_start(
        self, resource: Resource[Any], placement: Placement, worker: Worker, files: _Files
    ) -> Start | LocalPhase:
        """Return how a worker starts whose files are here, or why it cannot."""
        try:
            check_name("worker name", worker.name)
            folder = self.folders.worker(worker)
            template = placement.worker.template
            models = {purpose: files.models[name] for purpose, name in placement.needs.items()}
            desired = desired_model(*models["model"]) if "model" in models else None
            mounted = {
                purpose: MountedModel(model, str(prepared.path)) for purpose, (model, prepared) in models.items()
            }
            mounted |= {purpose: MountedModel(model) for purpose, model in files.described.items()}
            hard_samples = self._hard_samples(resource, placement)
            data, reference = (hard_samples, files.data) if hard_samples else (files.data, None)
            if placement.needs_data and data is None:
                text = f"Dataset {placement.dataset}: its url names no file of the node: training needs one"
                return LocalPhase("Failed", "DatasetNotOnNode", text)
            environment = self._environment(resource, placement, mounted, worker, data=data, reference=reference)
            spec = to_process(template, placement.program, environment, folder, self.host, at=placement.at)
            if lack := _not_installed(spec, models.values()):
                return lack
        except RefusalError as error:
            return LocalPhase("Failed", error.reason, str(error))
        except InvalidFieldError as error:
            return LocalPhase("Failed", "NameTooLong", str(error))
        except Exception as error:  # noqa: BLE001  # as in plan(): the service's other workers continue
            return internal_failure(resource.key, error)
        paths = {purpose: prepared.path for purpose, (_, prepared) in models.items() if prepared.path}
        model = paths.pop("model", None)
        desired_state = Desired(models=[desired]) if desired else None
        uid, role = resource.metadata.uid, placement.role
        return Start(worker, resource.key, uid, role, spec, model, desired_state, tuple(paths.values()))

    def _hard_samples(self, resource: Resource[Any], placement: Placement) -> Path | None:
        """Return the folder of the hard samples that a trainer trains on; None: the worker trains on none."""
        if not placement.keeper:
            return None
        keeper = Worker(resource.metadata.namespace, worker_name(placement.keeper, "edge", self.name))
        return self.folders.worker(keeper) / HARD_SAMPLES

    def _environment(
        self,
        service: Resource[Any],
        placement: Placement,
        models: Mapping[str, MountedModel],
        worker: Worker,
        *,
        data: Path | None,
        reference: Path | None,
    ) -> WorkerEnvironment:
        """Return the environment variables of a worker of a service (docs/reference/environment.md has all).

        Of the node's credentials, a worker gets only the folder of its own role. ``data``: its samples to train on.
        ``reference``: samples of the stream as it was. None: there are none.
        """
        folder, grace_s = self.folders.worker(worker), grace_s_of(placement.worker.template)
        environment = common(
            service,
            placement,
            models,
            broker=self.broker,
            state=str(folder),
            grace_s=grace_s,
            fetch_allow=self.fetch_allow,
            data=str(data or ""),
            reference=str(reference or ""),
        )
        facts = {"WORKER_NAME": worker.name, "NODE_NAME": self.name}
        if "model" in placement.needs:
            facts["MODEL_FILE"] = f"{folder}/{DESIRED_FILE}"
        if code := self._code(service, placement):
            facts[CODE_DIGESTS] = msgspec.json.encode(code).decode()
        if self.credentials:
            facts["HALIMEDE_CREDENTIALS"] = str(self.credentials.worker(placement.role))
        return WorkerEnvironment(
            environment.facts | facts, environment.defaults | {"DATA_PATH_PREFIX": "", "HALIMEDE_HTTP": self.http}
        )

    def _code(self, service: Resource[Any], placement: Placement) -> dict[str, str]:
        """Return the digests of the Python files that a worker's spec names, by path."""
        if not self.code:  # most services name none
            return {}
        return {file: self.code[file] for file in code_files(service.spec, placement) if file in self.code}

    def _plan_server(
        self,
        stored: NodeResource,
        resource: Resource[InferenceModelSpec],
        preparation: Preparation | None,
        worker: Worker,
    ) -> Start | LocalPhase:
        """Return how the server of an InferenceModel starts, or why it cannot."""
        spec = resource.spec
        try:
            check_name("worker name", worker.name)
        except InvalidFieldError as error:
            return LocalPhase("Failed", "NameTooLong", str(error))
        version = target(spec)
        if version is None and not OWN_IMAGE.fullmatch(spec.image or ""):
            text = f"spec.image: {spec.image!r} needs a container engine: set spec.manifest, or use Kubernetes"
            return LocalPhase("Failed", "ImageNotSupported", text)
        if version is None:
            return LocalPhase(
                "Failed", "ImageNotSupported", "spec.manifest: halimede's server needs a version to serve"
            )
        if not can_run_on_nodes(spec):
            text = (
                f"spec.frameworkType: {spec.framework_type!r} needs Kubernetes: use one of {FORMAT_NAMES}, such as onnx"
            )
            return LocalPhase("Failed", "FrameworkNotSupported", text)
        if not version.is_checksum_valid:
            text = f"spec.manifest: version {version.version!r}: {version.sha256!r} is not SHA-256: write 64 hex digits"
            return LocalPhase("Failed", "InvalidDigest", text)
        if preparation is None or preparation.phase != "Ready" or preparation.path is None:
            pending = preparation or Preparation(RequiredFile(stored.key, stored.uid, stored.generation, version.url))
            phase: Phase = "Failed" if pending.phase == "Failed" else "Pending"
            progress = pending.message or "waiting for its download"
            return LocalPhase(phase, pending.reason, f"version {version.version!r}: {progress}")
        desired_state = _desired_state(spec, version, preparation)
        folder = self.folders.worker(worker)
        env = {
            **{variable.name: variable.value for variable in spec.env},
            "HALIMEDE_BROKER": self.broker,
            "NAMESPACE": stored.key.namespace,
            "SERVICE_NAME": stored.key.name,
            "SERVICE_UID": stored.uid,
            "WORKER_NAME": worker.name,
            "NODE_NAME": self.name,
            "HALIMEDE_STATE": str(folder),
            "GRACE_S": f"{GRACE_S:g}",
            "LC_PERIOD": LC_PERIOD,
            "PYTHONPATH": self.host.search_path(),
        }
        if self.credentials:
            env["HALIMEDE_CREDENTIALS"] = str(self.credentials.worker(spec.deploy_to_layer))
        # "off" is for health and metrics; the model itself still needs an address, which stays on loopback
        address = "127.0.0.1" if self.http == OFF else self.http.rpartition(":")[0]
        argv = [self.host.python, *SERVER, "--file", str(folder / DESIRED_FILE)]
        argv += ["--http", f"{address}:{spec.serving_port}", "--grpc", f"{address}:0"]
        process = ProcessSpec(tuple(argv), env, str(folder), memory_bytes=_memory(spec), grace_s=GRACE_S)
        return Start(worker, stored.key, stored.uid, "serve", process, preparation.path, desired_state)


@dataclass(frozen=True, slots=True)
class _Files:
    """What a worker needs of its node.

    Attributes:
        models: Models with their files, by name.
        described: Models of which it needs only the spec, by purpose.
        data: the path of its Dataset; None: it is not on this node.

    """

    models: Mapping[str, PreparedModel]
    described: Mapping[str, Resource[Any]]
    data: Path | None


def _with_session_key(start: Start, key: str) -> Start:
    """Return a start with the secret of MQTT sessions, after the template's variables, which cannot refer to it."""
    return replace(start, spec=replace(start.spec, env={**start.spec.env, SESSION_KEY: key}))


def desired_model(model: Resource[ModelSpec], preparation: Preparation) -> DesiredModel:
    """Return a Model as the desired state of a worker has it; ``preparation``: its file, which is here.

    A model that has passed its trial is not tried again by each worker. ``versions`` of a Model on a node has only the
    version in force.
    """
    facts = preparation.facts if isinstance(preparation.facts, ModelFacts) else ModelFacts()
    spec, fields = model.spec, msgspec.to_builtins(model.spec)
    return DesiredModel(
        name=model.metadata.name,
        path=str(preparation.path),
        version=spec.target_version or facts.digest[:SHORT],
        digest=facts.digest,
        spec={name: value for name, value in fields.items() if name not in NOT_FOR_USE},
        canary_percent=spec.rollout.canary_percent if spec.rollout else 100,
        tried=bool(facts.outputs),
        calibration=spec.versions[0].calibration if spec.versions else "",
        audit_share=spec.rollout.audit_share if spec.rollout else 0.0,
    )


def _not_installed(process: ProcessSpec, models: Iterable[PreparedModel]) -> LocalPhase | None:
    """Return why halimede's own worker cannot use its models here: a package is missing; None: it can.

    A user's code may use any model.
    """
    if process.argv[1:4] != WORKER or process.env.get("ESTIMATOR"):
        return None
    for model, preparation in models:
        if preparation.reason == FetchReason.NOT_INSTALLED:
            return LocalPhase("Failed", preparation.reason, f"Model {model.metadata.name}: {preparation.message}")
    return None


def _desired_state(spec: InferenceModelSpec, version: ServedVersionSpec, preparation: Preparation) -> Desired:
    """Return the desired state of the server of an InferenceModel: its one model."""
    model = DesiredModel(
        name=spec.model_name,
        path=str(preparation.path),
        version=version.version,
        digest=preparation.facts.digest if isinstance(preparation.facts, ModelFacts) else "",
        spec=msgspec.json.decode(preparation.required.spec),
        canary_percent=spec.rollout.canary_percent if spec.rollout else 100,
    )
    return Desired(models=[model])


def _memory(spec: InferenceModelSpec) -> int | None:
    """Return the limit of a server's memory in bytes; None: there is none."""
    limit = (spec.resources.get("limits") or {}).get("memory")
    return None if limit is None else math.ceil(quantity("spec.resources.limits.memory", limit))
