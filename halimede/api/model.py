"""Model: where a model file is, how to read it, and how a frame becomes its input."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, field

from halimede.api.base import SEDNA, Spec, register
from halimede.api.processing import STD_FIX, Postprocess, Scale, Steps
from halimede.api.schema import AGE, MESSAGE, PHASE, REASON, Column, Rule
from halimede.errors import InvalidFieldError

PLURAL = "models"
SCHEMES = ("file://", "http://", "https://", "s3://", "/")
SCHEME_FIX = "use an absolute path or file://, http://, https:// or s3://"
COLUMNS = (
    PHASE,
    REASON,
    Column("Format", ".spec.format", "The model's format."),
    Column("Ready", ".status.active", "Nodes that have the model ready.", "integer"),
    AGE,
    MESSAGE,
)

SocVersions = Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(max_length=64)]


def check(spec: ModelSpec) -> None:
    """Check what types cannot say."""
    if not spec.url.startswith(SCHEMES):
        raise InvalidFieldError("spec.url", spec.url, SCHEME_FIX)
    for i, step in enumerate(spec.preprocess):
        if isinstance(step, Scale) and 0 in step.std:
            raise InvalidFieldError(f"spec.preprocess[{i}].std", step.std, STD_FIX)


@register(SEDNA, "Model", PLURAL, "model", check=check, columns=COLUMNS)
class ModelSpec(Spec, kw_only=True):
    """A model: where its file is, how a frame becomes its input, and how its output is read."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(" || ".join(f"self.url.startsWith('{scheme}')" for scheme in SCHEMES), SCHEME_FIX, ".url"),
    )

    url: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=4096,
            description="Where the model is: an absolute path on the node, or a file, http, https or s3 URL.",
        ),
    ]
    format: Annotated[str, Meta(min_length=1, max_length=64, description="The model's format, such as onnx.")]
    credential_name: Annotated[
        str,
        Meta(max_length=253, description="A Secret of the namespace with ACCESS_KEY_ID and SECRET_ACCESS_KEY, for s3."),
    ] = ""
    device_soc_versions: Annotated[
        SocVersions, Meta(description="Chips that the model is made for, as Sedna lists them.")
    ] = field(name="device_soc_versions", default=[])
    soc_versions: Annotated[SocVersions, Meta(description="Another spelling of device_soc_versions.")] = field(
        name="deviceSocVersions", default=[]
    )
    sha256: Annotated[
        str,
        Meta(
            max_length=64,
            pattern="^([0-9a-f]{64})?$",
            description="SHA-256 of the file in hexadecimal; checked before the file is used.",
        ),
    ] = ""
    labels: Annotated[
        list[Annotated[str, Meta(max_length=128)]],
        Meta(max_length=10_000, description="Names of the classes, in the model's order."),
    ] = []
    preprocess: Annotated[
        list[Steps],
        Meta(max_length=16, description="Steps that make the model's input of a frame, in their order."),
    ] = []
    postprocess: Annotated[Postprocess | None, Meta(description="How the model's output is read.")] = None
