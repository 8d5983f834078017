"""The objects that stand for a service in a cluster that runs pods: two Deployments, a Service, autoscalers.

A role that names what is missing, or asks for what is not allowed, gets no object; those that it has are kept, so a
misspelt name or a tightened rule costs no running worker.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from halimede.api import Resource, placements
from halimede.api.dataset import PLURAL as DATASETS
from halimede.api.jointinference import NAME_LIMIT, EdgeWorker, JointInferenceServiceSpec
from halimede.api.model import PLURAL as MODELS
from halimede.api.placement import Placement
from halimede.errors import InvalidFieldError
from halimede.names import Key
from services.gm.cluster.port import Ref
from services.gm.selection import described, selectors
from services.gm.tally import Problem
from services.gm.workloads import identity
from services.gm.workloads.delivery import Delivery, deliver, host_file, needs_secret
from services.gm.workloads.identity import DIGEST, PAIR, WORKER_TYPE, Body, Role
from services.gm.workloads.policy import check_host_path, check_template
from services.gm.workloads.settings import PodSettings
from services.gm.workloads.template import BIG_MODEL_PORT, check_mounts, pod_template

References = Mapping[Key, Resource[Any] | None]
VERSIONS = {
    "Deployment": "apps/v1",
    "Service": "v1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
    "Ingress": "networking.k8s.io/v1",
}
AUTOSCALED = ("minReplicas", "maxReplicas", "metrics", "behavior")


@dataclass(frozen=True, slots=True)
class Built:
    """What shall stand for a service; of roles in ``kept``, what stands is left alone. ``problems`` say why."""

    objects: tuple[Body, ...] = ()
    kept: frozenset[Role] = frozenset()
    problems: tuple[Problem, ...] = ()


def build(
    service: Resource[JointInferenceServiceSpec],
    references: References,
    secrets: Mapping[str, Body | None],
    settings: PodSettings,
) -> Built:
    """Return the objects of a service in sedna.io form, and what is in the way of others.

    ``references`` and ``secrets`` hold what it names, None for what is not there; of a Secret, the metadata.
    """
    if problem := check_service_name(service.metadata.name):
        return Built(kept=frozenset(PAIR), problems=(problem,))
    objects: list[Body] = [_network(service)]
    kept: set[Role] = set()
    problems: list[Problem] = []
    for place in placements(service.spec):
        found = list(_problems(service, place, references, secrets, settings))
        if found:
            kept.add(place.role)
            problems += found
        else:
            objects += _role(service, place, references, secrets, settings)
    return Built(tuple(map(signed, objects)), frozenset(kept), tuple(problems))


def unchosen(service: Resource[JointInferenceServiceSpec], *roles: Role) -> Iterator[Problem]:
    """Yield the roles (all, if none is named) for which no Model was found: it heals when one appears that fits."""
    for role, selector in selectors(service).items():
        if not roles or role in roles:
            text = f"no Model of namespace {service.metadata.namespace} has {described(selector)}: apply one"
            yield Problem("ModelNotFound", f"spec.{role}Worker.model.selector: {text}")


def secret_names(service: Resource[Any], references: References, settings: PodSettings) -> frozenset[str]:
    """Return the Secrets of its namespace that ``build`` wants to know of."""
    names = set()
    for place in placements(service.spec):
        names |= set(_secrets(place, references.get(_model_key(service, place)), settings).values())
    return frozenset(names)


def replicas(built: Built, existing: Mapping[Ref, Mapping[str, Any]]) -> dict[str, int]:
    """Return how many pods each role shall have; a role that has no Deployment and gets none is left out."""
    bodies = [*existing.values(), *built.objects]
    wanted: dict[str, int] = {}
    for body in bodies:
        if body.get("kind") == "Deployment":
            role = (body["metadata"].get("labels") or {}).get(WORKER_TYPE, "")
            wanted[role] = body["spec"].get("replicas", wanted.get(role, 1))
    return wanted


def _role(
    service: Resource[Any],
    place: Placement,
    references: References,
    secrets: Mapping[str, Body | None],
    settings: PodSettings,
) -> Iterator[Body]:
    model = references[_model_key(service, place)]
    assert model is not None  # noqa: S101  # _problems has looked
    secret = secrets.get(needs_secret(model.spec))
    delivery = _delivery(place, model, secret, settings)
    spec: Body = {
        # Deployments keep ten old templates: one is enough to look at
        "revisionHistoryLimit": 1,
        "selector": {"matchLabels": identity.selector(service, place.role)},
        "template": pod_template(service, place, model, delivery, settings),
    }
    if place.worker.hpa is None:
        spec["replicas"] = 1
    name = identity.deployment_name(service.metadata.name, place.role)
    yield made(service, place.role, "Deployment", name, spec)
    if place.worker.hpa is not None:
        target = {"apiVersion": VERSIONS["Deployment"], "kind": "Deployment", "name": name}
        scaled = {field: place.worker.hpa[field] for field in AUTOSCALED if place.worker.hpa.get(field) is not None}
        name = identity.autoscaler_name(service.metadata.name, place.role)
        spec = {"scaleTargetRef": target, **scaled}
        yield made(service, place.role, "HorizontalPodAutoscaler", name, spec)


def _delivery(place: Placement, model: Resource[Any], secret: Body | None, settings: PodSettings) -> Delivery:
    """Return how its model gets to a role. Archives of other formats are for their own code to open, such as .pt."""
    worker = place.worker.template["spec"]["containers"][0]
    return deliver(model.spec, worker, secret, settings, unpack=model.spec.is_onnx)


def _network(service: Resource[Any]) -> Body:
    """Return the Service by which Sedna's own scripts find the cloud workers; ours meet on the bus."""
    port = {"name": "big-model", "port": BIG_MODEL_PORT, "targetPort": BIG_MODEL_PORT, "protocol": "TCP"}
    spec = {"selector": identity.selector(service, "cloud"), "ports": [port]}
    return made(service, "cloud", "Service", identity.network_name(service.metadata.name), spec)


def made(service: Resource[Any], role: Role, kind: str, name: str, spec: Body) -> Body:
    """Return an object of a service."""
    metadata = {
        "name": name,
        "namespace": service.metadata.namespace,
        "labels": identity.labels(service, role),
        "ownerReferences": [identity.owner(service)],
    }
    return {"apiVersion": VERSIONS[kind], "kind": kind, "metadata": metadata, "spec": spec}


def signed(body: Body) -> Body:
    """Add the mark of what the object shall hold: where it differs, everything is written anew."""
    metadata = {**body["metadata"], "annotations": {DIGEST: identity.digest(body)}}
    return {**body, "metadata": metadata}


def _problems(
    service: Resource[Any],
    place: Placement,
    references: References,
    secrets: Mapping[str, Body | None],
    settings: PodSettings,
) -> Iterator[Problem]:
    at = f"spec.{place.role}Worker"
    model = references.get(_model_key(service, place))
    if place.worker.model.selector:
        yield from unchosen(service, place.role)
    elif model is None:
        yield _missing("ModelNotFound", f"{at}.model.name", _model_key(service, place))
    elif path := host_file(model.spec.url):
        field = f"{at}.model.name: Model {model.metadata.name}: spec.url"
        # its whole folder is mounted
        yield from check_host_path(field, posixpath.dirname(posixpath.normpath(path)), settings)
    dataset = service.spec.dataset
    if dataset and place.role == "edge":
        key = Key(DATASETS, service.metadata.namespace, dataset.name)
        if references.get(key) is None:
            yield _missing("DatasetNotFound", "spec.dataset.name", key)
    for what, name in _secrets(place, model, settings).items():
        if secrets.get(name) is None:
            fix = f"there is no Secret {service.metadata.namespace}/{name}: create it"
            yield Problem("SecretNotFound", f"{at}: {what}: {fix}")
    if isinstance(place.worker, EdgeWorker) and place.worker.source and place.worker.source.path:
        yield from check_host_path(f"{at}.source.path", place.worker.source.path, settings)
    table = settings.images if identity.translated(service) else {}
    yield from check_template(place.worker.template, f"{at}.template", settings, table)
    if model is not None:
        delivery = _delivery(place, model, None, settings)
        yield from check_mounts(place, delivery, f"{at}.template", settings)


def _secrets(place: Placement, model: Resource[Any] | None, settings: PodSettings) -> dict[str, str]:
    """Return the Secrets that a role needs, by what for."""
    names = {}
    if settings.credentials:
        name = settings.edge_secret if place.role == "edge" else settings.cloud_secret
        names["what its workers show the broker"] = name
    if model is not None and (name := needs_secret(model.spec)):
        names[f"Model {model.metadata.name}: spec.credentialName"] = name
    return names


def _model_key(service: Resource[Any], place: Placement) -> Key:
    return Key(MODELS, service.metadata.namespace, place.worker.model.name)


def _missing(reason: str, field: str, key: Key) -> Problem:
    return Problem(reason, f"{field}: {key} does not exist: apply it")


def check_service_name(name: str) -> Problem | None:
    """Return what is wrong with a name after which a Service and labels shall be named."""
    if len(name) > NAME_LIMIT:
        fix = f"keep it to {NAME_LIMIT} characters: labels and other names are made of it"
        return Problem("NameTooLong", str(InvalidFieldError("metadata.name", name, fix)))
    if not identity.name_pattern.fullmatch(name):
        fix = "use lower-case letters, digits and '-', with a letter first: a Service is named after it"
        return Problem("InvalidName", str(InvalidFieldError("metadata.name", name, fix)))
    return None
