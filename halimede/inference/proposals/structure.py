"""What a model file shows of itself: its input and outputs, its metadata, and the values of one trial run.

Proposals of a model's spec are made of this ``FileStructure`` alone. The trial run answers random values: it shows the
lengths of open axes, whether scores are probabilities, and whether numbers are corners of boxes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from halimede.inference.decoders.ctc import METADATA_KEY
from halimede.inference.file_metadata import FileMetadata, read_metadata
from halimede.inference.graph_input import GraphInput, graph_input
from halimede.inference.model import Array
from halimede.inference.session import Declared, RuntimeSession
from halimede.inference.tensor_ports import FLOATS, InputPort, PictureShape, choose_input, picture_shape

#: pixels that are tried for a side that a file leaves open, in this order
OPEN_SIDES = (224, 640, 32)
#: height and width in pixels that are tried first for a reader of text that leaves them open
TEXT_SIDES = 48, 320
#: most values of the trial run's input
MAX_VALUES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class FileStructure:
    """The structure of one file.

    Attributes:
        port: the only input.
        graph: the input's first operators; None: the format does not show them.
        metadata: texts, labels and range that the file has.
        outputs: those of floats, as the file declares them.
        picture: the picture that the input takes, with the sides of the trial run, or without one 0 for an open side;
            None: the input is no picture.
        values: the outputs of floats in the trial run, by name; None: no trial run succeeded.

    """

    port: InputPort
    graph: GraphInput | None
    metadata: FileMetadata
    outputs: Sequence[Declared]
    picture: PictureShape | None = None
    values: Mapping[str, Array] | None = None

    @property
    def open_sides(self) -> bool:
        """Whether the file leaves the height or the width of its picture open."""
        declared = picture_shape(self.port.shape)
        return declared is not None and not (declared.height and declared.width)

    def shape(self, output: Declared) -> tuple[int, ...]:
        """Return the shape of one sample's part of an output, as in the trial run; without one, 0 for an open axis."""
        values = self._values(output)
        if values is not None:
            return values.shape
        return tuple(size if isinstance(size, int) else 0 for size in output.shape[1:])

    def sample(self, output: Declared) -> Array | None:
        """Return one sample's part of an output in the trial run; None without a run, or if it has NaN or infinity."""
        values = self._values(output)
        return values if values is not None and np.isfinite(values).all() else None

    def _values(self, output: Declared) -> Array | None:
        """Return one sample's part of an output, without the batch axis of 1 if there is one; None without a run."""
        values = self.values.get(output.name) if self.values else None
        return values[0] if values is not None and len(values) == 1 else values


def file_structure(session: RuntimeSession, path: Path, file_format: str) -> FileStructure:
    """Return the structure of an opened file, after a trial run. Raises ModelError if the model cannot take a sample.

    The first shape that the model answers is used.
    """
    port = choose_input(session.get_inputs())
    floats = [output for output in session.get_outputs() if output.type in FLOATS]
    structure = FileStructure(port, graph_input(path, file_format), read_metadata(path, file_format), floats)
    for shape in _shapes(port, text=METADATA_KEY in structure.metadata.texts):
        sample = _random(port, shape)
        try:
            outputs = session.run([output.name for output in floats], {port.name: sample})
        except Exception:  # noqa: BLE001,S112  # whatever the runtime raises: another size may fit
            continue
        values = {output.name: np.asarray(value) for output, value in zip(floats, outputs, strict=True)}
        if all(value.ndim for value in values.values()):
            return replace(structure, picture=picture_shape(shape), values=values)
    return replace(structure, picture=picture_shape(port.shape))


def _shapes(port: InputPort, *, text: bool) -> Iterator[tuple[int, ...]]:
    """Yield shapes of one sample that the model may take; ``text``: the model reads text."""
    declared, picture = port.shape or (), picture_shape(port.shape)
    if None not in declared:
        yield tuple(size or 1 for size in declared)
        return
    if text and picture and picture.order == "chw":
        height, width = TEXT_SIDES
        yield picture.channels, picture.height or height, picture.width or width
    for side in OPEN_SIDES:
        yield tuple(side if size is None else size for size in declared)


def _random(port: InputPort, shape: tuple[int, ...]) -> Array:
    """Return a batch of one random sample; one of a single value, which fails, if the shape is too large."""
    shape = (1, *shape) if np.prod(shape, dtype=np.float64) <= MAX_VALUES else (1,)
    random = np.random.default_rng(0)
    values = random.random(shape) if port.dtype.kind == "f" else random.integers(0, 128, shape)  # int8 holds them
    return np.asarray(values).astype(port.dtype)
