"""Proposes the pre- and post-processing of a model file from what the file contains: ``propose``.

A file shows shapes, types, its first operators, some metadata and the answer to a trial run. It seldom shows the range
of pixels and the order of channels of its training: each assumption about them is a note for the user. Outputs of no
known family are not guessed: the proposal then says that they are unknown, and has a script to begin with.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halimede.errors import InvalidFieldError
from halimede.inference.proposals.families import FAMILIES, OutputReading, recognise
from halimede.inference.proposals.skeleton import describe_unknown, script_skeleton
from halimede.inference.proposals.structure import OPEN_SIDES, TEXT_SIDES, FileStructure, file_structure
from halimede.inference.session import RuntimeSession
from halimede.inference.tensor_ports import PictureShape

#: pixels of a picture's longest side for a detector that leaves its size open, and what its sides are multiples of
LONGEST, MULTIPLE = 640, 32
#: ImageNet's mean and standard deviation, as PyTorch's models of pictures are trained with
IMAGENET = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
#: a note for the user about the range of pixels
RANGE_NOTE = (
    "normalize makes 0 to 1 of a picture's 0 to 255. If the model was trained on -1 to 1, write"
    " {op: normalize, mean: 0.5, std: 0.5}; on ImageNet with PyTorch, {op: normalize, mean: [0.485, 0.456, 0.406],"
    " std: [0.229, 0.224, 0.225]}; on 0 to 255, {op: scale}"
)
#: a note for the user about the order of channels
ORDER_NOTE = "pictures are RGB. If the model was trained on BGR, as with OpenCV, put {op: channels, format: bgr} first"
#: the preset of classifiers that were trained on ImageNet's mean and standard deviation
IMAGENET_PRESET = "imagenet"
#: what users may name in place of recognition
PRESETS = (*FAMILIES, IMAGENET_PRESET)

#: the field ``preprocess`` of a Model as plain data
Steps = list[dict[str, Any]]


@dataclass(slots=True)
class Proposal:
    """The fields of a Model as plain data, and what the user has to check.

    Attributes:
        preprocess: the field of the Model of this name, as plain data; empty: no steps.
        postprocess: the field of the Model of this name, as plain data.
        labels: names of the classes; empty: not known.
        notes: what the user has to check, a sentence each.
        family: the name in FAMILIES by which the outputs are read; empty if they are unknown.
        unknown: the message about outputs of no known family; empty if they are known.
        skeleton: a Python script that begins to read unknown outputs; empty if they are known.

    """

    preprocess: Steps
    postprocess: dict[str, Any] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    family: str = ""
    unknown: str = ""
    skeleton: str = ""


def propose(session: RuntimeSession, path: Path, file_format: str, preset: str = "") -> Proposal:
    """Return a proposal for an opened file. Blocks for a trial run of the model.

    ``preset``: one of PRESETS, which the user names; empty: the family is recognised. Raises ModelError for a model
    that cannot take a sample, InvalidFieldError for a preset that does not exist or that the file does not fit.
    """
    structure = file_structure(session, path, file_format)
    reading = _read_by_preset(structure, preset) if preset else recognise(structure)
    if reading is None:
        return Proposal([], unknown=describe_unknown(structure), skeleton=script_skeleton(structure))
    proposal = _propose_steps(structure, reading, imagenet=preset == IMAGENET_PRESET)
    proposal.family, proposal.postprocess, proposal.labels = reading.family, reading.postprocess, reading.labels
    proposal.notes = [*reading.notes, *proposal.notes]
    return proposal


def _read_by_preset(structure: FileStructure, preset: str) -> OutputReading:
    """Return how the outputs are read by a preset. Raises InvalidFieldError if it does not exist or fit."""
    if preset not in PRESETS:
        raise InvalidFieldError("--preset", preset, f"use one of {', '.join(PRESETS)}")
    reading = FAMILIES["classes" if preset == IMAGENET_PRESET else preset](structure, chosen=True)
    if reading is None:
        shapes = ", ".join(f"{output.name} {list(structure.shape(output))}" for output in structure.outputs) or "none"
        raise InvalidFieldError("--preset", preset, f"the file's outputs do not fit it: they are {shapes} a sample")
    return reading


def _propose_steps(structure: FileStructure, reading: OutputReading, *, imagenet: bool) -> Proposal:
    """Return a proposal of the pre-processing alone, with its notes; ``imagenet``: with ImageNet's range."""
    picture = structure.picture
    if picture is None:
        return Proposal([], notes=["the input is no picture that halimede knows: send arrays, or add steps yourself"])
    steps: Steps = []
    notes: list[str] = []
    if picture.channels == 1:
        steps.append({"op": "grayscale"})
    if picture.channels == 4:
        notes.append("the model takes four channels, and pictures have three: send raw frames, or add a script step")
    if reading.bgr:
        steps.append({"op": "channels", "format": "bgr"})
    steps.append(_size_step(structure, picture, reading, notes))
    # whole numbers take pixels as they are, and so does a quantized input, which callers see as floats
    if structure.port.dtype.kind == "f" and (structure.graph is None or structure.graph.floats):
        steps += _range_steps(structure, reading, notes, imagenet=imagenet)
    if picture.order in {"chw", "flat"}:
        steps.append({"op": "layout", "order": picture.order})
    # the notes of CenterFace say that it takes RGB
    if picture.channels == 3 and not reading.bgr and reading.family != "centerface":
        notes.append(ORDER_NOTE)
    return Proposal(steps, notes=notes)


def _size_step(
    structure: FileStructure, picture: PictureShape, reading: OutputReading, notes: list[str]
) -> dict[str, Any]:
    """Return the step that gives a picture its size, and add what the user has to check about it to ``notes``."""
    kind = reading.resize
    width, height = (side or OPEN_SIDES[0] for side in (picture.width, picture.height))  # 0: it is open
    if not structure.open_sides:  # a fixed size cannot be fitted: the picture is stretched
        step = {"op": "resize" if kind == "fit" else kind, "width": width, "height": height}
        return step if reading.fill is None else {**step, "fill": reading.fill}
    if reading.family == "ctc":
        if height == TEXT_SIDES[0]:  # assumed if the file leaves the height open
            notes.append(f"lines of text are scaled to a height of {height} pixels, and their width stays open")
        return {"op": "fit", "height": height}
    if kind == "fit":
        notes.append(f"the longest side is {LONGEST} pixels: more finds smaller things, and takes longer")
        return {"op": "fit", "longest": LONGEST, "multiple": MULTIPLE}
    notes.append(f"the file leaves height or width open: write the size of its training, not {width} x {height}")
    return {"op": kind, "width": width, "height": height}


def _range_steps(structure: FileStructure, reading: OutputReading, notes: list[str], *, imagenet: bool) -> Steps:
    """Return the step that scales values, or none if the model may do so itself, and add to ``notes``.

    The range is that of the file's metadata, of ``imagenet``, of the family, or else as most models are trained.
    """
    metadata, graph = structure.metadata, structure.graph
    if metadata.has_range:
        notes.append(
            f"the range is that of the file's metadata: mean {_list(metadata.mean)}, std {_list(metadata.std)}"
        )
        return [_normalize_step(metadata.mean, metadata.std)]
    if imagenet:
        return [{"op": "normalize", "mean": IMAGENET[0], "std": IMAGENET[1]}]
    if reading.mean is not None and reading.std is not None:
        return [_normalize_step((reading.mean * 255,), (reading.std * 255,))]
    if graph and graph.operators and graph.scales:
        names = ", ".join(sorted(graph.operators))
        notes.append(f"the model computes {names} first, so it may scale its input itself: no scaling is proposed")
        return []
    notes.append(RANGE_NOTE)
    return [{"op": "normalize"}]


def _normalize_step(mean: tuple[float, ...], std: tuple[float, ...]) -> dict[str, Any]:
    """Return the step for a mean and a standard deviation of values of 0 to 255."""
    if set(mean) == {0.0} and set(std) == {1.0}:
        return {"op": "scale"}
    if set(mean) == {0.0} and set(std) == {255.0}:
        return {"op": "normalize"}
    shares = [[round(value / 255, 6) for value in values] for values in (mean, std)]
    means, stds = (values[0] if len(set(values)) == 1 else values for values in shares)
    return {"op": "normalize", "mean": means, "std": stds}


def _list(values: tuple[float, ...]) -> str:
    """Return numbers as text, separated by commas."""
    return ", ".join(f"{value:g}" for value in values)
