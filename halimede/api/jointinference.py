"""JointInferenceService in Sedna's present form: a small model at the edge, a big one in the cloud, a rule between.

Samples that the rule finds hard go from the edge worker over the tiers, if there are any, to the cloud worker. Other
kinds use the parts of workers that are defined here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from halimede.api.base import SEDNA, Spec, convert, register
from halimede.api.deferral import Deferral, ModelRef, UploadContent, admit_deferral, check_deferral
from halimede.api.mining import AFTER, BEFORE
from halimede.api.model import Metadata
from halimede.api.occupancy import Occupancy, check_occupancy
from halimede.api.podtemplate import Autoscaler, PodTemplate, check_autoscaler
from halimede.api.schema import (
    AGE,
    MESSAGE,
    PHASE,
    REASON,
    SHAPE,
    ObjectName,
    OptionalName,
    Path,
    PrinterColumn,
    ValidationRule,
)
from halimede.errors import InvalidFieldError, check_all, refuse
from halimede.messages import Label
from halimede.names import check_label, check_name

#: the kind's name in commands and topics
PLURAL = "jointinferenceservices"
#: plural and short names of the kind
NAMES = (PLURAL, "ji", "jointinferenceservice")
#: most characters of its name: on Kubernetes a Service and labels are named after it, with suffixes
NAME_LIMIT = 46
#: texts of errors: what to write
CHOICE_FIX = "give a name or a selector"
SELECTOR_FIX = "give a task, labels or metadata"
#: names that users may not give to workers: objects of other workers have these names
RESERVED = ("cloud", "edge", "joint", "serve")
NAME_FIX = f"give it another name than {', '.join(RESERVED[:-1])} or {RESERVED[-1]}"
VARIABLE_FIX = "it is a variable that nothing has replaced: write the value, or pass the file through envsubst"
UNIQUE_FIX = "give each worker a different name"
CROPS_FIX = f"set mode to {AFTER}: with a detector, samples are crops, which are mined after the model"
SOURCE_FIX = "give one of cameras, path and url"
REGIONS_FIX = "regions are those of the small model's boxes: set mode to inference-then-mining, or upload to frame"
DETECTOR_FIX = "with a detector, samples are crops: leave out detector, or set edgeWorker.upload to frame"
TIERS_FIX = "regions go to the cloud without tiers between: leave out tiers, or set edgeWorker.upload to frame"
PATH_FIX = "write an absolute path on the node"
AGE_FIX = "remove it: only frames of cameras have a maximum age"
#: most milliseconds of ``maxAgeMs``
MOST_AGE_MS = 3_600_000
#: columns of ``kubectl get``
ACTIVE = PrinterColumn("Active", ".status.active", "Workers that run.", "integer")
FAILED = PrinterColumn("Failed", ".status.failed", "Workers that have failed.", "integer")
UPLOAD_PATH = '.status.metrics[?(@.key=="uploadCloudRatio")].value'
UPLOAD = PrinterColumn("Upload", UPLOAD_PATH, "Share of samples that were uploaded.")
COLUMNS = (PHASE, REASON, ACTIVE, FAILED, UPLOAD, AGE, MESSAGE)
Template = Annotated[
    dict[str, Any], Meta(extra={SHAPE: PodTemplate}, description="The pod that runs the worker: a PodTemplateSpec.")
]
Hpa = Annotated[
    dict[str, Any] | None,
    Meta(extra={SHAPE: Autoscaler}, description="Scales the worker's pods with their load; Kubernetes only."),
]
#: upper limit of a detector's ``maxBoxes``: so many vectors of usual length fit into a message
MAX_BOXES = 256
#: the batching of a worker unless its spec sets it: most samples of a batch, and milliseconds to wait for more of them
BATCH, DELAY_MS = 32, 0.0
#: upper limits of both
MOST_BATCH, MOST_DELAY_MS = 1024, 1000
BatchSize = Annotated[int, Meta(ge=1, le=MOST_BATCH, description="Maximum number of samples in one model call.")]
QueueDelay = Annotated[
    float,
    Meta(ge=0, le=MOST_DELAY_MS, description="Milliseconds that a sample may wait for a larger batch; 0: no wait."),
]


class ModelSelector(Spec, kw_only=True):
    """What a Model must be: GM takes the best of those of the namespace that fit."""

    task: Annotated[str, Meta(max_length=128, description="The task, such as detection; empty: any.")] = ""
    labels: Annotated[
        list[Annotated[str, Meta(max_length=128)]],
        Meta(max_length=64, description="Classes that it must have, all of them."),
    ] = []
    metadata: Annotated[
        Metadata, Meta(max_length=64, description="Key-value pairs that its metadata must have, all of them.")
    ] = {}
    metric: Annotated[
        str, Meta(max_length=128, description="The metric that selects the best Model: the highest value wins.")
    ] = "accuracy"


class ModelChoice(Spec, kw_only=True):
    """A Model of the same namespace: this one, or the best that fits."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule("(has(self.name) && self.name != '') != has(self.selector)", CHOICE_FIX),
        ValidationRule(
            "!has(self.selector) || (has(self.selector.task) && self.selector.task != '')"
            " || (has(self.selector.labels) && size(self.selector.labels) > 0)"
            " || (has(self.selector.metadata) && size(self.selector.metadata) > 0)",
            SELECTOR_FIX,
            ".selector",
        ),
    )

    name: Annotated[OptionalName, Meta(description="Name of a Model of the same namespace.")] = ""
    selector: Annotated[
        ModelSelector | None, Meta(description="Requirements of the Model, in place of a name: the best match is used.")
    ] = None


class DatasetRef(Spec, kw_only=True):
    """A Dataset of the same namespace."""

    name: Annotated[ObjectName, Meta(description="Name of a Dataset of the same namespace.")]


class FrameSourceSpec(Spec, kw_only=True):
    """The source of an edge worker's frames: camera topics, a folder of images on the node, or a stream's URL."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            "(has(self.cameras) && size(self.cameras) > 0 ? 1 : 0) + (has(self.path) && self.path != '' ? 1 : 0)"
            " + (has(self.url) && self.url != '' ? 1 : 0) == 1",
            SOURCE_FIX,
        ),
        ValidationRule("!has(self.path) || self.path == '' || self.path.startsWith('/')", PATH_FIX, ".path"),
        ValidationRule("!has(self.maxAgeMs) || (has(self.cameras) && size(self.cameras) > 0)", AGE_FIX, ".maxAgeMs"),
    )

    cameras: Annotated[
        list[Label],
        Meta(max_length=64, description="Cameras that publish frames to <namespace>/sedna/frames/<camera>."),
    ] = []
    path: Annotated[Path, Meta(description="A folder of images on the node: an absolute path.")] = ""
    url: Annotated[str, Meta(max_length=4096, description="A stream's URL, such as rtsp://...")] = ""
    orientation: Annotated[
        Literal["ignore", "exif"],
        Meta(
            description="exif: turn camera frames as their EXIF orientation says. Default: ignore. Pictures of a folder"
            " are always turned."
        ),
    ] = "ignore"
    max_age_ms: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_AGE_MS)] | None,
        Meta(
            description="Milliseconds for which a camera frame may wait for the model. An older one is dropped,"
            " acknowledged and counted as skipped. Default: every frame of QoS 1 is answered, however late."
        ),
    ] = None

    @property
    def max_age_s(self) -> float:
        """Seconds for which a frame may wait for the model; infinite by default."""
        return math.inf if self.max_age_ms is None else self.max_age_ms / 1000

    @property
    def kinds(self) -> list[str]:
        """The names of the kinds of source that are set; a valid source has exactly one."""
        return [name for name in ("cameras", "path", "url") if getattr(self, name)]


def _check_upload(spec: JointInferenceServiceSpec) -> None:
    """Refuse the upload of regions alone where there are none or somebody else would need the frame."""
    edge = spec.edge_worker
    if edge.upload == "frame":
        return
    if edge.hard_example_mining.mode == BEFORE:
        raise InvalidFieldError("spec.edgeWorker.upload", edge.upload, REGIONS_FIX)
    if edge.detector:
        raise InvalidFieldError("spec.edgeWorker.detector", edge.detector.name, DETECTOR_FIX)
    if spec.tiers:
        raise InvalidFieldError("spec.tiers", [tier.name for tier in spec.tiers], TIERS_FIX)


def check_source(at: str, source: FrameSourceSpec | None) -> None:
    """Check that a source at the path ``at``, if there is one, has one kind and a fitting path and age.

    Raises InvalidFieldError.
    """
    if source and len(source.kinds) != 1:
        raise InvalidFieldError(at, source.kinds, SOURCE_FIX)
    if source and source.path and not source.path.startswith("/"):
        raise InvalidFieldError(f"{at}.path", source.path, PATH_FIX)
    if source and source.max_age_ms is not None and not source.cameras:
        raise InvalidFieldError(f"{at}.maxAgeMs", source.max_age_ms, AGE_FIX)


class KeepHardSamples(Spec, kw_only=True):
    """A bounded store of hard samples on the node: the oldest go first."""

    max_megabytes: Annotated[int, Meta(ge=1, le=1_000_000, description="Space for them on the node, in MB.")] = 256
    max_samples: Annotated[int, Meta(ge=1, le=1_000_000, description="Maximum number of stored samples.")] = 10_000


#: most members of a committee, in addition to the model
MOST_COMMITTEE_MEMBERS = 2
COMMITTEE_FIX = "name other Models than model, each once: two equal models always agree"


class Detector(ModelRef, kw_only=True):
    """The Model that finds boxes, and which of them are cropped."""

    min_score: Annotated[float, Meta(ge=0, le=1, description="Boxes with a lower score are dropped.")] = 0.25
    max_boxes: Annotated[
        int, Meta(ge=1, le=MAX_BOXES, description="Maximum number of boxes of a frame: those with the best scores.")
    ] = 100
    margin: Annotated[
        float, Meta(ge=0, le=2, description="Share of a box's width and height that is added on each side.")
    ] = 0.0


class EdgeWorkerSpec(Deferral, kw_only=True):
    """The small model, when to ask the cloud, where frames come from, and the pod that runs it."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        *Deferral.rules,
        ValidationRule(
            "!has(self.committee) || (self.committee.all(a, self.committee.exists_one(b, b.name == a.name))"
            " && (!has(self.model.name) || self.committee.all(a, a.name != self.model.name)))",
            COMMITTEE_FIX,
            ".committee",
        ),
        ValidationRule(
            f"!has(self.detector) || !has(self.hardExampleMining.mode) || self.hardExampleMining.mode != '{BEFORE}'",
            CROPS_FIX,
            ".hardExampleMining",
        ),
        ValidationRule(
            "!has(self.upload) || self.upload == 'frame' || !has(self.hardExampleMining.mode)"
            f" || self.hardExampleMining.mode != '{BEFORE}'",
            REGIONS_FIX,
            ".upload",
        ),
        ValidationRule("!has(self.upload) || self.upload == 'frame' || !has(self.detector)", DETECTOR_FIX, ".detector"),
    )

    model: Annotated[ModelChoice, Meta(description="The small model.")]
    committee: Annotated[
        list[ModelRef],
        Meta(
            max_length=MOST_COMMITTEE_MEMBERS,
            description="Further small models of the same labels: they and model answer by majority, for the rule"
            " Agreement.",
        ),
    ] = []
    detector: Annotated[
        Detector | None,
        Meta(
            description="A model that finds boxes at the edge: each crop is then a sample of model and of the cloud."
            " Default: samples are whole frames."
        ),
    ] = None
    template: Template
    hpa: Hpa = None
    upload: Annotated[
        UploadContent,
        Meta(description="What is uploaded of a hard frame: the frame, or only its regions with uncertain boxes."),
    ] = "frame"
    source: Annotated[
        FrameSourceSpec | None, Meta(description="The source of frames. Default: the camera with the service's name.")
    ] = None
    deadline_ms: Annotated[
        int,
        Meta(
            ge=1,
            le=600_000,
            description="Milliseconds that a hard sample may wait for the cloud; then the edge answers it.",
        ),
    ] = 2000
    keep_hard_samples: Annotated[
        KeepHardSamples | None,
        Meta(description="Stores hard samples on the node, to inspect and to train on. Default: none are stored."),
    ] = None
    occupancy: Annotated[
        Occupancy | None,
        Meta(description="Publishes an event when an object enters or leaves a picture or zone. Default: no events."),
    ] = None


class TierWorker(Deferral, kw_only=True):
    """A tier between the edge and the cloud: a model of a size in between, and when to ask the next one."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        *Deferral.rules,
        ValidationRule(f"!(self.name in [{', '.join(map(repr, RESERVED))}])", NAME_FIX, ".name"),
    )

    name: Annotated[Label, Meta(description="Its name within the service.")]
    model: Annotated[ModelRef, Meta(description="Its model.")]
    template: Template
    hpa: Hpa = None
    max_batch_size: BatchSize = BATCH
    max_queue_delay_ms: QueueDelay = DELAY_MS


class CloudWorkerSpec(Spec, kw_only=True):
    """The big model and the pod that runs it."""

    model: Annotated[ModelChoice, Meta(description="The big model.")]
    template: Template
    hpa: Hpa = None
    max_batch_size: BatchSize = BATCH
    max_queue_delay_ms: QueueDelay = DELAY_MS


def _check_model(at: str, model: ModelChoice) -> None:
    """Check that a Model is chosen either by its name or by a selector that requires something."""
    if bool(model.name) == (model.selector is not None):
        raise InvalidFieldError(at, model, CHOICE_FIX)
    if model.selector and not (model.selector.task or model.selector.labels or model.selector.metadata):
        raise InvalidFieldError(f"{at}.selector", model.selector, SELECTOR_FIX)
    if model.name:
        check_name(f"{at}.name", model.name)


def _check_committee(at: str, edge: EdgeWorkerSpec) -> None:
    """Check the names of the further models, each once."""
    names = [edge.model.name, *(member.name for member in edge.committee)]
    for name in names[1:]:
        check_name(f"{at}.committee", name)
        if names.count(name) > 1:
            raise InvalidFieldError(f"{at}.committee", name, COMMITTEE_FIX)


def _check_detector(at: str, edge: EdgeWorkerSpec) -> None:
    """Check a detector's name, and that mining is after the model: crops do not exist before."""
    if edge.detector is None:
        return
    check_name(f"{at}.detector.name", edge.detector.name)
    if edge.hard_example_mining.mode == BEFORE:
        raise InvalidFieldError(f"{at}.hardExampleMining", BEFORE, CROPS_FIX)


def check(spec: JointInferenceServiceSpec) -> None:
    """Check the workers one by one, and the Dataset's name. Raises InvalidFieldError with all errors."""
    edge, cloud = spec.edge_worker, spec.cloud_worker
    check_all(
        partial(_check_model, "spec.edgeWorker.model", edge.model),
        partial(_check_committee, "spec.edgeWorker", edge),
        partial(_check_detector, "spec.edgeWorker", edge),
        partial(check_pods, "spec.edgeWorker", edge.template, edge.hpa),
        partial(check_source, "spec.edgeWorker.source", edge.source),
        partial(
            check_occupancy, "spec.edgeWorker.occupancy", edge.occupancy, edge.source.cameras if edge.source else ()
        ),
        partial(check_deferral, "spec.edgeWorker", edge),
        partial(_check_upload, spec),
        *(partial(_check_tier, i, spec.tiers) for i in range(len(spec.tiers))),
        partial(_check_model, "spec.cloudWorker.model", cloud.model),
        partial(check_pods, "spec.cloudWorker", cloud.template, cloud.hpa),
        partial(check_dataset, spec.dataset),
    )


def admit(spec: JointInferenceServiceSpec) -> None:
    """Check mining as the workers do at their start, for a resource that a user creates or changes.

    A stored resource stays readable: it is only checked by ``check``. Raises InvalidFieldError.
    """
    check_all(
        partial(admit_deferral, "spec.edgeWorker", spec.edge_worker, spec.edge_worker.template),
        *(partial(admit_deferral, f"spec.tiers[{i}]", tier, tier.template) for i, tier in enumerate(spec.tiers)),
    )


def check_pods(at: str, template: dict[str, Any], hpa: dict[str, Any] | None) -> None:
    """Check the pod template, the node that it names, and the autoscaling of the worker at the path ``at``.

    Raises InvalidFieldError.
    """
    autoscaling = [partial(check_autoscaler, hpa, f"{at}.hpa")] if hpa is not None else []
    check_all(partial(_check_template, f"{at}.template", template), *autoscaling)


def check_dataset(dataset: DatasetRef | None) -> None:
    """Check the name of a service's Dataset, if it has one. Raises InvalidFieldError."""
    if dataset:
        check_name("spec.dataset.name", dataset.name)


def _check_template(at: str, template: dict[str, Any]) -> None:
    """Check node name and node labels of a pod template."""
    pod = convert(template, PodTemplate, at).spec
    texts = {f"{at}.spec.nodeName": pod.node_name}
    texts |= {f"{at}.spec.nodeSelector.{label}": value for label, value in pod.node_selector.items()}
    refuse([InvalidFieldError(field, text, VARIABLE_FIX) for field, text in texts.items() if text.startswith("$")])
    if pod.node_name:
        check_name(f"{at}.spec.nodeName", pod.node_name)


def _check_tier(i: int, tiers: list[TierWorker]) -> None:
    """Check the tier number ``i``."""
    at, tier = f"spec.tiers[{i}]", tiers[i]
    check_all(
        partial(check_worker_name, at, tier.name, [previous.name for previous in tiers[:i]], "spec.tiers"),
        partial(check_name, f"{at}.model.name", tier.model.name),
        partial(check_deferral, at, tier),
        partial(check_pods, at, tier.template, tier.hpa),
    )


def check_worker_name(
    at: str, name: str, before: Sequence[str], field: str, *, reserved: Sequence[str] = RESERVED
) -> None:
    """Check the name of a worker at the path ``at``: a label, not reserved, and not that of a worker before it.

    ``field``: the list of the workers. Raises InvalidFieldError.
    """
    check_label(f"{at}.name", name)
    if name in reserved:
        raise InvalidFieldError(f"{at}.name", name, NAME_FIX)
    if name in before:
        raise InvalidFieldError(field, name, UNIQUE_FIX)


@register(SEDNA, "JointInferenceService", *NAMES, check=check, admit=admit, columns=COLUMNS, name_limit=NAME_LIMIT)
class JointInferenceServiceSpec(Spec, kw_only=True):
    """Joint inference: a small model at the edge answers, and asks a big one in the cloud about hard samples."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            "!has(self.tiers) || self.tiers.all(a, self.tiers.exists_one(b, b.name == a.name))", UNIQUE_FIX, ".tiers"
        ),
        ValidationRule(
            "!has(self.tiers) || size(self.tiers) == 0 || !has(self.edgeWorker.upload)"
            " || self.edgeWorker.upload == 'frame'",
            TIERS_FIX,
            ".tiers",
        ),
    )

    edge_worker: Annotated[EdgeWorkerSpec, Meta(description="The worker with the small model, near the frames.")]
    cloud_worker: Annotated[CloudWorkerSpec, Meta(description="The worker with the big model, for hard samples.")]
    tiers: Annotated[
        list[TierWorker],
        Meta(max_length=8, description="Tiers between edge and cloud: each requests answers from the next one."),
    ] = []
    dataset: Annotated[DatasetRef | None, Meta(description="A Dataset that the nodes need.")] = None
