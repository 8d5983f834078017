"""Model: where a model file is, how to read it, how a frame becomes its input, and its measured quality.

A Model may have several versions; nodes receive only the version in force (``in_force``).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta, field

from halimede.api.base import SEDNA, Spec, register
from halimede.api.dataset import SYNC_RULE, SyncTo, check_sync
from halimede.api.model_formats import format_of
from halimede.api.podtemplate import LabelValue
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
from halimede.names import FIX

#: the kind's name in commands and topics
PLURAL = "models"
#: plural and short name of the kind
NAMES = (PLURAL, "model")
#: beginnings of the addresses of model files
SCHEMES = ("file://", "http://", "https://", "s3://", "bus://", "/")
#: texts of errors: what to write
SCHEME_FIX = "use an absolute path or file://, http://, https://, s3:// or bus://"
URL_FIX = "give a url, or versions"
TARGET_FIX = "use one of the versions"
ONCE_FIX = "list each version once"
#: columns of ``kubectl get``
FORMAT = PrinterColumn("Format", ".spec.format", "The model's format.")
VERSION = PrinterColumn("Version", ".status.versions[0].version", "The version that nodes fetched last.")
READY = PrinterColumn("Ready", ".status.active", "Nodes that have the model ready.", "integer")
COLUMNS = (PHASE, REASON, FORMAT, VERSION, READY, AGE, MESSAGE)

FileDigest = Annotated[
    str,
    Meta(
        max_length=64,
        pattern="^([0-9a-f]{64})?$",
        description="SHA-256 of the file in hexadecimal; checked before the file is used.",
        extra={FIX: "use the 64 hexadecimal digits that sha256sum prints, in lower case"},
    ),
]
#: free key-value pairs, such as owner: vision-team; a selector may require some
Metadata = dict[str, Annotated[str, Meta(max_length=256)]]
#: names of chips (systems on a chip)
SocVersions = Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(max_length=64)]


class ModelVersion(Spec, kw_only=True):
    """One version of a model."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(" || ".join(f"self.url.startsWith('{scheme}')" for scheme in SCHEMES), SCHEME_FIX, ".url"),
    )

    version: Annotated[str, Meta(min_length=1, max_length=128, description="The name, such as 4 or v1.2.")]
    url: Annotated[str, Meta(min_length=1, max_length=4096, description="Its address, in the format of spec.url.")]
    sha256: FileDigest = ""
    calibration: Annotated[
        str,
        Meta(
            max_length=65_536,
            description="Its calibration: the content of a file of halimede calibrate. Default: the service's.",
        ),
    ] = ""


class Measure(Spec, kw_only=True):
    """One measure of the model's quality, as its user gives it."""

    key: Annotated[str, Meta(min_length=1, max_length=128, description="The metric, such as accuracy.")]
    value: Annotated[str, Meta(max_length=256, description="The result: a string, so put numbers in quotes.")]


class RolloutSpec(Spec, kw_only=True):
    """How a changed model replaces the previous one."""

    canary_percent: Annotated[
        int,
        Meta(ge=0, le=100, description="Percentage of requests for a changed model; 100: all, after its first answer."),
    ] = 100
    audit_share: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Least share of the easy samples that services audit; at most half of targetUploadRatio.",
        ),
    ] = 0.0


def check(spec: ModelSpec) -> None:
    """Check addresses, versions, processing, and who copies the file. Raises InvalidFieldError with all errors."""
    names = [version.version for version in spec.versions]
    errors = []
    if spec.url and not spec.url.startswith(SCHEMES):
        errors.append(InvalidFieldError("spec.url", spec.url, SCHEME_FIX))
    if not spec.url and not spec.versions:
        errors.append(InvalidFieldError("spec.url", spec.url, URL_FIX))
    for i, version in enumerate(spec.versions):
        if not version.url.startswith(SCHEMES):
            errors.append(InvalidFieldError(f"spec.versions[{i}].url", version.url, SCHEME_FIX))
        if version.version in names[:i]:
            errors.append(InvalidFieldError("spec.versions", version.version, ONCE_FIX))
    if spec.target_version and spec.target_version not in names:
        errors.append(InvalidFieldError("spec.targetVersion", spec.target_version, TARGET_FIX))
    check_all(
        partial(refuse, errors),
        partial(check_processing, spec.preprocess, spec.postprocess),
        partial(check_sync, spec.node_name, spec.sync_to),
    )


def admit(spec: ModelSpec) -> None:
    """Check what a worker would refuse at its start: scripts, and how outputs are read. Raises InvalidFieldError.

    Called in addition to ``check`` for a spec that a user creates or changes, and not for a stored one.
    """
    urls = {"spec.url": spec.url}
    urls |= {f"spec.versions[{i}].url": version.url for i, version in enumerate(spec.versions)}
    scripted = bool(spec.postprocess and spec.postprocess.script)
    check_all(
        # the user's code may read other formats, but has no scripts
        *([partial(check_postprocess, spec.postprocess)] if spec.is_onnx or scripted else []),
        partial(check_scripts, spec.preprocess, spec.postprocess, urls, is_known_format=bool(format_of(spec.format))),
    )


@register(SEDNA, "Model", *NAMES, check=check, admit=admit, columns=COLUMNS, order=0, relative_url=True, versioned=True)
class ModelSpec(Spec, kw_only=True):
    """A model: where its file is, how a frame becomes its input, and how its output is read."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            "!has(self.url) || self.url == '' || "
            + " || ".join(f"self.url.startsWith('{scheme}')" for scheme in SCHEMES),
            SCHEME_FIX,
            ".url",
        ),
        ValidationRule(
            "(has(self.url) && self.url != '') || (has(self.versions) && size(self.versions) > 0)", URL_FIX, ".url"
        ),
        ValidationRule(
            "!has(self.targetVersion) || self.targetVersion == '' || (has(self.versions)"
            " && self.versions.exists(each, each.version == self.targetVersion))",
            TARGET_FIX,
            ".targetVersion",
        ),
        ValidationRule(
            "!has(self.versions) || self.versions.all(each,"
            " self.versions.exists_one(other, other.version == each.version))",
            ONCE_FIX,
            ".versions",
        ),
        SYNC_RULE,
    )

    url: Annotated[
        str,
        Meta(
            max_length=4096,
            description="Address of the model: an absolute path on the node, or a file, http, https, s3 or bus URL."
            " A version in force overrides it.",
        ),
    ] = ""
    format: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=64,
            description="The model's format: onnx, tflite or tensorflow (a SavedModel), or one that your code reads.",
        ),
    ]
    credential_name: Annotated[
        str,
        Meta(max_length=253, description="A Secret of the namespace with ACCESS_KEY_ID and SECRET_ACCESS_KEY, for s3."),
    ] = ""
    device_soc_versions: Annotated[SocVersions, Meta(description="Chips that the model supports, as in Sedna.")] = (
        field(name="device_soc_versions", default=[])
    )
    soc_versions: Annotated[SocVersions, Meta(description="Another spelling of device_soc_versions.")] = field(
        name="deviceSocVersions", default=[]
    )
    sha256: FileDigest = ""
    labels: ClassNames = []
    decode: DecodeMode = "exact"
    preprocess: Preprocessing = []
    postprocess: Postprocessing = None
    versions: Annotated[list[ModelVersion], Meta(max_length=64, description="The available versions.")] = []
    target_version: Annotated[
        str, Meta(max_length=128, description="The version in force; empty: url, or the last version if url is empty.")
    ] = ""
    task: Annotated[str, Meta(max_length=128, description="The model's task, such as classification or detection.")] = (
        ""
    )
    metrics: Annotated[
        list[Measure], Meta(max_length=64, description="Metrics of its quality, shown in the status.")
    ] = []
    metadata: Annotated[
        Metadata, Meta(max_length=64, description="Free key-value pairs, which selectors of services may require.")
    ] = {}
    node_name: Annotated[
        OptionalName, Meta(description="A node that has the model ready before a service needs it there.")
    ] = ""
    node_selector: Annotated[
        dict[str, LabelValue],
        Meta(max_length=64, description="Labels of the nodes that have it ready in advance, if nodeName is empty."),
    ] = {}
    sync_to: SyncTo = {}
    rollout: Annotated[RolloutSpec | None, Meta(description="How a changed model replaces the previous one.")] = None

    @property
    def is_onnx(self) -> bool:
        """Whether the format is ONNX."""
        return self.format.lower() == "onnx"


def in_force(spec: ModelSpec) -> ModelSpec:
    """Return the spec for nodes: with url and checksum of the version in force, and only that one in ``versions``.

    Without a version in force, the spec's own url and checksum count, and ``versions`` is empty.
    """
    if not spec.target_version and (spec.url or not spec.versions):
        return msgspec.structs.replace(spec, versions=[])
    targets = (version for version in spec.versions if version.version == spec.target_version)
    version = next(targets, spec.versions[-1])
    return msgspec.structs.replace(
        spec, url=version.url, sha256=version.sha256, target_version=version.version, versions=[version]
    )


def about_file(spec: ModelSpec, url: str) -> ModelSpec:
    """Return the spec for users of the file at ``url``, without the fields that do not affect how the file is used."""
    return msgspec.structs.replace(
        spec, url=url, credential_name="", metadata={}, node_name="", node_selector={}, sync_to={}
    )


def task_of(spec: ModelSpec) -> str:
    """Return the task of the model: its own ``task``, or that of its post-processing; empty if neither is set."""
    return spec.task or (spec.postprocess.task if spec.postprocess else "")


def metric_value(spec: ModelSpec, metric: str) -> float | None:
    """Return the measure ``metric`` of the model as a number; None if it is missing, or not a finite number."""
    text = next((measure.value for measure in spec.metrics if measure.key == metric), "")
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
