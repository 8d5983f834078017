"""The declared processing of a Model: pre-processing of frames, and post-processing of the model's output.

A new step is a class here and a function in ``halimede.inference.preprocess``, registered for it. A step that moves
pixels has another function in ``halimede.inference.geometry``, which maps boxes back to the frame. docs/processing.md
lists all steps.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from halimede.api.base import Spec
from halimede.api.model_formats import FORMAT_NAMES, FORMATS
from halimede.api.schema import ValidationRule, pattern
from halimede.errors import InvalidFieldError, refuse

#: texts of errors: what to write
STD_FIX = "use values other than 0"
DETECTION_FIX = "boxes and nms need task detection: set task, or remove them"
TEXT_FIX = "text needs task text: set task, or remove it"
FIT_FIX = "set longest or height, or multiple above 1 alone: longest and height exclude each other"
GRID_FIX = "set strides or file, not both: anchors are computed from strides, or read from a file"
FEATURES_FIX = "features need task classification: set task, or remove them"
FORMAT_FIX = f"use one of the formats {FORMAT_NAMES} with a script: for other formats the estimator does this itself"
ARCHIVE_FIX = "give an archive (tar, tar.gz, zip) that has the model and its scripts: a script comes from nowhere else"

CLASSES_FIX = "name the output of boxes too, in boxes.output"
#: decodings of boxes from maps of scores, sizes and offsets
MAPS = frozenset({"centernet", "centerface"})
#: the decoding of lines of text from a map of probabilities
DB = "db"
#: pixels of a side of the model's input, and pixels to remove at a side of a picture
Extent = Annotated[int, Meta(ge=1, le=8192)]
Offset = Annotated[int, Meta(ge=0, le=65_535)]
#: one number for all channels of a picture, or one for each
PerChannel = float | Annotated[list[float], Meta(max_length=16)]
#: a score, probability or overlap
Share = Annotated[float, Meta(ge=0, le=1)]
#: the name of an output of the model; empty: none is named
Output = Annotated[str, Meta(max_length=256)]
#: endings of addresses of a model's file without an archive, with which no script arrives
BARE_SUFFIXES = tuple(PurePosixPath(model_format.file).suffix for model_format in FORMATS.values())
#: the path of a script in its archive: no segment starts with a dot, so that none leads out of the folder
FILE_PATTERN = r"^([A-Za-z0-9_][A-Za-z0-9_.-]*/)*[A-Za-z0-9_][A-Za-z0-9_.-]*\.py$"
#: the name of a function in Python
FUNCTION_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
FILE_FIX = "write the path of a .py file from the folder of the model's file on, such as postprocess.py"
FUNCTION_FIX = "write the name of a function of the file"
ScriptFile = Annotated[
    str,
    Meta(
        max_length=256,
        description="A Python file of the model's archive: its path from the folder of the model's file on.",
        extra=pattern(FILE_PATTERN),
    ),
]
FunctionName = Annotated[str, Meta(max_length=128, extra=pattern(FUNCTION_PATTERN))]

#: the path of a file with the anchors of a model: numbers as text, or in NumPy's format without Python objects
ANCHOR_PATTERN = FILE_PATTERN.replace(r"\.py$", r"\.(csv|npy)$")
ANCHOR_FIX = "write the path of a .csv or .npy file from the folder of the model's file on, such as anchors.npy"

#: how the pixels of a JPEG file are read: all of them, or at a smaller scale where a step makes them smaller anyway
DecodeMode = Annotated[
    Literal["exact", "scaled"],
    Meta(
        description="exact (the default): JPEG files are decoded whole. scaled: at the smallest of 1/2, 1/4 and 1/8 of"
        " their size that the first step with a size allows, which takes less time."
    ),
]
ResizeMethod = Annotated[
    Literal["antialias", "linear", "area"],
    Meta(
        description="antialias (the default): Pillow's bilinear filter, which averages when it shrinks. linear: two"
        " pixels an axis, as OpenCV, and PyTorch without antialias. area: the mean of the covered pixels, as OpenCV."
    ),
]
Width = Annotated[Extent, Meta(description="Width in pixels.")]
Height = Annotated[Extent, Meta(description="Height in pixels.")]
Mean = Annotated[
    PerChannel, Meta(description="The number to subtract after scaling, or a list with one for each channel.")
]
Std = Annotated[
    PerChannel, Meta(description="The number to divide by at the end, or a list with one for each channel.")
]


class ProcessingStep(Spec, tag_field="op", tag=str.lower, kw_only=True):
    """One step of the declared pre-processing: ``op`` names it."""


class Grayscale(ProcessingStep, kw_only=True):
    """Make one channel of three (ITU-R BT.601 weights, as Pillow does)."""


class Channels(ProcessingStep, kw_only=True):
    """Make three channels in this order: pictures are RGB. Gray is repeated, and a fourth channel is left out."""

    format: Annotated[Literal["bgr", "rgb"], Meta(description="Order of the channels that the model was trained on.")]


class Resize(ProcessingStep, kw_only=True):
    """Scale the picture to ``width`` x ``height`` pixels."""

    width: Width
    height: Height
    method: ResizeMethod = "antialias"


class Fit(ProcessingStep, kw_only=True):
    """Scale the picture with its proportions, to a longest side or to a height; its other side stays open."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            "has(self.longest) ? !has(self.height) : (has(self.height) || (has(self.multiple) && self.multiple > 1))",
            FIT_FIX,
            ".longest",
        ),
    )

    longest: Annotated[Extent | None, Meta(description="Pixels of the longer side.")] = None
    height: Height | None = None
    multiple: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="Open sides are rounded to a multiple of so many pixels, at least one (default 1).",
        ),
    ] = 1
    method: ResizeMethod = "antialias"


class Letterbox(ProcessingStep, kw_only=True):
    """Scale the picture into ``width`` x ``height`` pixels as it is, in the middle; ``fill`` is all around it."""

    width: Width
    height: Height
    fill: Annotated[
        int, Meta(ge=0, le=65_535, description="Value of each channel around the picture (default 114).")
    ] = 114
    method: ResizeMethod = "antialias"


class Crop(ProcessingStep, kw_only=True):
    """Cut ``width`` x ``height`` pixels out of the picture: from its middle, or from ``x`` and ``y``."""

    width: Width
    height: Height
    x: Annotated[Offset | None, Meta(description="Pixels to remove at the left. Default: as at the right.")] = None
    y: Annotated[Offset | None, Meta(description="Pixels to remove at the top. Default: as at the bottom.")] = None


class Scale(ProcessingStep, kw_only=True):
    """Multiply by ``factor``, then subtract ``mean`` and divide by ``std`` (one value, or one a channel)."""

    factor: Annotated[float, Meta(description="The factor of each value, applied first (default 1).")] = 1.0
    mean: Mean = []
    std: Std = []


class Normalize(ProcessingStep, kw_only=True):
    """Scale by 1/255, then subtract ``mean`` and divide by ``std``: what PyTorch's users mean by it."""

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


class Script(ProcessingStep, kw_only=True):
    """Call a function of the user's: it takes the array so far, and returns the next one."""

    file: ScriptFile
    function: Annotated[FunctionName, Meta(description="The function's name: function(array) returns an array.")] = (
        "preprocess"
    )


class PostprocessScript(Spec, kw_only=True):
    """A function of the user's that reads the model's outputs."""

    file: ScriptFile
    function: Annotated[
        FunctionName,
        Meta(
            description="The function's name: function(outputs, size) gets the outputs of one sample by name, and the"
            " frame's height and width, and returns what an estimator may return."
        ),
    ] = "postprocess"


class Anchors(Spec, kw_only=True):
    """The boxes to which the numbers of an SSD model are relative: a grid for each layer, or a file."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule(
            "(has(self.strides) && size(self.strides) > 0) != (has(self.file) && self.file != '')", GRID_FIX, ".strides"
        ),
    )

    strides: Annotated[
        list[Annotated[int, Meta(ge=1, le=1024)]],
        Meta(max_length=16, description="Pixels from cell to cell of each layer: each cell has anchors at its centre."),
    ] = []
    per_cell: Annotated[int, Meta(ge=1, le=16, description="Anchors of each layer in a cell (default 2).")] = 2
    file: Annotated[
        str,
        Meta(
            max_length=256,
            description="A .csv or .npy file of the model's archive with [boxes, 4]: middle x, middle y, width, height,"
            " in shares of the model's input.",
            extra=pattern(ANCHOR_PATTERN, optional=True),
        ),
    ] = ""
    log: Annotated[
        bool,
        Meta(
            description="Sizes are logarithms, with the variances 0.1 and 0.2 of SSD. Default: numbers are pixels,"
            " relative to the anchor's middle."
        ),
    ] = False


class Boxes(Spec, kw_only=True):
    """How a detection model writes its boxes."""

    decode: Annotated[
        Literal["rows", "yolo", "yolov5", "ssd-anchors", "centernet", "centerface", "db"],
        Meta(
            description="rows: four numbers, score and class a row. yolo: four numbers and a score for each class,"
            " as YOLOv8 gives them. yolov5: four numbers, objectness, and a score for each class."
            " ssd-anchors: numbers relative to anchors, as BlazeFace. centernet: maps of scores, sizes"
            " and offsets at a quarter of the input's size. centerface: the same with logarithms, y before x."
            " db: a map of text, as PaddleOCR gives it."
        ),
    ] = "rows"
    form: Annotated[
        Literal["xyxy", "xywh", "cxcywh"] | None,
        Meta(
            description="What the four numbers are: two corners, corner and size, or middle and size"
            " (default xyxy for rows, else cxcywh)."
        ),
    ] = None
    normalized: Annotated[
        bool, Meta(description="The numbers are shares (0 to 1) of the width and height of the model's input.")
    ] = False
    output: Annotated[
        Output,
        Meta(
            description="Name of the output with only boxes, or their sizes; postprocess.output then has only scores."
        ),
    ] = ""
    classes: Annotated[
        Output, Meta(description="Name of the output with class indices, for one score per box; needs boxes.output.")
    ] = ""
    offsets: Annotated[Output, Meta(description="centernet and centerface: name of the output with offsets.")] = ""
    landmarks: Annotated[Output, Meta(description="centerface: name of the output with landmarks; empty: none.")] = ""
    anchors: Annotated[Anchors | None, Meta(description="ssd-anchors: the anchors, in the order of the boxes.")] = None
    threshold: Annotated[
        Share | None, Meta(description="db: probability above which a pixel is text (default 0.3).")
    ] = None
    unclip: Annotated[
        Annotated[float, Meta(ge=0, le=10)] | None,
        Meta(description="db: a box grows by its area times this, divided by its perimeter (default 1.6)."),
    ] = None


class Nms(Spec, kw_only=True):
    """Non-maximum suppression: of boxes of one class that overlap, the one with the best score stays."""

    iou: Annotated[Share, Meta(description="Boxes with a larger overlap (intersection over union) are removed.")] = 0.45
    score: Annotated[Share, Meta(description="Boxes with a lower score are removed.")] = 0.25
    max: Annotated[int, Meta(ge=1, le=10_000, description="Maximum number of boxes.")] = 300


class ReadText(Spec, kw_only=True):
    """How the steps of a reader of text become characters: with CTC."""

    decode: Annotated[Literal["ctc"], Meta(description="ctc: one character or a blank for each step.")] = "ctc"
    alphabet: Annotated[
        str,
        Meta(
            max_length=65_536,
            description="The characters in the model's order, without the blank. Default: those of the file's metadata"
            " (character, a line each). With one class more than characters, the last is the space.",
        ),
    ] = ""
    blank: Annotated[Literal["first", "last"], Meta(description="Which class is the blank (default first).")] = "first"


class Postprocess(Spec, kw_only=True):
    """How the model's output is read: the output's name (empty: the float output), and its activation."""

    rules: ClassVar[tuple[ValidationRule, ...]] = (
        ValidationRule("self.task == 'detection' || (!has(self.boxes) && !has(self.nms))", DETECTION_FIX, ".task"),
        ValidationRule("!has(self.text) || self.task == 'text'", TEXT_FIX, ".text"),
        ValidationRule(
            "!has(self.features) || self.features == '' || self.task == 'classification'", FEATURES_FIX, ".features"
        ),
    )

    task: Annotated[
        Literal["classification", "detection", "embedding", "text"],
        Meta(description="What the model finds: classes, boxes, features (a vector of numbers), or a line of text."),
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
    text: Annotated[ReadText | None, Meta(description="How text is read. Default: CTC, the file's alphabet.")] = None
    script: Annotated[
        PostprocessScript | None,
        Meta(description="A function of the user's that reads the model's outputs, in place of all other fields."),
    ] = None


#: any step; the order is that of the documentation
Steps = Grayscale | Channels | Resize | Fit | Letterbox | Crop | Scale | Normalize | Layout | Cast | Script

# fields of all types that describe a model
ClassNames = Annotated[
    list[Annotated[str, Meta(max_length=128)]],
    Meta(max_length=10_000, description="Names of the classes, in the model's order."),
]
Preprocessing = Annotated[
    list[Steps], Meta(max_length=16, description="Steps that convert a frame to the model's input, in order.")
]
Postprocessing = Annotated[Postprocess | None, Meta(description="How to read the model's output.")]


def channel_values(values: PerChannel) -> list[float]:
    """Return the values of ``mean`` or ``std`` as a list: of one number for all channels, or a number a channel."""
    return values if isinstance(values, list) else [values]


def pixels_digest(decode: DecodeMode, preprocess: list[Steps]) -> str:
    """Return the SHA-256, in hexadecimal, of how a Model's input is made of a picture: equal for equal settings."""
    return hashlib.sha256(msgspec.json.encode([decode, preprocess], order="deterministic")).hexdigest()


def check_processing(preprocess: list[Steps], postprocess: Postprocess | None) -> None:
    """Check values of steps, scripts, and what the post-processing's task allows.

    Raises InvalidFieldError with all errors.
    """
    errors = [
        InvalidFieldError(f"spec.preprocess[{i}].std", step.std, STD_FIX)
        for i, step in enumerate(preprocess)
        if isinstance(step, Scale | Normalize) and 0 in channel_values(step.std)
    ]
    errors += [
        InvalidFieldError(f"spec.preprocess[{i}].longest", step.longest, FIT_FIX)
        for i, step in enumerate(preprocess)
        if isinstance(step, Fit) and not _is_one_size(step)
    ]
    for field, script in scripts_of(preprocess, postprocess):
        if not re.fullmatch(FILE_PATTERN, script.file):
            errors.append(InvalidFieldError(f"{field}.file", script.file, FILE_FIX))
        if not re.fullmatch(FUNCTION_PATTERN, script.function):
            errors.append(InvalidFieldError(f"{field}.function", script.function, FUNCTION_FIX))
    if postprocess and postprocess.task != "detection" and (postprocess.boxes or postprocess.nms):
        errors.append(InvalidFieldError("spec.postprocess.task", postprocess.task, DETECTION_FIX))
    if postprocess and postprocess.task != "classification" and postprocess.features:
        errors.append(InvalidFieldError("spec.postprocess.features", postprocess.features, FEATURES_FIX))
    if postprocess and postprocess.task != "text" and postprocess.text:
        errors.append(InvalidFieldError("spec.postprocess.task", postprocess.task, TEXT_FIX))
    anchors = anchors_of(postprocess)
    if anchors and bool(anchors.strides) == bool(anchors.file):
        errors.append(InvalidFieldError("spec.postprocess.boxes.anchors.strides", anchors.strides, GRID_FIX))
    elif anchors and anchors.file and not re.fullmatch(ANCHOR_PATTERN, anchors.file):
        errors.append(InvalidFieldError("spec.postprocess.boxes.anchors.file", anchors.file, ANCHOR_FIX))
    refuse(errors)


def _is_one_size(step: Fit) -> bool:
    """Whether the step names one size that it scales to."""
    if step.longest is None and step.height is None:
        return step.multiple > 1
    return step.longest is None or step.height is None


def anchors_of(postprocess: Postprocess | None) -> Anchors | None:
    """Return the anchors of a model's boxes; None if it has none."""
    return postprocess.boxes.anchors if postprocess and postprocess.boxes else None


def check_postprocess(postprocess: Postprocess | None) -> None:
    """Check that the fields of a post-processing fit together. Raises InvalidFieldError."""
    postprocess = postprocess or Postprocess()
    at = "spec.postprocess"
    if postprocess.script and (fields := _output_fields(postprocess)):
        fix = f"remove {', '.join(fields)}: the script alone reads the model's outputs"
        raise InvalidFieldError(f"{at}.script", postprocess.script.file, fix)
    _check_activation(postprocess, f"{at}.activation")
    _check_boxes(postprocess.boxes or Boxes(), f"{at}.boxes")


def _check_activation(postprocess: Postprocess, at: str) -> None:
    """Check that the activation is possible for the task and the decoding of boxes."""
    activation, boxes = postprocess.activation, postprocess.boxes or Boxes()
    if activation == "none":
        return
    if postprocess.task == "detection" and boxes.decode == "rows" and not boxes.output:
        raise InvalidFieldError(at, activation, "use none: boxes come with their final scores")
    if postprocess.task == "embedding":
        raise InvalidFieldError(at, activation, "use none: features are read as they are")
    if boxes.decode in {DB, *MAPS} and activation == "softmax":
        raise InvalidFieldError(at, activation, f"use sigmoid or none: the maps of {boxes.decode} are independent")
    if postprocess.task == "text" and activation == "sigmoid":
        raise InvalidFieldError(at, activation, "use softmax or none: a step of text has one character")


def _check_boxes(boxes: Boxes, at: str) -> None:
    """Check that the decoding of boxes has the outputs and anchors that it reads, and no others."""
    has_box_output = boxes.decode in {"ssd-anchors", *MAPS}
    if boxes.decode in {"yolo", "yolov5", DB} and boxes.output:
        fix = "remove boxes.output: it names an output of boxes alone"
        raise InvalidFieldError(f"{at}.decode", boxes.decode, fix)
    if has_box_output and not boxes.output:
        content = "boxes" if boxes.decode == "ssd-anchors" else "sizes"
        raise InvalidFieldError(f"{at}.output", boxes.output, f"name the output of {content}: {boxes.decode} reads it")
    if boxes.classes and (has_box_output or not boxes.output):
        fix = f"remove it: {boxes.decode} has a score for each class" if has_box_output else CLASSES_FIX
        raise InvalidFieldError(f"{at}.classes", boxes.classes, fix)
    if (boxes.decode in MAPS) != bool(boxes.offsets):
        fix = "name the output of offsets" if boxes.decode in MAPS else f"remove it: {boxes.decode} has no offsets"
        raise InvalidFieldError(f"{at}.offsets", boxes.offsets, fix)
    if boxes.landmarks and boxes.decode != "centerface":
        fix = f"remove it: {boxes.decode} has no such output"
        raise InvalidFieldError(f"{at}.landmarks", boxes.landmarks, fix)
    if (boxes.decode == "ssd-anchors") != (boxes.anchors is not None):
        fix = "remove anchors, or set decode to ssd-anchors" if boxes.anchors else "set boxes.anchors, which it needs"
        raise InvalidFieldError(f"{at}.decode", boxes.decode, fix)
    if has_box_output and (boxes.normalized or boxes.form not in {None, "cxcywh"}):
        field, value = ("normalized", True) if boxes.normalized else ("form", boxes.form)
        raise InvalidFieldError(f"{at}.{field}", value, f"remove it: {boxes.decode} gives middle and size, in pixels")
    _check_map_of_text(boxes, at)


def _check_map_of_text(boxes: Boxes, at: str) -> None:
    """Check the fields of db, and that no other decoding of boxes has them."""
    fix = f"remove it, or set decode to {DB}: others have no map of text"
    for field, number in (("threshold", boxes.threshold), ("unclip", boxes.unclip)):
        if number is not None and boxes.decode != DB:
            raise InvalidFieldError(f"{at}.{field}", number, fix)
    if boxes.decode == DB and (boxes.normalized or boxes.form not in {None, "xyxy"}):
        field, value = ("normalized", True) if boxes.normalized else ("form", boxes.form)
        raise InvalidFieldError(f"{at}.{field}", value, "remove it: db gives corners, in pixels")


def _output_fields(postprocess: Postprocess) -> list[str]:
    """Return the set fields that declare how outputs are read, as users write them."""
    fields = [name for name in ("output", "features", "boxes", "nms", "text") if getattr(postprocess, name)]
    fields += ["topK"] if postprocess.top_k else []
    return fields + (["activation"] if postprocess.activation != "none" else [])


def has_unscaled_pixels(preprocess: list[Steps]) -> bool:
    """Whether the steps are for pictures, and their values of 0 to 255 reach the model unchanged."""
    picture_steps = Grayscale | Channels | Resize | Fit | Letterbox | Crop | Layout
    has_pictures = any(isinstance(step, picture_steps) for step in preprocess)
    return has_pictures and not any(isinstance(step, Scale | Normalize | Script) for step in preprocess)


def scripts_of(
    preprocess: list[Steps], postprocess: Postprocess | None
) -> Iterator[tuple[str, Script | PostprocessScript]]:
    """Yield the scripts of a model, each with its path in the resource."""
    yield from ((f"spec.preprocess[{i}]", step) for i, step in enumerate(preprocess) if isinstance(step, Script))
    if postprocess and postprocess.script:
        yield "spec.postprocess.script", postprocess.script


def check_scripts(
    preprocess: list[Steps], postprocess: Postprocess | None, urls: Mapping[str, str], *, is_known_format: bool
) -> None:
    """Check that the scripts and anchors of a model can arrive with it, and that they are used.

    ``urls``: the addresses of the model's versions, by their paths in the resource. ``is_known_format``: whether
    halimede reads the format. Raises InvalidFieldError with all errors.
    """
    files = [(field, script.file) for field, script in scripts_of(preprocess, postprocess)]
    anchors = anchors_of(postprocess)
    if anchors and anchors.file:
        files.append(("spec.postprocess.boxes.anchors.file", anchors.file))
    if not files:
        return
    errors = [InvalidFieldError(field, url, ARCHIVE_FIX) for field, url in urls.items() if _is_bare(url)]
    errors += [] if is_known_format else [InvalidFieldError(field, file, FORMAT_FIX) for field, file in files]
    refuse(errors)


def _is_bare(url: str) -> bool:
    """Whether an address names a model's file, which has no scripts with it."""
    try:
        return urlsplit(url).path.lower().endswith(BARE_SUFFIXES)
    except ValueError:  # the fetcher reports an invalid address
        return False
