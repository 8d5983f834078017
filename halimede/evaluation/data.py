"""Labelled samples on disk: the pictures and rows on which a service is calibrated and evaluated, with their truth.

| ``--data`` | samples, and their truth |
|---|---|
| a folder of folders | JPEG and PNG pictures; the class of each is the folder that it is in |
| a folder with ``annotations.json``, or one like COCO's | pictures with boxes in COCO's form; crowds are left out |
| a folder with annotations of Pascal VOC | pictures with boxes; difficult objects are left out |
| a folder with ``metadata.csv`` | pictures with a text each: the columns ``file_name`` and ``text`` |
| a folder of pictures alone | pictures without a truth; one with boxes in YOLO's form is refused |
| ``.csv``, ``.tsv`` | rows of numbers; the class is the column ``label``, without a header the last one |
| a folder of such tables | the rows of all of them |
| ``.npz`` | the array ``x``, a sample in each row, and ``y`` with their classes, if it is there |

All reads are bounded: the size of files, the claimed size of a picture or an array, and their number. There are no
pickles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halimede.api.processing import Fit
from halimede.errors import DecodeError
from halimede.evaluation.tables import NO_CLASS_COLUMN, data_error, read_npz, read_table
from halimede.frames import encodings
from halimede.frames.orientation import upright
from halimede.frames.payloads import open_payload
from halimede.inference import Array
from halimede.inference.decoding import Decoding
from halimede.messages import Box, Frame
from halimede.picture_files import encoding_of_file, files_below
from halimede.sample_files import coco, voc, yolo
from halimede.sample_files.rules import PICTURES, SampleFileError, class_of
from halimede.sample_files.samples import PictureSample
from halimede.sample_files.tables import SUFFIXES as TABLES
from halimede.sample_files.tables import tables_below
from halimede.sample_files.texts import read_texts

#: the option, for errors
FIELD = "--data"
#: most samples, and most bytes of all picture files, or of all numbers
MAX_SAMPLES = 100_000
MAX_BYTES = 2 * 1024**3
#: decodes a picture in the least time, to see that it can be decoded
SMALLEST = Decoding(Fit(longest=1))
#: most bytes of one picture file
MAX_PICTURE = 64 * 1024**2
#: what to do about data of no known form
FORMS = "give a folder of class folders, a folder with pictures and annotations or texts, a .csv, a .tsv or an .npz"
#: called with the number of finished samples, and of all samples
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSamples:
    """Samples with their names, and with their labels as far as these are known. All lists have one entry a sample.

    Attributes:
        images: a frame with a picture file, or an array of numbers; ``image`` decodes it.
        names: identifies the sample for people, such as the path of its file.
        sizes: bytes of the sample when it is uploaded: of its file, or of the raw numbers.
        truths: the class as text, or the text to read; None: unknown.
        boxes: the objects, with score 1 and the category's name as label; None: it is no detection data.
        is_text: ``truths`` are texts to read, not classes.
        class_advice: what a user can do so that the samples have classes; empty: nothing is needed.

    """

    images: list[Array | Frame]
    names: list[str]
    sizes: list[int]
    truths: list[str] | None = None
    boxes: list[list[Box]] | None = None
    is_text: bool = False
    class_advice: str = ""

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.images)

    def image(self, number: int, decoding: Decoding | None = None) -> Array:
        """Return sample ``number`` as the input of a model's ``prepare``: ``(height, width[, 3]) uint8``, or any array.

        ``decoding`` is that of the model; None: pictures are decoded whole.
        """
        image = self.images[number]
        return encodings.decode(image, decoding) if isinstance(image, Frame) else image


def read_labelled(
    path: Path, labels: Sequence[str] = (), progress: Progress | None = None, until_ns: float = math.inf
) -> LabelledSamples:
    """Return the samples at a path. With the model's ``labels``, indices of classes are replaced by their names.

    ``progress`` is called for each picture. Files of a folder that changed after ``until_ns`` (nanoseconds since 1970)
    are left out, except ``annotations.json``, ``metadata.csv``, and pictures that annotations or texts name. Raises
    InvalidFieldError (field ``--data``) for data that is unreadable, empty, larger than the limits, or without any
    class that the model knows.
    """
    if path.is_dir():
        data = _read_folder(path, labels, progress, until_ns)
    elif not path.exists():
        raise data_error(path, f"there is no such file or folder: {FORMS}")
    elif path.suffix.lower() in TABLES:
        data = _read_tables(path.parent, [path], labels)
    elif path.suffix.lower() == ".npz":
        data = _from_rows(*read_npz(path, MAX_SAMPLES, MAX_BYTES), path.name, labels)
    else:
        raise data_error(path, FORMS)
    if not len(data):
        raise data_error(path, f"there is no sample in it: {FORMS}")
    _check_classes(path, data, labels)
    return data


def _read_folder(path: Path, labels: Sequence[str], progress: Progress | None, until_ns: float) -> LabelledSamples:
    """Return the samples of a folder of any form. The parameters are those of ``read_labelled``.

    Raises InvalidFieldError.
    """
    paths = list(files_below(path, until_ns))
    if samples := _read_annotations(path, paths):
        boxes = [[Box(box.x1, box.y1, box.x2, box.y2, 1.0, box.label) for box in sample.boxes] for sample in samples]
        return _read_pictures(path, [sample.picture for sample in samples], progress, boxes=boxes)
    if texts := _read_texts(path):
        pictures, truths = [picture for picture, _ in texts], [text for _, text in texts]
        return _read_pictures(path, pictures, progress, truths=truths, is_text=True)
    files = _list_pictures(path, paths)
    if not files and (tables := tables_below(paths)):
        return _read_tables(path, tables, labels)
    _check_boxes(files, paths)
    classes = [class_of(file.relative_to(path)) for file in files]
    if any(classes) and not all(classes):
        stray = files[classes.index("")]
        raise data_error(stray, "it is in no class folder, and others are: move it, or remove it")
    names = [_class_name(text, labels) for text in classes] if any(classes) else None
    return _read_pictures(path, files, progress, truths=names)


def _read_annotations(path: Path, paths: Sequence[Path]) -> list[PictureSample]:
    """Return the pictures with boxes of a folder with annotations of COCO or Pascal VOC; empty: it has none.

    ``paths``: the files below ``path``. Raises InvalidFieldError for annotations that cannot be read.
    """
    try:
        if files := coco.annotation_files(path, paths):
            return coco.read_coco(path, files, MAX_SAMPLES)
        return voc.read_voc(path, paths)
    except SampleFileError as error:
        raise data_error(path, str(error)) from error
    except (RecursionError, OSError) as error:
        raise data_error(path, f"it cannot be read: {error}") from error


def _check_boxes(pictures: Sequence[Path], paths: Sequence[Path]) -> None:
    """Raise InvalidFieldError for pictures with boxes in YOLO's form, which is not read: their truth would be lost.

    ``paths``: all files of the folder, in which the boxes may be.
    """
    try:
        file = yolo.label_file(pictures, paths)
    except OSError as error:
        raise data_error(error.filename, f"it cannot be read: {error.strerror}") from error
    if file is not None:
        raise data_error(file, yolo.ADVICE)


def _read_texts(path: Path) -> list[tuple[Path, str]]:
    """Return pictures with their texts, of a folder with ``metadata.csv``; empty: it has none.

    Raises InvalidFieldError for a table that cannot be used.
    """
    try:
        return read_texts(path, MAX_SAMPLES)
    except (SampleFileError, OSError) as error:
        raise data_error(path, str(error)) from error


def _read_tables(folder: Path, files: Sequence[Path], labels: Sequence[str]) -> LabelledSamples:
    """Return the rows of all tables; they have classes only if each table has a column of classes.

    ``folder``: the one below which the names of samples begin. ``labels``: of the model. Raises InvalidFieldError.
    """
    data = _from_rows([], [], "", labels)
    for file in files:
        count, max_bytes = MAX_SAMPLES - len(data), MAX_BYTES - sum(data.sizes)
        table = _from_rows(*read_table(file, count, max_bytes), str(file.relative_to(folder)), labels)
        has_classes = table.truths is not None and data.truths is not None
        data = LabelledSamples(
            images=data.images + table.images,
            names=data.names + table.names,
            sizes=data.sizes + table.sizes,
            truths=[*(data.truths or ()), *(table.truths or ())] if has_classes else None,
            class_advice="" if has_classes else NO_CLASS_COLUMN,
        )
    return data


def _from_rows(images: Sequence[Array], classes: list[str] | None, name: str, labels: Sequence[str]) -> LabelledSamples:
    """Return the rows of a table as samples; ``name`` is that of the table, ``labels`` are the model's.

    ``classes``: of each row; None: unknown.
    """
    return LabelledSamples(
        images=list(images),
        names=[f"{name}[{i}]" for i in range(len(images))],
        sizes=[image.nbytes for image in images],
        truths=None if classes is None else [_class_name(text, labels) for text in classes],
    )


def _list_pictures(path: Path, paths: Sequence[Path]) -> list[Path]:
    """Return the files that begin like a JPEG or PNG. Raises InvalidFieldError for others with a picture's suffix."""
    pictures = []
    for file in paths:
        is_picture = _is_picture(file)
        if not is_picture and file.suffix.lower() in PICTURES:
            raise data_error(file, "it is no JPEG or PNG file: convert it, or remove it")
        if is_picture:
            pictures.append(file)
            if len(pictures) > MAX_SAMPLES:
                raise data_error(path, f"it holds over {MAX_SAMPLES} pictures: give a part of them")
    return pictures


def _is_picture(file: Path) -> bool:
    """Whether a file begins like a JPEG or PNG. Raises InvalidFieldError if it cannot be read."""
    try:
        return encoding_of_file(file) is not None
    except OSError as error:
        raise data_error(file, f"it cannot be read: {error.strerror}") from error


def _read_pictures(folder: Path, files: Sequence[Path], progress: Progress | None, **truth: Any) -> LabelledSamples:
    """Return picture files as samples with this truth (fields of LabelledSamples).

    Raises InvalidFieldError for a file that cannot be decoded, and for too many bytes.
    """
    frames: list[Frame] = []
    bytes_left = MAX_BYTES
    for i, file in enumerate(files):
        try:
            if (size := file.stat().st_size) > MAX_PICTURE:
                raise data_error(file, f"it has {size} bytes, more than {MAX_PICTURE}: make it smaller")
            frame = open_payload(upright(file.read_bytes()), "")
            bytes_left -= frame.data.nbytes
            if bytes_left < 0:
                raise data_error(folder, f"its pictures have over {MAX_BYTES >> 30} GiB: give a part of them")
            encodings.decode(frame, SMALLEST)
            frames.append(frame)
        except DecodeError as error:
            raise data_error(file, f"{error.cause}: repair or remove it") from error
        except OSError as error:
            raise data_error(file, f"it cannot be read: {error.strerror}") from error
        if progress:
            progress(i + 1, len(files))
    names, sizes = [str(file.relative_to(folder)) for file in files], [frame.data.nbytes for frame in frames]
    return LabelledSamples(images=list(frames), names=names, sizes=sizes, **truth)


def _class_name(text: str, labels: Sequence[str]) -> str:
    """Return the model's name of a class if ``text`` is an index of ``labels``, else ``text``."""
    if text not in labels and text.isascii() and text.isdigit() and len(text) < 10 and int(text) < len(labels):
        return labels[int(text)]
    return text


def _check_classes(path: Path, data: LabelledSamples, labels: Sequence[str]) -> None:
    """Raise InvalidFieldError if the model knows none of the data's classes: every answer would be wrong."""
    if data.is_text:
        return
    names: Iterable[Any] = data.truths or (box.label for boxes in data.boxes or () for box in boxes)
    kinds = sorted({str(kind) for kind in names})
    if labels and kinds and not set(kinds) & set(labels):
        listed, examples = ", ".join(kinds[:5]), ", ".join(labels[:5])
        fix = f"the model knows none of its classes ({listed}...): use the names of spec.labels ({examples}...)"
        raise data_error(path, fix)
