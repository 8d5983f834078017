"""The declared processing: pre-processing of frames, and post-processing of a model's output.

A new step is a class here and a function in ``halimede.inference.preprocess``, registered for it. A step that moves
pixels has another function in ``halimede.inference.geometry``, which maps boxes back to the frame. docs/processing.md
lists all steps.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from halimede.api.base import Spec
from halimede.api.schema import ValidationRule
from halimede.errors import InvalidFieldError, refuse

STD_FIX = "use values other than 0"
STD_RULE = "!has(self.std) || self.std.all(value, value != 0.0)"
DETECTION_FIX = "boxes and nms need task detection: set task, or remove them"
FEATURES_FIX = "features need task classification: set task, or remove them"

Extent = Annotated[int, Meta(ge=1, le=8192)]
Offset = Annotated[int, Meta(ge=0, le=65_535)]
PerChannel = Annotated[list[float], Meta(max_length=16)]
Share = Annotated[float, Meta(ge=0, le=1)]
Output = Annotated[str, Meta(max_length=256)]

Width = Annotated[Extent, Meta(description="Width in pixels.")]
Height = Annotated[Extent, Meta(description="Height in pixels.")]
Mean = Annotated[PerChannel, Meta(description="The value to subtract after scaling: one, or one for each channel.")]
Std = Annotated[PerChannel, Meta(description="The value to divide by at the end: one, or one for each channel.")]


class ProcessingStep(Spec, tag_field="op", tag=str.lower, kw_only=True):
    """One step of the declared pre-processing: ``op`` names it."""


class Grayscale(ProcessingStep, kw_only=True):
    """Make one channel of three (ITU-R BT.601 weights, as Pillow does)."""


class Resize(ProcessingStep, kw_only=True):
    """Scale the picture to ``width`` x ``height`` pixels."""

    width: Width
    height: Height


class Letterbox(ProcessingStep, kw_only=True):
    """Scale the picture into ``width`` x ``height`` pixels as it is, in the middle; ``fill`` is all around it."""

    width: Width
    height: Height
    fill: Annotated[
        int, Meta(ge=0, le=65_535, description="Value of each channel around the picture (default 114).")
    ] = 114


class Crop(ProcessingStep, kw_only=True):
    """Cut ``width`` x ``height`` pixels out of the picture: from its middle, or from ``x`` and ``y``."""

    width: Width
    height: Height
    x: Annotated[Offset | None, Meta(description="Pixels to remove at the left. Default: as at the right.")] = None
    y: Annotated[Offset | None, Meta(description="Pixels to remove at the top. Default: as at the bottom.")] = None


class Scale(ProcessingStep, kw_only=True):
    """Multiply by ``factor``, then subtract ``mean`` and divide by ``std`` (one value, or one a channel)."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (ValidationRule(STD_RULE, STD_FIX, ".std"),)

    factor: Annotated[float, Meta(description="The factor of each value, applied first (default 1).")] = 1.0
    mean: Mean = []
    std: Std = []


class Normalize(ProcessingStep, kw_only=True):
    """Scale by 1/255, then subtract ``mean`` and divide by ``std``: what PyTorch's users mean by it."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (ValidationRule(STD_RULE, STD_FIX, ".std"),)

    mean: Mean = []
    std: Std = []


class Layout(ProcessingStep, kw_only=True):
    """Order of the axes that the model wants: ``hwc``, ``chw`` or ``flat``."""

    order: Annotated[Literal["hwc", "chw", "flat"], Meta(description="Order of the axes of the model's input.")]


class Cast(ProcessingStep, kw_only=True):
    """Element type of the model's input."""

    dtype: Annotated[
        Literal["float32", "float16", "float64", "uint8", "int32", "int64"],
        Meta(description="Element type of the model's input."),
    ]


class Boxes(Spec, kw_only=True):
    """How a detection model writes its boxes."""

    decode: Annotated[
        Literal["rows", "yolo", "yolov5"],
        Meta(
            description="rows: four numbers, score and class a row. yolo: four numbers and a score for each class,"
            " as YOLOv8 gives them. yolov5: four numbers, a score that there is anything, and one for each class.",
        ),
    ] = "rows"
    form: Annotated[
        Literal["xyxy", "xywh", "cxcywh"] | None,
        Meta(
            description="What the four numbers are: two corners, corner and size, or middle and size"
            " (default xyxy; cxcywh for yolo and yolov5).",
        ),
    ] = None
    normalized: Annotated[
        bool, Meta(description="The numbers are shares (0 to 1) of the width and height of the model's input.")
    ] = False
    output: Annotated[
        Output, Meta(description="Name of the output with only boxes; postprocess.output then has only scores.")
    ] = ""
    classes: Annotated[
        Output, Meta(description="Name of the output with class indices, for one score per box; needs boxes.output.")
    ] = ""


class Nms(Spec, kw_only=True):
    """Non-maximum suppression: of boxes of one class that overlap, the one with the best score stays."""

    iou: Annotated[Share, Meta(description="Boxes with a larger overlap (intersection over union) are removed.")] = 0.45
    score: Annotated[Share, Meta(description="Boxes with a lower score are removed.")] = 0.25
    max: Annotated[int, Meta(ge=1, le=10_000, description="Maximum number of boxes.")] = 300


class Postprocess(Spec, kw_only=True):
    """How the model's output is read: the output's name (empty: the float output), and its activation."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule("self.task == 'detection' || (!has(self.boxes) && !has(self.nms))", DETECTION_FIX, ".task"),
        ValidationRule(
            "!has(self.features) || self.features == '' || self.task == 'classification'", FEATURES_FIX, ".features"
        ),
    )

    task: Annotated[
        Literal["classification", "detection", "embedding"],
        Meta(description="What the model finds: classes, boxes, or features (a vector of numbers)."),
    ] = "classification"
    output: Annotated[Output, Meta(description="Name of the output to read; empty: the output of floats.")] = ""
    features: Annotated[
        Output,
        Meta(
            description="Classification: name of an output of penultimate features, answered in embeddings, by which"
            " the rule Learned tells hard samples better; empty: none."
        ),
    ] = ""
    activation: Annotated[
        Literal["none", "softmax", "sigmoid"], Meta(description="The function that converts the output to scores.")
    ] = "none"
    top_k: Annotated[
        int,
        Meta(
            ge=0,
            le=10_000,
            description="So many of the best classes are listed in the answer's value, or so many of the best boxes"
            " stay; 0: no list, and all boxes.",
        ),
    ] = 0
    boxes: Annotated[Boxes | None, Meta(description="The format of the model's boxes. Default: rows of six.")] = None
    nms: Annotated[Nms | None, Meta(description="Suppression of overlapping boxes. Default: the model does it.")] = None


#: all steps, in the order of the documentation
Steps = Grayscale | Resize | Letterbox | Crop | Scale | Normalize | Layout | Cast

# fields of all types that describe a model
ClassNames = Annotated[
    list[Annotated[str, Meta(max_length=128)]],
    Meta(max_length=10_000, description="Names of the classes, in the model's order."),
]
Preprocessing = Annotated[
    list[Steps],
    Meta(max_length=16, description="Steps that convert a frame to the model's input, in order."),
]
Postprocessing = Annotated[Postprocess | None, Meta(description="How to read the model's output.")]


def check_processing(preprocess: list[Steps], postprocess: Postprocess | None) -> None:
    """Check what types cannot express. Raises InvalidFieldError."""
    found = [
        InvalidFieldError(f"spec.preprocess[{i}].std", step.std, STD_FIX)
        for i, step in enumerate(preprocess)
        if isinstance(step, Scale | Normalize) and 0 in step.std
    ]
    if postprocess and postprocess.task != "detection" and (postprocess.boxes or postprocess.nms):
        found.append(InvalidFieldError("spec.postprocess.task", postprocess.task, DETECTION_FIX))
    if postprocess and postprocess.task != "classification" and postprocess.features:
        found.append(InvalidFieldError("spec.postprocess.features", postprocess.features, FEATURES_FIX))
    refuse(found)


def check_postprocess(postprocess: Postprocess | None) -> None:
    """Check that the fields of a post-processing fit together. Raises InvalidFieldError."""
    postprocess = postprocess or Postprocess()
    boxes = postprocess.boxes or Boxes()
    at, activation = "spec.postprocess", postprocess.activation
    if activation != "none":
        if postprocess.task == "detection" and boxes.decode == "rows" and not boxes.output:
            fix = "use none: boxes come with their final scores"
            raise InvalidFieldError(f"{at}.activation", activation, fix)
        if postprocess.task == "embedding":
            raise InvalidFieldError(f"{at}.activation", activation, "use none: features are read as they are")
    if boxes.decode != "rows" and boxes.output:
        fix = "leave it out: boxes.output names an output of boxes alone"
        raise InvalidFieldError(f"{at}.boxes.decode", boxes.decode, fix)
    if boxes.classes and not boxes.output:
        raise InvalidFieldError(f"{at}.boxes.classes", boxes.classes, "name the output of boxes too, in boxes.output")
