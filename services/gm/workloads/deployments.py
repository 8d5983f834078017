"""The objects of a service on Kubernetes (``build``): a Deployment for each worker, a Service, autoscalers, a Secret.

A worker that names a missing resource, or requests what is not allowed, gets no new object. Its existing ones are kept,
so a misspelt name or a stricter rule stops no running worker. After failures of its pods, a worker's next pod is made
to wait (``Built.with_backoffs``).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from halimede.api import Resource, placements
from halimede.api.dataset import PLURAL as DATASETS
from halimede.api.jointinference import NAME_LIMIT, EdgeWorkerSpec, JointInferenceServiceSpec
from halimede.api.model import PLURAL as MODELS
from halimede.api.placement import Placement
from halimede.api.podtemplate import may_run_own_code
from halimede.api.worker_environment import needs_session_key
from halimede.errors import InvalidFieldError
from halimede.hard_samples import pod_folder
from halimede.names import Key
from services.gm.cluster.port import Ref
from services.gm.model_selection import describe, selectors
from services.gm.service_status import Problem
from services.gm.workloads import object_names
from services.gm.workloads.model_init_container import SLOTS, Models, PodModel, host_file, needs_secret, pod_model_of
from services.gm.workloads.object_names import DIGEST, TEMPLATE, Body, Role, SecretsMetadata, worker_of
from services.gm.workloads.pod_history import PodBackoff
from services.gm.workloads.pod_settings import PodSettings
from services.gm.workloads.pod_template import BIG_MODEL_PORT, NodeFiles, check_mounts, pod_template
from services.gm.workloads.template_policy import check_host_path, check_template

#: resources that a service names; None: missing, or being deleted
References = Mapping[Key, Resource[Any] | None]
#: API version of each kind of object
VERSIONS = {
    "Deployment": "apps/v1",
    "Service": "v1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "Ingress": "networking.k8s.io/v1",
}
#: name of the scheduling gate that makes new pods wait, of an update whose pods fail one after the other
GATE = "halimede.io/failing"
#: fields of a user's ``hpa`` that the autoscaler gets
AUTOSCALED = ("minReplicas", "maxReplicas", "metrics", "behavior")


@dataclass(frozen=True, slots=True)
class Built:
    """The desired objects of a service.

    Attributes:
        objects: the objects to write.
        unchanged: names of workers whose objects stay as they are, apart from the number of pods if their pods failed.
        problems: why those workers' objects stay as they are.
        held_back: the reason of each worker whose next pod is made to wait, by its name.
        desired: the number of pods that each worker in ``held_back`` shall have once it does not wait, by its name.
        secrets: Secrets to create, without their content: the cluster's adapter draws it at random.

    """

    objects: tuple[Body, ...] = ()
    unchanged: frozenset[str] = frozenset()
    problems: tuple[Problem, ...] = ()
    held_back: Mapping[str, Problem] = field(default_factory=dict)
    desired: Mapping[str, int] = field(default_factory=dict)
    secrets: tuple[Body, ...] = ()

    def with_backoffs(self, backoffs: Mapping[str, PodBackoff], existing: Mapping[Ref, Body], number: int = 1) -> Built:
        """Return the objects with those Deployments changed whose workers' pods fail, so that the next pod waits.

        ``backoffs``: by the worker's name. ``existing``: the service's existing objects. ``number``: how many pods an
        unchanged worker shall have at least, once it does not wait.
        """
        objects, desired = list[Body](), dict[str, int]()
        for body in self.objects:
            there = existing.get(Ref.of(body))
            backoff = _backoff_for(backoffs.get(worker_of(body)), body, scaled="replicas" not in body["spec"])
            if backoff and (shall := _desired_pods(body, there)):
                desired[worker_of(body)] = shall
            objects.append(_with_backoff(body, backoff, there))
        scaled = {worker_of(body) for ref, body in existing.items() if ref.kind == "HorizontalPodAutoscaler"}
        for ref, there in existing.items():
            worker = worker_of(there)
            if worker in self.unchanged and ref.kind == "Deployment" and _is_named(there, worker):
                objects += _rescale(there, backoffs.get(worker), number, scaled=worker in scaled)
        held_back = {worker: _failing_problem(worker, backoffs[worker]) for worker in desired}
        return replace(self, objects=tuple(objects), held_back=held_back, desired=desired)


def build(service: Resource[Any], references: References, secrets: SecretsMetadata, settings: PodSettings) -> Built:
    """Return the objects of a service in sedna.io form, and the problems that prevent others.

    ``secrets``: metadata of the Secrets that ``secret_names`` returns, by name; None: it does not exist.
    """
    specs = placements(service.spec)
    if problem := check_service_name(service.metadata.name, service.kind.name_limit):
        return Built(unchanged=frozenset(spec.name for spec in specs), problems=(problem,))
    objects: list[Body] = [_network(service)] if isinstance(service.spec, JointInferenceServiceSpec) else []
    unchanged: set[str] = set()
    problems: list[Problem] = []
    for spec in specs:
        worker = _Worker(service, spec, references, secrets, settings)
        if worker_problems := list(worker.problems()):
            unchanged.add(spec.name)
            problems += worker_problems
        else:
            objects += worker.objects()
    session_secrets = tuple(_session_secret(service, specs, secrets))
    return Built(tuple(map(with_digest, objects)), frozenset(unchanged), tuple(problems), secrets=session_secrets)


def unchosen(service: Resource[JointInferenceServiceSpec], *roles: Role) -> Iterator[Problem]:
    """Yield the problem of each role whose selector matches no Model; the problem ends when such a Model appears.

    ``roles``: the roles to check; without any, all are checked.
    """
    for role, selector in selectors(service).items():
        if not roles or role in roles:
            text = f"no Model of namespace {service.metadata.namespace} has {describe(selector)}: apply one"
            yield Problem("ModelNotFound", f"spec.{role}Worker.model.selector: {text}")


def secret_names(service: Resource[Any], references: References, settings: PodSettings) -> frozenset[str]:
    """Return the names of the Secrets of the service's namespace that ``build`` needs."""
    specs = placements(service.spec)
    names = {object_names.session_secret_name(service)} if any(map(needs_session_key, specs)) else set()
    for spec in specs:
        names |= set(_Worker(service, spec, references, {}, settings).secret_names().values())
    return frozenset(names)


def replicas(built: Built, existing: Mapping[Ref, Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of pods that each worker shall have, by its name, also if its next pod is made to wait.

    ``existing``: the service's existing objects. A worker that has no Deployment and gets none is left out.
    """
    numbers: dict[str, int] = {}
    for body in (*existing.values(), *built.objects):
        if body.get("kind") == "Deployment":
            worker = worker_of(body)
            numbers[worker] = body["spec"].get("replicas", numbers.get(worker, 1))
    present = built.unchanged.union(map(worker_of, built.objects))
    return {worker: number for worker, number in numbers.items() if worker in present} | dict(built.desired)


@dataclass(frozen=True, slots=True)
class _Worker:
    """Makes the objects of one worker of a service, and finds the problems that prevent them.

    The fields are the arguments of ``build``, with one of the service's placements (a worker in its spec).
    """

    service: Resource[Any]
    placement: Placement
    references: References
    secrets: SecretsMetadata
    settings: PodSettings

    def objects(self) -> Iterator[Body]:
        """Yield its Deployment, and its autoscaler if one is specified."""
        hpa = self.placement.hpa
        spec: Body = {
            # by default Deployments keep ten old templates; one suffices for inspection
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": object_names.selector(self.service, self.placement.role, self.placement.part)},
            "template": pod_template(self.service, self.placement, self._pod_models(), self.settings, self._files()),
        }
        if hpa is None:
            spec["replicas"] = 1
        if self.placement.alone:
            spec["strategy"] = {"type": "Recreate"}
        name = object_names.deployment_name(self.service.metadata.name, self.placement.name, self.placement.pod_group)
        role, part = self.placement.role, self.placement.part
        yield new_object(self.service, role, "Deployment", name, spec, worker=part)
        if hpa is not None:
            target = {"apiVersion": VERSIONS["Deployment"], "kind": "Deployment", "name": name}
            scaled = {field: hpa[field] for field in AUTOSCALED if hpa.get(field) is not None}
            name = object_names.autoscaler_name(self.service.metadata.name, self.placement.name)
            spec = {"scaleTargetRef": target, **scaled}
            yield new_object(self.service, role, "HorizontalPodAutoscaler", name, spec, worker=part)

    def _pod_models(self) -> Models:
        """Return the existing Models that the worker names, by purpose, each with what the pod needs for it.

        An archive in a format that is not halimede's own, such as .pt, stays packed: the worker's code opens it. A
        Model that is only described to the worker needs nothing.
        """
        template = self.placement.worker.template
        worker, own_code = template["spec"]["containers"][0], may_run_own_code(template)
        pod_models = {}
        for purpose, name in self.placement.needs.items():
            model = self.references.get(self._model(name))
            if model is not None:
                secret, unpack = self.secrets.get(needs_secret(model.spec)), model.spec.is_onnx
                pod_model = pod_model_of(
                    model.spec, worker, secret, self.settings, unpack=unpack, own_code=own_code, names=SLOTS[purpose]
                )
                pod_models[purpose] = model, pod_model
        for purpose, name in self.placement.described.items():
            model = self.references.get(self._model(name))
            if model is not None:
                pod_models[purpose] = model, PodModel("")
        return pod_models

    def problems(self) -> Iterator[Problem]:
        """Yield the problems that prevent its objects."""
        at = self.placement.at
        if self.placement.selector:
            yield from unchosen(self.service, self.placement.role)
        for purpose, name in {**self.placement.needs, **self.placement.described}.items():
            model = self.references.get(self._model(name))
            if model is None:
                yield _missing_problem("ModelNotFound", f"{at}.{purpose}.name", self._model(name))
            elif purpose in self.placement.needs and (path := host_file(model.spec.url)):
                # the file's whole folder is mounted
                folder = posixpath.dirname(posixpath.normpath(path))
                yield from check_host_path(f"{at}.{purpose}.name: Model {name}: spec.url", folder, self.settings)
        yield from self._data_problems()
        for purpose, name in self.secret_names().items():
            if self.secrets.get(name) is None:
                fix = f"there is no Secret {self.service.metadata.namespace}/{name}: create it"
                yield Problem("SecretNotFound", f"{at}: {purpose}: {fix}")
        if self.placement.folder:
            yield from check_host_path(f"{at}.source.path", self.placement.folder, self.settings)
        table = self.settings.images if object_names.is_translated(self.service) else {}
        yield from check_template(self.placement.worker.template, f"{at}.template", self.settings, table)
        yield from check_mounts(self.placement, self._pod_models(), f"{at}.template", self.settings)

    def _data_problems(self) -> Iterator[Problem]:
        """Yield the problems with the samples that the worker needs on its node."""
        if self.placement.keeper and not self.settings.node_cache:
            text = "GM's settings for pods have no nodeCache, so pods share no files: export them, and name a Dataset"
            yield Problem("HardSamplesNotShared", f"{self.placement.at}.hardSamples: {text}")
        if not self.placement.dataset:
            return
        key = Key(DATASETS, self.service.metadata.namespace, self.placement.dataset)
        dataset = self.references.get(key)
        if dataset is None:
            yield _missing_problem("DatasetNotFound", "spec.dataset.name", key)
        elif self.placement.needs_data:
            path = host_file(dataset.spec.url)
            if path is None:
                text = f"Dataset {self.placement.dataset}: its url names no file of the node: training needs one"
                yield Problem("DatasetNotOnNode", f"{self.placement.at}.dataset.name: {text}")
            else:
                at = f"{self.placement.at}.dataset.name: Dataset {self.placement.dataset}: spec.url"
                yield from check_host_path(at, path, self.settings)

    def _files(self) -> NodeFiles:
        """Return the paths of the samples on its node that the worker uses."""
        dataset = self.references.get(Key(DATASETS, self.service.metadata.namespace, self.placement.dataset))
        data = (host_file(dataset.spec.url) or "") if dataset and self.placement.needs_data else ""
        if self.placement.keeper:
            return NodeFiles(data=self._sample_folder(self.placement.keeper), reference=data)
        edge = self.placement.worker
        keeps = isinstance(edge, EdgeWorkerSpec) and edge.keep_hard_samples is not None
        shared = keeps and self.settings.node_cache and self.placement.pod.node_name
        return NodeFiles(data=data, hard_samples=self._sample_folder(self.service.metadata.name) if shared else "")

    def _sample_folder(self, service: str) -> str:
        """Return the folder of the worker's node with the hard samples of a service's edge worker."""
        parts = pod_folder(self.placement.pod.node_name, self.service.metadata.namespace, service)
        return posixpath.join(self.settings.node_cache, *parts)

    def secret_names(self) -> dict[str, str]:
        """Return the names of the Secrets that the worker needs, by a text for messages that says what for."""
        names = {}
        if self.settings.credentials:
            name = self.settings.edge_secret if self.placement.role == "edge" else self.settings.cloud_secret
            names["credentials of its workers"] = name
        for needed in self.placement.needs.values():
            model = self.references.get(self._model(needed))
            if model is not None and (name := needs_secret(model.spec)):
                names[f"Model {needed}: spec.credentialName"] = name
        return names

    def _model(self, name: str) -> Key:
        """Return the key of a Model of the service's namespace."""
        return Key(MODELS, self.service.metadata.namespace, name)


def _network(service: Resource[Any]) -> Body:
    """Return the Service by which Sedna's own scripts find the cloud workers; halimede's workers use the bus."""
    port = {"name": "big-model", "port": BIG_MODEL_PORT, "targetPort": BIG_MODEL_PORT, "protocol": "TCP"}
    spec = {"selector": object_names.selector(service, "cloud"), "ports": [port]}
    return new_object(service, "cloud", "Service", object_names.network_name(service.metadata.name), spec)


def _session_secret(service: Resource[Any], specs: Iterable[Placement], secrets: SecretsMetadata) -> Iterator[Body]:
    """Yield the Secret with the key of the workers' MQTT sessions, unless they need none or the service has it."""
    name, owner = object_names.session_secret_name(service), object_names.owner(service)
    existing = {"metadata": secrets.get(name) or {}}
    if any(map(needs_session_key, specs)) and not object_names.is_owned_by(existing, service.metadata.uid):
        metadata = {"name": name, "namespace": service.metadata.namespace, "ownerReferences": [owner]}
        labels = {object_names.MANAGED_BY: object_names.MANAGER}
        yield {"apiVersion": "v1", "kind": "Secret", "metadata": {**metadata, "labels": labels}, "type": "Opaque"}


def new_object(service: Resource[Any], role: Role, kind: str, name: str, spec: Body, *, worker: str = "") -> Body:
    """Return an object of a service; ``worker``: the worker's own name, empty: its role is its name."""
    metadata = {
        "name": name,
        "namespace": service.metadata.namespace,
        "labels": object_names.labels(service, role, worker),
        "ownerReferences": [object_names.owner(service)],
    }
    return {"apiVersion": VERSIONS[kind], "kind": kind, "metadata": metadata, "spec": spec}


def _desired_pods(body: Body, existing: Mapping[str, Any] | None) -> int:
    """Return how many pods the Deployment ``body`` shall have.

    If an autoscaler decides, it is the number of ``existing`` (None: there is no such Deployment), at least 1.
    """
    present = existing["spec"].get("replicas", 1) if existing else 1
    return int(body["spec"].get("replicas", max(1, present)))


def _template_digest(body: Mapping[str, Any]) -> str:
    """Return the digest of a Deployment's pod template; empty: it has no such label."""
    metadata = body["spec"].get("template", {}).get("metadata") or {}
    return str((metadata.get("labels") or {}).get(TEMPLATE, ""))


def _backoff_for(backoff: PodBackoff | None, body: Mapping[str, Any], *, scaled: bool) -> PodBackoff | None:
    """Return the backoff; None if it is about another template, or an autoscaler would raise the number at once.

    ``body``: the Deployment. ``scaled``: whether it has an autoscaler, which does nothing only while the number of pods
    is 0.
    """
    if backoff is None or backoff.template != _template_digest(body) or (scaled and backoff.pods):
        return None
    return backoff


def _number(desired: int, present: int | None, backoff: PodBackoff | None, *, scaled: bool) -> int | None:
    """Return how many pods a Deployment gets; None: an autoscaler decides (``scaled``), so no number is written.

    ``desired``: how many it shall have. ``present``: how many it is to have now; None: there is no such number.
    """
    if backoff and not backoff.gated:
        return min(desired, backoff.pods)
    return None if scaled and present != 0 else desired


def _with_backoff(body: Body, backoff: PodBackoff | None, existing: Mapping[str, Any] | None) -> Body:
    """Return a Deployment with the number of pods that it may have, and a gate if new pods wait; others unchanged.

    ``existing``: the object in the cluster; None: there is none.
    """
    if body["kind"] != "Deployment":
        return body
    present = existing["spec"].get("replicas") if existing else None
    number = _number(_desired_pods(body, existing), present, backoff, scaled="replicas" not in body["spec"])
    gated = backoff is not None and backoff.gated
    if number == body["spec"].get("replicas") and not gated:
        return body
    spec, metadata = dict(body["spec"]), {k: v for k, v in body["metadata"].items() if k != "annotations"}
    if number is not None:
        spec["replicas"] = number
    if gated:
        pod = spec["template"]["spec"]
        waiting = {**pod, "schedulingGates": [*pod.get("schedulingGates", []), {"name": GATE}]}
        spec["template"] = {**spec["template"], "spec": waiting}
    return with_digest({**body, "metadata": metadata, "spec": spec})


def _is_named(body: Mapping[str, Any], worker: str) -> bool:
    """Whether a Deployment has the name that GM gives that of ``worker``: a copy that a user made has another name."""
    owners = {owner["name"] for owner in body["metadata"].get("ownerReferences") or []}
    return body["metadata"]["name"] in owners.union(*(object_names.deployment_names(name, worker) for name in owners))


def _rescale(existing: Mapping[str, Any], backoff: PodBackoff | None, number: int, *, scaled: bool) -> Iterator[Body]:
    """Yield the Deployment of an unchanged worker if its number of pods must change: its pods fail, or have failed.

    ``number``: how many pods it shall have at least. ``scaled``: whether it has an autoscaler.
    """
    spec = existing["spec"]
    present = spec.get("replicas", 1)
    shall = _number(max(number, present), present, _backoff_for(backoff, existing, scaled=scaled), scaled=scaled)
    if shall not in {None, present}:
        yield {**existing, "spec": {**spec, "replicas": shall}}


def _failing_problem(worker: str, backoff: PodBackoff) -> Problem:
    """Return the reason why a worker's next pod waits."""
    text = f"{worker} worker: its pods fail one after the other, so the next one waits; the last one: {backoff.failure}"
    return Problem("PodsFailing", text)


def with_digest(body: Body) -> Body:
    """Return an object with the digest of its desired content: GM writes all its fields again if that changes."""
    metadata = {**body["metadata"], "annotations": {DIGEST: object_names.digest(body)}}
    return {**body, "metadata": metadata}


def _missing_problem(reason: str, field: str, key: Key) -> Problem:
    """Return the problem that a resource named in a field does not exist."""
    return Problem(reason, f"{field}: {key} does not exist: apply it")


def check_service_name(name: str, limit: int = NAME_LIMIT) -> Problem | None:
    """Return the problem with a service's name, which begins the names of objects and labels; None: it is usable.

    ``limit``: most characters.
    """
    if len(name) > limit:
        fix = f"use at most {limit} characters: labels and other names contain it"
        return Problem("NameTooLong", str(InvalidFieldError("metadata.name", name, fix)))
    if not object_names.name_pattern.fullmatch(name):
        fix = "use lower-case letters, digits and '-', with a letter first: it is the name of a Service"
        return Problem("InvalidName", str(InvalidFieldError("metadata.name", name, fix)))
    return None
