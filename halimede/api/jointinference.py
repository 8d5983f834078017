"""JointInferenceService, today's Sedna form: a small model at the edge, a big one in the cloud, a rule between."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from halimede.api.base import SEDNA, Spec, convert, register
from halimede.api.podtemplate import PodTemplate
from halimede.errors import InvalidFieldError
from halimede.messages import Label
from halimede.names import check_name

PLURAL = "jointinferenceservices"


class ModelRef(Spec, kw_only=True):
    """A Model of the same namespace."""

    name: Annotated[str, Meta(min_length=1, max_length=253)]


class DatasetRef(Spec, kw_only=True):
    """A Dataset of the same namespace."""

    name: Annotated[str, Meta(min_length=1, max_length=253)]


class Parameter(Spec, kw_only=True):
    """A key and a value, both text as in Sedna."""

    key: Annotated[str, Meta(min_length=1, max_length=128)]
    value: Annotated[str, Meta(max_length=4096)]


class HardExampleMining(Spec, kw_only=True):
    """The mining algorithm, such as IBT, CrossEntropy or Margin, and its parameters."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    parameters: Annotated[list[Parameter], Meta(max_length=32)] = []


class Source(Spec, kw_only=True):
    """Where the edge workers take frames from: camera topics, a folder of images on the node, or a stream's URL."""

    cameras: Annotated[list[Label], Meta(max_length=64)] = []
    path: Annotated[str, Meta(max_length=4096)] = ""
    url: Annotated[str, Meta(max_length=4096)] = ""


class EdgeWorker(Spec, kw_only=True):
    """The small model, when to ask the cloud, where frames come from, and the pod that runs it.

    Without ``source`` the worker takes the frames of the camera that is named like the service.
    ``deadlineMs`` is how long a hard sample may wait for the cloud before the edge answers it itself.
    """

    model: ModelRef
    hard_example_mining: HardExampleMining
    template: dict[str, Any]
    hpa: dict[str, Any] | None = None
    source: Source | None = None
    deadline_ms: Annotated[int, Meta(ge=1, le=600_000)] = 2000


class CloudWorker(Spec, kw_only=True):
    """The big model and the pod that runs it."""

    model: ModelRef
    template: dict[str, Any]
    hpa: dict[str, Any] | None = None


def check(spec: JointInferenceServiceSpec) -> None:
    """Check names, templates and that a source is of one kind."""
    for role, worker in (("edgeWorker", spec.edge_worker), ("cloudWorker", spec.cloud_worker)):
        check_name(f"spec.{role}.model.name", worker.model.name)
        template = convert(worker.template, PodTemplate, f"spec.{role}.template")
        if template.spec.node_name:
            check_name(f"spec.{role}.template.spec.nodeName", template.spec.node_name)
    if spec.dataset:
        check_name("spec.dataset.name", spec.dataset.name)
    source = spec.edge_worker.source
    if source and sum(map(bool, (source.cameras, source.path, source.url))) != 1:
        raise InvalidFieldError("spec.edgeWorker.source", source, "give one of cameras, path and url")
    if source and source.path and not source.path.startswith("/"):
        raise InvalidFieldError("spec.edgeWorker.source.path", source.path, "write an absolute path on the node")


@register(SEDNA, "JointInferenceService", PLURAL, "ji", "jointinferenceservice", check=check)
class JointInferenceServiceSpec(Spec, kw_only=True):
    """What a user asks of joint inference."""

    edge_worker: EdgeWorker
    cloud_worker: CloudWorker
    dataset: DatasetRef | None = None
