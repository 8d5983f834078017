"""The part of a pod template that rules read. The template itself stays as the user wrote it.

Unlike the specs of halimede it may have unknown fields, because it is Kubernetes' type. A worker's autoscaling is next
to its template.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from halimede.api.base import Spec, convert
from halimede.api.schema import OptionalName, Path, ValidationRule
from halimede.errors import InvalidFieldError

#: an image of halimede's own worker, which needs no command; in any registry, of any variant
OWN_IMAGE = re.compile(r"(?:.+/)?halimede(?:/worker[\w.:@-]*|-worker(?:[:@].*)?)", re.ASCII)
#: Linux' limit of one argument or environment variable
Argument = Annotated[str, Meta(max_length=131_072)]
PartName = Annotated[str, Meta(max_length=63)]
LabelValue = Annotated[str, Meta(max_length=63)]
Replicas = Annotated[int, Meta(ge=1, le=10_000)]


class Part(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """A part of a pod template: unknown fields are Kubernetes' business."""


class EnvVar(Part, kw_only=True):
    """An environment variable; ``valueFrom`` is honoured by Kubernetes only."""

    name: Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^=\x00]+$", description="The variable's name.")]
    value: Annotated[Argument, Meta(description="Its value: text, so put numbers in quotes.")] = ""
    value_from: Annotated[
        dict[str, Any] | None,
        Meta(description="Where its value comes from (EnvVarSource); honoured by Kubernetes only."),
    ] = None


class VolumeMount(Part, kw_only=True):
    """Where a volume appears in the container."""

    name: Annotated[PartName, Meta(description="The volume's name.")]
    mount_path: Annotated[Path, Meta(description="Its path in the container.")]
    read_only: Annotated[bool, Meta(description="Whether it can only be read.")] = False


class Container(Part, kw_only=True):
    """The first container of a template is the worker."""

    name: Annotated[PartName, Meta(description="The container's name.")] = ""
    image: Annotated[str, Meta(max_length=1024, description="The image that it runs.")] = ""
    command: Annotated[
        list[Argument], Meta(max_length=256, description="The program and its first arguments; none: the image's.")
    ] = []
    args: Annotated[list[Argument], Meta(max_length=256, description="Arguments of the program.")] = []
    env: Annotated[
        list[EnvVar], Meta(max_length=256, description="Environment variables, added to those that workers are given.")
    ] = []
    working_dir: Annotated[Path, Meta(description="The folder that the program starts in.")] = ""
    volume_mounts: Annotated[list[VolumeMount], Meta(max_length=64, description="Where volumes appear.")] = []
    resources: Annotated[dict[str, Any], Meta(description="Requests and limits (ResourceRequirements).")] = {}
    security_context: Annotated[
        dict[str, Any] | None, Meta(description="What the container may do (SecurityContext).")
    ] = None


class HostPath(Part, kw_only=True):
    """A folder of the node."""

    path: Annotated[Path, Meta(description="The path on the node; the operator says which are allowed.")]
    type: Annotated[str, Meta(max_length=64, description="What must be there, such as Directory; empty: anything.")] = (
        ""
    )


class Volume(Part, kw_only=True):
    """A volume; only hostPath is honoured without Kubernetes."""

    name: Annotated[PartName, Meta(description="The volume's name, for volumeMounts.")]
    host_path: Annotated[HostPath | None, Meta(description="A file or folder of the node.")] = None


class PodSpec(Part, kw_only=True):
    """The pod."""

    containers: Annotated[
        list[Container], Meta(min_length=1, max_length=16, description="The containers; the first is the worker.")
    ]
    node_name: Annotated[OptionalName, Meta(description="The one node that the worker runs on.")] = ""
    node_selector: Annotated[
        dict[str, LabelValue],
        Meta(max_length=64, description="Labels of the nodes that the worker runs on, one worker a node."),
    ] = {}
    volumes: Annotated[list[Volume], Meta(max_length=64, description="Volumes that containers can mount.")] = []
    restart_policy: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="Kubernetes' restart policy; workers are always started again."),
    ] = None
    security_context: Annotated[
        dict[str, Any] | None, Meta(description="What the pod may do (PodSecurityContext).")
    ] = None
    termination_grace_period_seconds: Annotated[
        int, Meta(ge=0, le=3600, description="Seconds that the worker has to drain before it is killed.")
    ] = 30


class PodTemplate(Part, kw_only=True):
    """A PodTemplateSpec."""

    metadata: Annotated[dict[str, Any], Meta(description="Labels and annotations of the pods.")] = {}
    spec: Annotated[PodSpec, Meta(description="The pod: a PodSpec, of which the fields shown are checked here.")]


class Autoscaler(Spec, kw_only=True):
    """How many pods of a worker there may be, and what makes them more or fewer. Kubernetes only."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
            "must not be more than maxReplicas",
            ".minReplicas",
        ),
    )

    min_replicas: Annotated[Replicas, Meta(description="The least number of pods.")] = 1
    max_replicas: Annotated[Replicas, Meta(description="The greatest number of pods.")]
    metrics: Annotated[
        list[dict[str, Any]],
        Meta(max_length=16, description="What is measured and its target: MetricSpecs of autoscaling/v2."),
    ] = []
    behavior: Annotated[
        dict[str, Any], Meta(description="How fast it scales: HorizontalPodAutoscalerBehavior of autoscaling/v2.")
    ] = {}


def check_autoscaler(value: object, path: str) -> None:
    """Check a worker's ``hpa``, which stays as the user wrote it. Raises InvalidFieldError."""
    hpa = convert(value, Autoscaler, path)
    if hpa.min_replicas > hpa.max_replicas:
        raise InvalidFieldError(f"{path}.minReplicas", hpa.min_replicas, "must not be more than maxReplicas")


def brings_code(template: dict[str, Any]) -> bool:
    """Whether the worker of a checked template may run code that halimede does not know."""
    worker = convert(template, PodTemplate, "template").spec.containers[0]
    foreign = bool(worker.image) and not OWN_IMAGE.fullmatch(worker.image)
    added = worker.command or worker.working_dir or any(variable.name == "PYTHONPATH" for variable in worker.env)
    return foreign or bool(added)
