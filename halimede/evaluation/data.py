"""Labelled samples on disk: the pictures and rows on which a service is calibrated and evaluated, with their truth.

| ``--data`` | samples, and their truth |
|---|---|
| a folder of folders | JPEG and PNG pictures; the class of each is the folder that it is in |
| a folder with ``annotations.json``, or as COCO's own | pictures with boxes in COCO's form; crowds are left out |
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
from halimede.errors import DecodeError, InvalidFieldError
from halimede.evaluation.tables import NO_CLASS_COLUMN, read_npz, read_table
from halimede.frames import encodings
from halimede.frames.orientation import upright
from halimede.frames.payloads import open_payload
from halimede.inference import Array
from halimede.inference.decoding import Decoding
from halimede.messages import Box, Frame
from halimede.picture_files import files_below, probe
from halimede.sample_files import coco, voc, yolo
from halimede.sample_files.rules import PICTURES, SampleFileError, class_of
from halimede.sample_files.samples import PictureSample
from halimede.sample_files.tables import SUFFIXES as TABLES
from halimede.sample_files.tables import tables_below
from halimede.sample_files.texts import read_texts

FIELD = "--data"
#: most samples, and most bytes of all picture files, or of all numbers
MAX_SAMPLES = 100_000
MAX_BYTES = 2 * 1024**3
#: decodes a picture in the least time
SMALLEST = Decoding(Fit(longest=1))
MAX_PICTURE = 64 * 1024**2
FORMS = "give a folder of class folders, a folder with pictures and annotations or texts, a .csv, a .tsv or an .npz"
#: called with the number of finished samples, and of all samples
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledPicture:
    """Samples and their content.

    ``images``: each a frame with a picture file, or an array of numbers; ``image`` decodes it. ``truths``: the class of
    each as text; None: unknown. ``boxes``: the objects of each, with score 1 and the category's name as label; None:
    not detection data. ``is_text``: the truths are texts to read, not classes. ``sizes``: bytes of each when uploaded,
    in the encoding on disk, raw for a row of a table. ``names`` identify the samples. ``class_advice``: what would give
    them classes.
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
        """Return a sample as the input of a model's ``prepare``, decoded as that model's ``decoding`` says.

        Height x width (x 3) uint8, or any array of numbers.
        """
        image = self.images[number]
        return encodings.decode(image, decoding) if isinstance(image, Frame) else image


def read_labelled(
    path: Path, labels: Sequence[str] = (), progress: Progress | None = None, until_ns: float = math.inf
) -> LabelledPicture:
    """Read samples. With the model's ``labels``, class indices are replaced by their names.

    Of a folder with pictures, only files that did not change after ``until_ns`` are read.
    Raises InvalidFieldError (field ``--data``) for data that is unreadable, empty, larger than the limits, or without
    any class that the model knows.
    """
    if path.is_dir():
        found = _folder(path, labels, progress, until_ns)
    elif not path.exists():
        raise InvalidFieldError(FIELD, str(path), f"there is no such file or folder: {FORMS}")
    elif path.suffix.lower() in TABLES:
        found = _tables(path.parent, [path], labels)
    elif path.suffix.lower() == ".npz":
        found = _rows(*read_npz(path, MAX_SAMPLES, MAX_BYTES), path.name, labels)
    else:
        raise InvalidFieldError(FIELD, str(path), FORMS)
    if not len(found):
        raise InvalidFieldError(FIELD, str(path), f"there is no sample in it: {FORMS}")
    _check_known(path, found, labels)
    return found


def _folder(path: Path, labels: Sequence[str], progress: Progress | None, until_ns: float) -> LabelledPicture:
    below = list(files_below(path, until_ns))
    if samples := _annotated(path, below):
        images, sizes = _checked(path, [sample.picture for sample in samples], progress)
        names = [str(sample.picture.relative_to(path)) for sample in samples]
        boxes = [
            [Box(box.left, box.top, box.right, box.bottom, 1.0, box.label) for box in sample.boxes]
            for sample in samples
        ]
        return LabelledPicture(images=images, names=names, sizes=sizes, boxes=boxes)
    if texts := _texts(path):
        images, sizes = _checked(path, [picture for picture, _ in texts], progress)
        names = [str(picture.relative_to(path)) for picture, _ in texts]
        return LabelledPicture(
            images=images, names=names, sizes=sizes, truths=[text for _, text in texts], is_text=True
        )
    files = _pictures(path, below)
    if not files and (tables := tables_below(below)):
        return _tables(path, tables, labels)
    _check_boxes(files, below)
    classes = [class_of(file.relative_to(path)) for file in files]
    if any(classes) and not all(classes):
        stray = files[classes.index("")]
        raise InvalidFieldError(FIELD, str(stray), "it is in no class folder, and others are: move it, or remove it")
    images, sizes = _checked(path, files, progress)
    truths = [_named(text, labels) for text in classes] if any(classes) else None
    return LabelledPicture(
        images=images, names=[str(file.relative_to(path)) for file in files], sizes=sizes, truths=truths
    )


def _annotated(path: Path, below: Sequence[Path]) -> list[PictureSample]:
    """Return the pictures with boxes of a folder that has annotations of COCO or Pascal VOC."""
    try:
        if files := coco.annotation_files(path, below):
            return coco.read_coco(path, files, MAX_SAMPLES)
        return voc.read_voc(path, below)
    except SampleFileError as error:
        raise InvalidFieldError(FIELD, str(path), str(error)) from error
    except (RecursionError, OSError) as error:
        raise InvalidFieldError(FIELD, str(path), f"it cannot be read: {error}") from error


def _check_boxes(pictures: Sequence[Path], below: Sequence[Path]) -> None:
    """Refuse pictures whose boxes are in a form that is not read: without boxes they would be other samples."""
    try:
        file = yolo.label_file(pictures, below)
    except OSError as error:
        raise InvalidFieldError(FIELD, str(error.filename), f"it cannot be read: {error.strerror}") from error
    if file is not None:
        raise InvalidFieldError(FIELD, str(file), yolo.ADVICE)


def _texts(path: Path) -> list[tuple[Path, str]]:
    try:
        return read_texts(path, MAX_SAMPLES)
    except (SampleFileError, OSError) as error:
        raise InvalidFieldError(FIELD, str(path), str(error)) from error


def _tables(folder: Path, files: Sequence[Path], labels: Sequence[str]) -> LabelledPicture:
    found = _rows([], [], "", labels)
    for file in files:
        count, room = MAX_SAMPLES - len(found), MAX_BYTES - sum(found.sizes)
        table = _rows(*read_table(file, count, room), str(file.relative_to(folder)), labels)
        has_classes = table.truths is not None and found.truths is not None
        found = LabelledPicture(
            images=found.images + table.images,
            names=found.names + table.names,
            sizes=found.sizes + table.sizes,
            truths=[*(found.truths or ()), *(table.truths or ())] if has_classes else None,
            class_advice="" if has_classes else NO_CLASS_COLUMN,
        )
    return found


def _rows(images: Sequence[Array], classes: list[str] | None, name: str, labels: Sequence[str]) -> LabelledPicture:
    return LabelledPicture(
        images=list(images),
        names=[f"{name}[{i}]" for i in range(len(images))],
        sizes=[image.nbytes for image in images],
        truths=None if classes is None else [_named(text, labels) for text in classes],
    )


def _pictures(path: Path, below: Sequence[Path]) -> list[Path]:
    """Return those files that begin like a JPEG or PNG. Raises InvalidFieldError for other ones named as pictures."""
    found = []
    for file in below:
        is_picture = _is_picture(file)
        if not is_picture and file.suffix.lower() in PICTURES:
            raise InvalidFieldError(FIELD, str(file), "it is no JPEG or PNG file: convert it, or remove it")
        if is_picture:
            found.append(file)
            if len(found) > MAX_SAMPLES:
                raise InvalidFieldError(FIELD, str(path), f"it holds over {MAX_SAMPLES} pictures: give a part of them")
    return found


def _is_picture(file: Path) -> bool:
    try:
        return probe(file) is not None
    except OSError as error:
        raise InvalidFieldError(FIELD, str(file), f"it cannot be read: {error.strerror}") from error


def _checked(folder: Path, files: Sequence[Path], progress: Progress | None) -> tuple[list[Array | Frame], list[int]]:
    """Return the frames of picture files, each decoded once at its smallest scale to see that it can be, and sizes."""
    images: list[Array | Frame] = []
    sizes, room = [], MAX_BYTES
    for i, file in enumerate(files):
        try:
            if (size := file.stat().st_size) > MAX_PICTURE:
                raise InvalidFieldError(
                    FIELD, str(file), f"it has {size} bytes, more than {MAX_PICTURE}: make it smaller"
                )
            frame = open_payload(upright(file.read_bytes()), "")
            room -= frame.data.nbytes
            if room < 0:
                fix = f"its pictures have over {MAX_BYTES >> 30} GiB: give a part of them"
                raise InvalidFieldError(FIELD, str(folder), fix)
            encodings.decode(frame, SMALLEST)
            images.append(frame)
        except DecodeError as error:
            raise InvalidFieldError(FIELD, str(file), f"{error.cause}: repair or remove it") from error
        except OSError as error:
            raise InvalidFieldError(FIELD, str(file), f"it cannot be read: {error.strerror}") from error
        sizes.append(frame.data.nbytes)
        if progress:
            progress(i + 1, len(files))
    return images, sizes


def _named(text: str, labels: Sequence[str]) -> str:
    """Return the model's name of a class: data may contain its index."""
    if text not in labels and text.isascii() and text.isdigit() and len(text) < 10 and int(text) < len(labels):
        return labels[int(text)]
    return text


def _check_known(path: Path, data: LabelledPicture, labels: Sequence[str]) -> None:
    """Refuse data of another task: if the model knows none of the classes, every answer would be wrong."""
    if data.is_text:
        return
    there: Iterable[Any] = data.truths or (box.label for boxes in data.boxes or () for box in boxes)
    kinds = sorted({str(kind) for kind in there})
    if labels and kinds and not set(kinds) & set(labels):
        listed, known = ", ".join(kinds[:5]), ", ".join(labels[:5])
        fix = f"the model knows none of its classes ({listed}...): use the names of spec.labels ({known}...)"
        raise InvalidFieldError(FIELD, str(path), fix)
