"""The part of a pod template that rules read. The template itself stays as the user wrote it.

Unlike the specs of halimede it may have unknown fields, because it is Kubernetes' type. ``Autoscaler`` is next to a
worker's template.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from halimede.api.base import Spec, convert
from halimede.api.schema import OptionalName, Path, ValidationRule
from halimede.errors import InvalidFieldError
from halimede.names import FIX

#: an image of halimede's own worker, which needs no command; in any registry, of any variant
OWN_IMAGE = re.compile(r"(?:.+/)?halimede(?:/worker[\w.:@-]*|-worker(?:[:@].*)?)", re.ASCII)
#: text of an argument or an environment variable: Linux' limit of one
Argument = Annotated[str, Meta(max_length=131_072)]
#: the name of a container or volume, the value of a node's label, and a number of pods
PartName = Annotated[str, Meta(max_length=63)]
LabelValue = Annotated[str, Meta(max_length=63)]
Replicas = Annotated[int, Meta(ge=1, le=10_000)]


class Part(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """A part of a pod template: unknown fields are Kubernetes' business."""


class EnvVar(Part, kw_only=True):
    """An environment variable; ``valueFrom`` is honoured by Kubernetes only."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=256,
            pattern=r"^[^=\x00]+$",
            description="The variable's name.",
            extra={FIX: "remove each '=' and NUL: the name of a variable has neither"},
        ),
    ]
    value: Annotated[Argument, Meta(description="The value: a string, so put numbers in quotes.")] = ""
    value_from: Annotated[
        dict[str, Any] | None, Meta(description="The source of its value (EnvVarSource); Kubernetes only.")
    ] = None


class VolumeMount(Part, kw_only=True):
    """Where a volume appears in the container."""

    name: Annotated[PartName, Meta(description="The volume's name.")]
    mount_path: Annotated[Path, Meta(description="Its path in the container.")]
    read_only: Annotated[bool, Meta(description="Whether it is read-only.")] = False


class Container(Part, kw_only=True):
    """The first container of a template is the worker."""

    name: Annotated[PartName, Meta(description="The container's name.")] = ""
    image: Annotated[str, Meta(max_length=1024, description="The image that it runs.")] = ""
    command: Annotated[
        list[Argument], Meta(max_length=256, description="The program and its first arguments; none: the image's.")
    ] = []
    args: Annotated[list[Argument], Meta(max_length=256, description="Arguments of the program.")] = []
    env: Annotated[
        list[EnvVar], Meta(max_length=256, description="Environment variables, in addition to those of all workers.")
    ] = []
    working_dir: Annotated[Path, Meta(description="The working directory of the program.")] = ""
    volume_mounts: Annotated[list[VolumeMount], Meta(max_length=64, description="Mount paths of volumes.")] = []
    resources: Annotated[dict[str, Any], Meta(description="Requests and limits (ResourceRequirements).")] = {}
    security_context: Annotated[
        dict[str, Any] | None, Meta(description="The container's security context (SecurityContext).")
    ] = None


class HostPath(Part, kw_only=True):
    """A folder of the node."""

    path: Annotated[Path, Meta(description="The path on the node; the operator configures the allowed ones.")]
    type: Annotated[str, Meta(max_length=64, description="The required type, such as Directory; empty: any.")] = ""


class Volume(Part, kw_only=True):
    """A volume; only hostPath is honoured without Kubernetes."""

    name: Annotated[PartName, Meta(description="The volume's name, for volumeMounts.")]
    host_path: Annotated[HostPath | None, Meta(description="A file or folder of the node.")] = None


class PodSpec(Part, kw_only=True):
    """The pod."""

    containers: Annotated[
        list[Container], Meta(min_length=1, max_length=16, description="The containers; the first is the worker.")
    ]
    node_name: Annotated[OptionalName, Meta(description="The node that the worker runs on.")] = ""
    node_selector: Annotated[
        dict[str, LabelValue],
        Meta(max_length=64, description="Labels of the nodes that the worker runs on, one worker on each node."),
    ] = {}
    volumes: Annotated[list[Volume], Meta(max_length=64, description="Volumes for the containers.")] = []
    restart_policy: Annotated[
        Annotated[str, Meta(max_length=64)] | None,
        Meta(description="The restart policy of Kubernetes; workers always restart."),
    ] = None
    security_context: Annotated[
        dict[str, Any] | None, Meta(description="The pod's security context (PodSecurityContext).")
    ] = None
    termination_grace_period_seconds: Annotated[
        int, Meta(ge=0, le=3600, description="Seconds for the worker to drain before it is killed.")
    ] = 30


class PodTemplate(Part, kw_only=True):
    """A PodTemplateSpec."""

    metadata: Annotated[dict[str, Any], Meta(description="Labels and annotations of the pods.")] = {}
    spec: Annotated[PodSpec, Meta(description="The pod: a PodSpec; the fields listed here are checked.")]


class Autoscaler(Spec, kw_only=True):
    """How many pods of a worker there may be, and what makes them more or fewer. Kubernetes only."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
            "must not be more than maxReplicas",
            ".minReplicas",
        ),
    )

    min_replicas: Annotated[Replicas, Meta(description="The minimum number of pods.")] = 1
    max_replicas: Annotated[Replicas, Meta(description="The maximum number of pods.")]
    metrics: Annotated[
        list[dict[str, Any]],
        Meta(max_length=16, description="The metrics and their targets: MetricSpecs of autoscaling/v2."),
    ] = []
    behavior: Annotated[
        dict[str, Any], Meta(description="The speed of scaling: HorizontalPodAutoscalerBehavior of autoscaling/v2.")
    ] = {}


def check_autoscaler(value: object, path: str) -> None:
    """Check a worker's ``hpa`` at ``path``, which stays as the user wrote it. Raises InvalidFieldError."""
    hpa = convert(value, Autoscaler, path)
    if hpa.min_replicas > hpa.max_replicas:
        raise InvalidFieldError(f"{path}.minReplicas", hpa.min_replicas, "must not be more than maxReplicas")


def may_run_foreign_code(template: dict[str, Any]) -> bool:
    """Whether the worker of a template may run code that halimede does not know, by image, command or module path.

    True for an invalid template: nothing is known of it.
    """
    worker = _worker(template)
    if worker is None:
        return True
    has_foreign_image = bool(worker.image) and not OWN_IMAGE.fullmatch(worker.image)
    settings = worker.command or worker.working_dir or any(variable.name == "PYTHONPATH" for variable in worker.env)
    return has_foreign_image or bool(settings)


def may_run_own_code(template: dict[str, Any]) -> bool:
    """Whether the worker of a template may read its model with the user's code: an estimator, or any foreign code."""
    worker = _worker(template)
    has_estimator = worker is not None and any(variable.name == "ESTIMATOR" for variable in worker.env)
    return has_estimator or may_run_foreign_code(template)


def _worker(template: dict[str, Any]) -> Container | None:
    """Return the worker of a template; None if the template is not valid, which its own check reports."""
    try:
        return convert(template, PodTemplate, "template").spec.containers[0]
    except InvalidFieldError:
        return None
