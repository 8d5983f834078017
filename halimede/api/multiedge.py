"""MultiEdgeInferenceService: several edge nodes work on one application.

The ``application`` is a graph of stages (``halimede.multiedge``). Each edge worker, a member, runs them for its own
sources. Their findings come together in the joint: in the cloud worker, or without one in the edge worker that has been
online longest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, ClassVar

from msgspec import Meta

from halimede.api.base import SEDNA, Spec, register
from halimede.api.deferral import ModelRef, Parameter
from halimede.api.jointinference import (
    ACTIVE,
    FAILED,
    NAME_FIX,
    RESERVED,
    UNIQUE_FIX,
    DatasetRef,
    FrameSourceSpec,
    Hpa,
    Template,
    check_dataset,
    check_pods,
    check_source,
    check_worker_name,
)
from halimede.api.schema import AGE, MESSAGE, PHASE, REASON, PrinterColumn, ValidationRule
from halimede.errors import check_all
from halimede.messages import Label
from halimede.names import FIX, check_name

#: the kind's names: in commands and topics; in commands and in workers' reports (``ownerKind``)
PLURAL = "multiedgeinferenceservices"
KIND = "multiedgeinferenceservice"
#: most characters of its name: on Kubernetes objects are named after it and its workers, with suffixes
NAME_LIMIT = 40
#: name of the worker with the joint
JOINT = "joint"
#: columns of ``kubectl get``
APPLICATION = PrinterColumn("Application", ".spec.application.name", "The application that its nodes run.")
ANSWERED_PATH = '.status.metrics[?(@.key=="inferenceNumber")].value'
ANSWERED = PrinterColumn("Answered", ANSWERED_PATH, "Frames answered so far.")
COLUMNS = (PHASE, REASON, APPLICATION, ACTIVE, FAILED, ANSWERED, AGE, MESSAGE)


class ApplicationSpec(Spec, kw_only=True):
    """What the nodes do together: ``reid``, ``fusion``, ``balance``, one that is installed, or a user's own code."""

    name: Annotated[Label, Meta(description="reid, fusion, balance, or the name of another application.")]
    entry: Annotated[
        str,
        Meta(
            max_length=256,
            pattern=r"^([A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*)?$",
            description="A user's application, as module:object. Default: the installed one of that name.",
            extra={FIX: "write it as module:object, such as yard:application"},
        ),
    ] = ""
    parameters: Annotated[list[Parameter], Meta(max_length=64, description="Parameters of the application.")] = []
    takeover: Annotated[
        bool, Meta(description="Whether other edge workers answer the frames of a worker that has died.")
    ] = True


class MemberWorker(Spec, kw_only=True):
    """One edge worker: its models, where its frames come from, and the pod that runs it."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(f"!(self.name in [{', '.join(map(repr, RESERVED))}])", NAME_FIX, ".name"),
    )

    name: Annotated[Label, Meta(description="Its name within the service.")]
    model: Annotated[ModelRef, Meta(description="The model that its stages use.")]
    detector: Annotated[
        ModelRef | None, Meta(description="A second model that finds objects, for applications that crop them.")
    ] = None
    source: Annotated[
        FrameSourceSpec | None,
        Meta(description="The source of its frames. Default: the camera with the worker's name."),
    ] = None
    deadline_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=600_000,
            description="Milliseconds that a frame may wait for other workers; then this one answers alone.",
        ),
    ] = 2000
    template: Template
    hpa: Hpa = None


class JointWorker(Spec, kw_only=True):
    """Where findings come together: the joint stages of the application, and the pod that runs them."""

    model: Annotated[ModelRef | None, Meta(description="A model for the joint stages, if they need one.")] = None
    template: Template
    hpa: Hpa = None


def members(spec: MultiEdgeInferenceServiceSpec) -> Iterator[tuple[str, str, MemberWorker | JointWorker]]:
    """Yield each worker's name, its path in the resource, and its spec: the edge workers, then the joint if any."""
    for i, worker in enumerate(spec.edge_workers):
        yield worker.name, f"spec.edgeWorkers[{i}]", worker
    if spec.cloud_worker is not None:
        yield JOINT, "spec.cloudWorker", spec.cloud_worker


def source_of(worker: MemberWorker) -> FrameSourceSpec:
    """Return the source of an edge worker's frames: by default the camera of the same name."""
    return worker.source or FrameSourceSpec(cameras=[worker.name])


def cameras(spec: MultiEdgeInferenceServiceSpec) -> list[str]:
    """Return the cameras of all edge workers, each once.

    A worker with a folder or URL counts as a camera of its name.
    """
    names = (name for worker in spec.edge_workers for name in source_of(worker).cameras or [worker.name])
    return list(dict.fromkeys(names))


def check(spec: MultiEdgeInferenceServiceSpec) -> None:
    """Check names, pods and sources, and that no two workers share a name. Raises InvalidFieldError with all errors."""
    workers = list(members(spec))
    names = [name for name, _, _ in workers]
    check_all(
        *(partial(_check_worker, at, worker, name, names[:i]) for i, (name, at, worker) in enumerate(workers)),
        partial(check_dataset, spec.dataset),
    )


def _check_worker(at: str, worker: MemberWorker | JointWorker, name: str, before: list[str]) -> None:
    """Check the worker ``name`` at the path ``at``, after the workers with the names ``before``.

    Raises InvalidFieldError.
    """
    member = worker if isinstance(worker, MemberWorker) else None
    models = {"model": worker.model, "detector": member.detector if member else None}
    check_all(
        partial(check_worker_name, at, name, before, "spec.edgeWorkers", reserved=RESERVED if member else ()),
        *(partial(check_name, f"{at}.{field}.name", model.name) for field, model in models.items() if model),
        partial(check_pods, at, worker.template, worker.hpa),
        partial(check_source, f"{at}.source", member.source if member else None),
    )


@register(SEDNA, "MultiEdgeInferenceService", PLURAL, "mei", KIND, check=check, columns=COLUMNS, name_limit=NAME_LIMIT)
class MultiEdgeInferenceServiceSpec(Spec, kw_only=True):
    """Multi-edge inference: what several edge workers see is brought together, or shared out among them."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            "self.edgeWorkers.all(a, self.edgeWorkers.exists_one(b, b.name == a.name))", UNIQUE_FIX, ".edgeWorkers"
        ),
    )

    application: Annotated[ApplicationSpec, Meta(description="The application that the nodes run.")]
    edge_workers: Annotated[
        list[MemberWorker], Meta(min_length=1, max_length=64, description="The edge workers, each with its sources.")
    ]
    cloud_worker: Annotated[
        JointWorker | None,
        Meta(description="The worker of the joint. Default: the edge worker that has run longest runs the joint."),
    ] = None
    dataset: Annotated[DatasetRef | None, Meta(description="A Dataset that the nodes need.")] = None
