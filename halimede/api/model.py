"""Model: where a model file is, how to read it, and how a frame becomes its input."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from halimede.api.base import SEDNA, Spec, register
from halimede.errors import InvalidFieldError

PLURAL = "models"
SCHEMES = ("file://", "http://", "https://", "s3://", "/")


class Step(Spec, tag_field="op", tag=str.lower, kw_only=True):
    """One step of the declared pre-processing: ``op`` names it."""


class Grayscale(Step, kw_only=True):
    """Make one channel of three (ITU-R BT.601 weights, as Pillow does)."""


class Resize(Step, kw_only=True):
    """Scale the picture to ``width`` x ``height`` pixels."""

    width: Annotated[int, Meta(ge=1, le=8192)]
    height: Annotated[int, Meta(ge=1, le=8192)]


class Scale(Step, kw_only=True):
    """Multiply by ``factor``, then subtract ``mean`` and divide by ``std`` (one value, or one a channel)."""

    factor: float = 1.0
    mean: Annotated[list[float], Meta(max_length=16)] = []
    std: Annotated[list[float], Meta(max_length=16)] = []


class Layout(Step, kw_only=True):
    """Order of the axes that the model wants: ``hwc``, ``chw`` or ``flat``."""

    order: Literal["hwc", "chw", "flat"]


class Cast(Step, kw_only=True):
    """Element type that the model wants."""

    dtype: Literal["float32", "float16", "float64", "uint8", "int32", "int64"]


class Postprocess(Spec, kw_only=True):
    """How the model's output is read: the output's name (empty: the float output), and its activation."""

    task: Literal["classification", "detection"] = "classification"
    output: Annotated[str, Meta(max_length=256)] = ""
    activation: Literal["none", "softmax", "sigmoid"] = "none"


def check(spec: ModelSpec) -> None:
    """Check what types cannot say."""
    if not spec.url.startswith(SCHEMES):
        raise InvalidFieldError("spec.url", spec.url, "use an absolute path or file://, http://, https:// or s3://")
    for i, step in enumerate(spec.preprocess):
        if isinstance(step, Scale) and 0 in step.std:
            raise InvalidFieldError(f"spec.preprocess[{i}].std", step.std, "use values other than 0")


@register(SEDNA, "Model", PLURAL, "model", check=check)
class ModelSpec(Spec, kw_only=True):
    """A model file. ``sha256`` is checked before the file is used; ``labels`` name the classes in order."""

    url: Annotated[str, Meta(min_length=1, max_length=4096)]
    format: Annotated[str, Meta(min_length=1, max_length=64)]
    credential_name: Annotated[str, Meta(max_length=253)] = ""
    device_soc_versions: Annotated[list[str], Meta(max_length=64)] = []
    sha256: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")] = ""
    labels: Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(max_length=10_000)] = []
    preprocess: Annotated[list[Grayscale | Resize | Scale | Layout | Cast], Meta(max_length=16)] = []
    postprocess: Postprocess | None = None
