"""The part of a pod template that rules read. The template itself stays as the user wrote it.

Unlike our own specs it may hold fields that we do not know: it is Kubernetes' type, not ours.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct


class Part(Struct, rename="camel", kw_only=True, omit_defaults=True):
    """A part of a pod template: unknown fields are Kubernetes' business."""


class EnvVar(Part, kw_only=True):
    """An environment variable; ``valueFrom`` is honoured by Kubernetes only."""

    name: Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^=\x00]+$")]
    value: str = ""
    value_from: dict[str, Any] | None = None


class VolumeMount(Part, kw_only=True):
    """Where a volume appears in the container."""

    name: str
    mount_path: str
    read_only: bool = False


class Container(Part, kw_only=True):
    """The first container of a template is the worker."""

    name: str = ""
    image: str = ""
    command: Annotated[list[str], Meta(max_length=256)] = []
    args: Annotated[list[str], Meta(max_length=256)] = []
    env: Annotated[list[EnvVar], Meta(max_length=256)] = []
    working_dir: str = ""
    volume_mounts: Annotated[list[VolumeMount], Meta(max_length=64)] = []
    resources: dict[str, Any] = {}
    security_context: dict[str, Any] | None = None


class HostPath(Part, kw_only=True):
    """A folder of the node."""

    path: str
    type: str = ""


class Volume(Part, kw_only=True):
    """A volume; only hostPath is honoured without Kubernetes."""

    name: str
    host_path: HostPath | None = None


class PodSpec(Part, kw_only=True):
    """The pod."""

    containers: Annotated[list[Container], Meta(min_length=1, max_length=16)]
    node_name: str = ""
    node_selector: Annotated[dict[str, str], Meta(max_length=64)] = {}
    volumes: Annotated[list[Volume], Meta(max_length=64)] = []
    restart_policy: str | None = None
    security_context: dict[str, Any] | None = None
    termination_grace_period_seconds: Annotated[int, Meta(ge=0, le=3600)] = 30


class PodTemplate(Part, kw_only=True):
    """A PodTemplateSpec."""

    metadata: dict[str, Any] = {}
    spec: PodSpec
