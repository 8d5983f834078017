"""Texts for a file that halimede cannot read as it is.

They are a script to begin with for outputs of no known family, and lines of Python that open the fixed axes of a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from halimede.inference.proposals.structure import FileStructure
from halimede.inference.session import Declared, RuntimeSession
from halimede.inference.tensor_ports import PictureShape, picture_shape

#: begin and end of the message about unknown outputs
NOT_KNOWN = "I do not know this output"
SCRIPT_FIX = (
    "Write a script that reads it (postprocess.script, docs/processing.md), beginning with the lines below; or name"
    " what it is: halimede models add FILE --preset NAME"
)
#: an output with two sides of more than the input's height divided by this is taken for a map of the picture
LEAST_SHARE = 8


def describe_unknown(structure: FileStructure) -> str:
    """Return the message about outputs of no known family: what each may be, and what to do."""
    parts = [
        f"{output.name} {list(structure.shape(output))}{_guess(structure, output)}" for output in structure.outputs
    ]
    return f"{NOT_KNOWN}: {'; '.join(parts) or 'it has no floats'}. {SCRIPT_FIX}"


def _guess(structure: FileStructure, output: Declared) -> str:
    """Return in brackets what an output may be by its shape; empty if it may be anything."""
    shape, picture = structure.shape(output), structure.picture
    sides = [size for size in shape if picture and size > max(1, picture.height // LEAST_SHARE)]
    if picture and len(shape) == 3 and len(sides) >= 2:
        return " (a map of the picture, as of a segmentation)"
    if len(shape) == 2 and min(shape) > 1:
        return " (rows of numbers, as of boxes, points or steps)"
    return " (a vector, as of logits, features or points)" if shape and max(shape) > 1 else ""


def script_skeleton(structure: FileStructure) -> str:
    """Return the text of a script whose function takes the outputs by name, and which the user has to complete."""
    lines = ["import numpy as np", "", "", "def postprocess(outputs, size):  # size: the frame's (height, width)"]
    for i, output in enumerate(structure.outputs):
        lines.append(f"    output{i} = outputs[{output.name!r}][0]  # {output.type} {list(structure.shape(output))}")
    lines += [
        "    # return one of: [[x1, y1, x2, y2, score, label], ...], a row of probabilities, a label, or a dict",
        '    raise NotImplementedError("read the outputs here")',
    ]
    return "\n".join(lines) + "\n"


def fixed_batch_input(session: RuntimeSession) -> str:
    """Return the name of the only input if its first axis is a fixed number of several samples; otherwise empty."""
    inputs = session.get_inputs()
    shape = inputs[0].shape if len(inputs) == 1 else ()
    return inputs[0].name if len(shape) and isinstance(shape[0], int) and shape[0] > 1 else ""


def opening_lines(session: RuntimeSession, path: Path) -> str:
    """Return lines of Python that write the ONNX file ``path`` with open axes, all but that of the channels.

    They write the file ``STEM-open.onnx`` in their working folder. Raises ValueError if the model has several inputs.
    """
    (port,) = session.get_inputs()
    axes = _axes(port.shape, picture_shape([size if isinstance(size, int) else None for size in port.shape[1:]]))
    opened = path.with_name(f"{path.stem}-open{path.suffix}").name
    return f"""\
import onnx  # pip install onnx

model = onnx.load({str(path)!r})
axes = {{{port.name!r}: {axes}, **{{output.name: [0, 2, 3] for output in model.graph.output}}}}
for port in [*model.graph.input, *model.graph.output]:
    for axis, size in enumerate(port.type.tensor_type.shape.dim):
        if axis in axes.get(port.name, []):
            size.dim_param = f"{{port.name}}_{{axis}}"
del model.graph.value_info[:]  # shapes between operators, computed from the fixed ones
onnx.save(model, {opened!r})
"""


def _axes(shape: Sequence[object], picture: PictureShape | None) -> list[int]:
    """Return the axes of an input that may be open: that of samples, and a picture's height and width."""
    if picture is None or len(shape) != 4:
        return [0]
    return [0, 2, 3] if picture.order == "chw" else [0, 1, 2]
