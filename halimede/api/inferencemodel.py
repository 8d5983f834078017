"""InferenceModel: a model that is served on its own, as the seeds (the defining documents) have it, at edge or cloud.

The seeds define it in two groups, ``sedna.io`` and ``ai.kubeedge.io``; GM translates the second with ``to_sedna``. An
image overrides manifest and target version. An invalid checksum is stored all the same (the seeds' type is plain text):
it becomes a condition, and nothing is downloaded for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, field

from halimede.api.base import SEDNA, KindOptions, Resource, Spec, register
from halimede.api.model import ONCE_FIX, SCHEME_FIX, SCHEMES, ModelSpec, RolloutSpec
from halimede.api.model_formats import format_of
from halimede.api.neptune import ORIGIN
from halimede.api.podtemplate import Container, EnvVar, LabelValue, PodSpec
from halimede.api.processing import (
    ClassNames,
    DecodeMode,
    Postprocessing,
    Preprocessing,
    check_postprocess,
    check_processing,
    check_scripts,
)
from halimede.api.schema import AGE, MESSAGE, PHASE, REASON, OptionalName, PrinterColumn, ValidationRule
from halimede.errors import InvalidFieldError, check_all, refuse
from halimede.messages import ResourceBody
from halimede.names import check_name

#: the second group of the kind
KUBEEDGE = "ai.kubeedge.io/v1alpha1"
#: the kind's name in commands and topics
PLURAL = "inferencemodels"
#: plural and short names of the kind
NAMES = (PLURAL, "im", "inferencemodel")
#: the only role of its workers, in reports and in their names
ROLE: Literal["serve"] = "serve"
#: most characters of its name: on Kubernetes a Service and labels are named after it
NAME_LIMIT = 46
#: frameworks that halimede's own server serves on Kubernetes; others need an image that an operator configures
OWN_FRAMEWORKS = frozenset({"onnx", "onnxruntime"})
#: node labels for a model that names no node
LAYER_LABELS = {"edge": "node-role.kubernetes.io/edge", "cloud": "node-role.kubernetes.io/cloud"}
#: texts of errors: what to write
CONTENT_FIX = "give an image, or a manifest with at least one version"
TARGET_FIX = "use one of the manifest's versions"
PATH_FIX = "start it with /"
#: a valid checksum
SHA256 = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
#: columns of ``kubectl get``
LAYER = PrinterColumn("Layer", ".spec.deployToLayer", "Where it is served: edge or cloud.")
VERSION = PrinterColumn("Version", ".status.servingVersion", "The version that serves.")
READY = PrinterColumn("Ready", ".status.active", "Servers that are ready.", "integer")
URL = PrinterColumn("URL", ".status.url", "Where it is served.")
COLUMNS = (PHASE, REASON, LAYER, VERSION, READY, URL, AGE, MESSAGE)

#: the name of a version; empty: it has none, or none is named
VersionName = Annotated[str, Meta(max_length=128)]


class ModelFile(Spec, kw_only=True):
    """One version of the model: a file, or an archive of the whole folder."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            "has(self.downloadURL) && ("
            + " || ".join(f"self.downloadURL.startsWith('{scheme}')" for scheme in SCHEMES)
            + ")",
            SCHEME_FIX,
            ".downloadURL",
        ),
    )

    version: Annotated[VersionName, Meta(description="Name of the version.")] = ""
    download_url: Annotated[
        str,
        Meta(
            max_length=4096,
            description="Address of the file or archive: an absolute path on the node,"
            " or a file, http, https, s3 or bus URL.",
        ),
    ] = field(name="downloadURL", default="")
    sha256sum: Annotated[
        str,
        Meta(
            max_length=256,
            description="Its SHA-256 in hexadecimal, checked before use. An invalid value becomes a condition.",
        ),
    ] = ""


class Ingress(Spec, kw_only=True):
    """How the model is reached from outside of a cluster by HTTP; Kubernetes only."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule("!has(self.path) || self.path.startsWith('/')", PATH_FIX, ".path"),
    )

    host: Annotated[OptionalName, Meta(description="The host name of requests; empty: any.")] = ""
    path: Annotated[str, Meta(max_length=1024, description="The path prefix of requests.")] = "/"
    class_name: Annotated[OptionalName, Meta(description="The ingress class; empty: the cluster's default.")] = ""
    tls_secret: Annotated[OptionalName, Meta(description="A Secret with the host's certificate, for https.")] = ""


def check(spec: InferenceModelSpec) -> None:
    """Check names, addresses, versions and processing. Raises InvalidFieldError with all errors."""
    ingress = spec.ingress or Ingress()
    names = {
        "spec.nodeName": spec.node_name,
        "spec.ingress.host": ingress.host,
        "spec.ingress.className": ingress.class_name,
        "spec.ingress.tlsSecret": ingress.tls_secret,
    }
    errors = [
        InvalidFieldError(f"spec.manifest[{i}].downloadURL", file.download_url, SCHEME_FIX)
        for i, file in enumerate(spec.manifest)
        if not file.download_url.startswith(SCHEMES)
    ]
    if not ingress.path.startswith("/"):
        errors.append(InvalidFieldError("spec.ingress.path", ingress.path, PATH_FIX))
    check_all(
        *(partial(check_name, at, name) for at, name in names.items() if name),
        partial(refuse, errors),
        partial(check_processing, spec.preprocess, spec.postprocess),
        partial(_check_versions, spec),
    )


def admit(spec: InferenceModelSpec) -> None:
    """Check what a worker would refuse at its start: scripts, and how outputs are read. Raises InvalidFieldError.

    Called in addition to ``check`` for a spec that a user creates or changes, and not for a stored one.
    """
    urls = {f"spec.manifest[{i}].downloadURL": file.download_url for i, file in enumerate(spec.manifest)}
    scripted = bool(spec.postprocess and spec.postprocess.script)
    check_all(
        # other servers read their own fields, but have no scripts
        *([partial(check_postprocess, spec.postprocess)] if is_ours(spec) or scripted else []),
        partial(check_scripts, spec.preprocess, spec.postprocess, urls, is_known_format=can_run_on_nodes(spec)),
    )


def _check_versions(spec: InferenceModelSpec) -> None:
    """Check that there is an image, or a manifest with different versions and the target version among them."""
    if spec.image:
        return
    versions = [file.version for file in spec.manifest]
    if not versions:
        raise InvalidFieldError("spec.manifest", spec.manifest, CONTENT_FIX)
    if repeated := [version for i, version in enumerate(versions) if version in versions[:i]]:
        raise InvalidFieldError("spec.manifest", repeated[0], ONCE_FIX)
    if spec.target_version and spec.target_version not in versions:
        raise InvalidFieldError("spec.targetVersion", spec.target_version, TARGET_FIX)


#: the options of the kind, in both groups
OPTIONS = KindOptions(check=check, admit=admit, columns=COLUMNS, name_limit=NAME_LIMIT, order=2, versioned=True)


@register(SEDNA, "InferenceModel", *NAMES, **OPTIONS)
@register(KUBEEDGE, "InferenceModel", *NAMES, **OPTIONS)
class InferenceModelSpec(Spec, kw_only=True):
    """A model that is served by itself: from an image, or from files that a serving image of its framework loads."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            "(has(self.image) && self.image != '') || (has(self.manifest) && size(self.manifest) > 0)",
            CONTENT_FIX,
            ".manifest",
        ),
        ValidationRule(
            "(has(self.image) && self.image != '') || !has(self.targetVersion) || self.targetVersion == ''"
            " || (has(self.manifest)"
            " && self.manifest.exists(file, has(file.version) && file.version == self.targetVersion))",
            TARGET_FIX,
            ".targetVersion",
        ),
        ValidationRule(
            "(has(self.image) && self.image != '') || !has(self.manifest) || self.manifest.all(file,"
            " self.manifest.exists_one(other, (has(other.version) ? other.version : '')"
            " == (has(file.version) ? file.version : '')))",
            ONCE_FIX,
            ".manifest",
        ),
    )

    model_name: Annotated[
        str, Meta(min_length=1, max_length=253, description="The model's name in the inference protocol.")
    ]
    deploy_to_layer: Annotated[
        Literal["edge", "cloud"], Meta(description="Where it is served: edge (one server) or cloud (replicas of it).")
    ]
    framework_type: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=64,
            description="The framework, which selects the server. Without Kubernetes: onnx, tflite or tensorflow.",
        ),
    ]
    node_selector: Annotated[
        dict[str, LabelValue], Meta(max_length=64, description="Labels of the nodes on which it may be served.")
    ] = {}
    node_name: Annotated[OptionalName, Meta(description="The node on which it is served.")] = ""
    image: Annotated[
        Annotated[str, Meta(max_length=1024)] | None,
        Meta(description="An image that serves the model, in place of a manifest; Kubernetes only."),
    ] = None
    manifest: Annotated[list[ModelFile], Meta(max_length=64, description="The model's versions.")] = []
    target_version: Annotated[
        VersionName, Meta(description="The version to serve; empty: the last of the manifest.")
    ] = ""
    serving_port: Annotated[
        int, Meta(ge=0, le=65_535, description="The port of the server; 0: a free one (on Kubernetes 8080).")
    ] = 0
    replicas: Annotated[
        Annotated[int, Meta(ge=0, le=10_000)] | None,
        Meta(
            description="The number of servers in the cloud (default 1); 0: none."
            " Without Kubernetes each node runs at most one."
        ),
    ] = None
    credential_name: Annotated[
        str, Meta(max_length=253, description="A Secret of the namespace with ACCESS_KEY_ID and SECRET_ACCESS_KEY.")
    ] = ""
    service_type: Annotated[
        Literal["", "ClusterIP", "NodePort", "LoadBalancer"],
        Meta(
            description="How the model's Service is exposed; Kubernetes only."
            " Empty: ClusterIP; NodePort and LoadBalancer open it to clients outside of the cluster."
        ),
    ] = ""
    ingress: Annotated[Ingress | None, Meta(description="An Ingress in front of the Service.")] = None
    resources: Annotated[
        dict[str, Any],
        Meta(
            description="Requests and limits of the server (ResourceRequirements)."
            " Without Kubernetes only limits.memory is used."
        ),
    ] = {}
    env: Annotated[list[EnvVar], Meta(max_length=256, description="Environment variables of the server.")] = []
    labels: ClassNames = []
    decode: DecodeMode = "exact"
    preprocess: Preprocessing = []
    postprocess: Postprocessing = None
    rollout: Annotated[RolloutSpec | None, Meta(description="How a new version replaces the previous one.")] = None


@dataclass(frozen=True, slots=True)
class ServedVersionSpec:
    """A version that is to be served: its name, its ``url``, and its ``sha256`` as the user wrote it."""

    version: str
    url: str
    sha256: str

    @property
    def is_checksum_valid(self) -> bool:
        """Whether ``sha256`` is 64 hexadecimal digits, or empty: then the file is not checked."""
        return not self.sha256 or SHA256.fullmatch(self.sha256) is not None


def target(spec: InferenceModelSpec) -> ServedVersionSpec | None:
    """Return the desired version: the target, else the last of the manifest; None if an image contains the model."""
    if spec.image or not spec.manifest:
        return None
    targets = (file for file in spec.manifest if spec.target_version and file.version == spec.target_version)
    file = next(targets, spec.manifest[-1])
    return ServedVersionSpec(file.version, file.download_url, file.sha256sum)


def model_spec(spec: InferenceModelSpec, version: ServedVersionSpec) -> ModelSpec:
    """Return a version as the spec of a Model, for halimede's own server."""
    return ModelSpec(
        url=version.url,
        format="onnx" if is_ours(spec) else spec.framework_type.lower(),
        sha256=version.sha256.lower() if version.is_checksum_valid else "",
        credential_name=spec.credential_name,
        labels=spec.labels,
        decode=spec.decode,
        preprocess=spec.preprocess,
        postprocess=spec.postprocess,
    )


def is_ours(spec: InferenceModelSpec) -> bool:
    """Whether halimede's own server serves the framework on Kubernetes."""
    return spec.framework_type.lower() in OWN_FRAMEWORKS


def can_run_on_nodes(spec: InferenceModelSpec) -> bool:
    """Whether nodes that run workers themselves can serve the framework, with the package that it needs."""
    return is_ours(spec) or format_of(spec.framework_type) is not None


def desired_servers(spec: InferenceModelSpec) -> int:
    """Return the desired number of servers: ``replicas`` (1 if it is not set), at the edge at most one."""
    replicas = 1 if spec.replicas is None else spec.replicas
    return min(1, replicas) if spec.deploy_to_layer == "edge" else replicas


def pod(spec: InferenceModelSpec) -> PodSpec:
    """Return a pod that selects the model's nodes: ``nodeName``, else ``nodeSelector``, else all of its layer."""
    selector = spec.node_selector or {LAYER_LABELS[spec.deploy_to_layer]: ""}
    return PodSpec(
        containers=[Container(image=spec.image or "")],
        node_name=spec.node_name,
        node_selector={} if spec.node_name else selector,
    )


def to_sedna(resource: Resource[InferenceModelSpec]) -> ResourceBody:
    """Return the same resource in sedna.io form; an annotation (``ORIGIN``) names its original group."""
    metadata = dict(resource.body["metadata"])
    metadata["annotations"] = {**(metadata.get("annotations") or {}), ORIGIN: resource.kind.api_version}
    return {**resource.body, "apiVersion": SEDNA, "metadata": metadata}
