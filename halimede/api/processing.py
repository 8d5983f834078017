"""What becomes of a frame before a model sees it, and of the model's output after: a small vocabulary, declared.

A new step is a class here and a function in ``halimede.inference.preprocess``, registered for it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from halimede.api.base import Spec
from halimede.api.schema import Rule

STD_FIX = "use values other than 0"

Extent = Annotated[int, Meta(ge=1, le=8192)]
PerChannel = Annotated[list[float], Meta(max_length=16)]


class Step(Spec, tag_field="op", tag=str.lower, kw_only=True):
    """One step of the declared pre-processing: ``op`` names it."""


class Grayscale(Step, kw_only=True):
    """Make one channel of three (ITU-R BT.601 weights, as Pillow does)."""


class Resize(Step, kw_only=True):
    """Scale the picture to ``width`` x ``height`` pixels."""

    width: Annotated[Extent, Meta(description="Width in pixels.")]
    height: Annotated[Extent, Meta(description="Height in pixels.")]


class Scale(Step, kw_only=True):
    """Multiply by ``factor``, then subtract ``mean`` and divide by ``std`` (one value, or one a channel)."""

    rules: ClassVar[tuple[Rule, ...]] = (Rule("!has(self.std) || self.std.all(value, value != 0.0)", STD_FIX, ".std"),)

    factor: Annotated[float, Meta(description="What every value is multiplied by first (default 1).")] = 1.0
    mean: Annotated[PerChannel, Meta(description="What is subtracted then: one value, or one a channel.")] = []
    std: Annotated[PerChannel, Meta(description="What it is divided by at last: one value, or one a channel.")] = []


class Layout(Step, kw_only=True):
    """Order of the axes that the model wants: ``hwc``, ``chw`` or ``flat``."""

    order: Annotated[Literal["hwc", "chw", "flat"], Meta(description="Order of the axes that the model wants.")]


class Cast(Step, kw_only=True):
    """Element type that the model wants."""

    dtype: Annotated[
        Literal["float32", "float16", "float64", "uint8", "int32", "int64"],
        Meta(description="Element type that the model wants."),
    ]


class Postprocess(Spec, kw_only=True):
    """How the model's output is read: the output's name (empty: the float output), and its activation."""

    task: Annotated[Literal["classification", "detection"], Meta(description="What the model finds.")] = (
        "classification"
    )
    output: Annotated[
        str, Meta(max_length=256, description="Name of the output that is read; empty: the one of floats.")
    ] = ""
    activation: Annotated[
        Literal["none", "softmax", "sigmoid"], Meta(description="What makes scores of the output's values.")
    ] = "none"


#: every step, in the order of the documentation
Steps = Grayscale | Resize | Scale | Layout | Cast
