"""Labelled samples on disk: the pictures and rows on which a service is calibrated and evaluated, with their truth.

| ``--data`` | samples, and their truth |
|---|---|
| a folder of folders | JPEG and PNG pictures; the class of each is the folder that it is in |
| a folder with ``annotations.json`` | pictures with boxes, as COCO writes them; crowds are left out |
| a folder of pictures alone | pictures without a truth |
| ``.csv``, ``.tsv`` | rows of numbers; the class is the column ``label``, without a header the last one |
| ``.npz`` | the array ``x``, a sample in each row, and ``y`` with their classes, if it is there |

All reads are bounded: the size of files, the claimed size of a picture or an array, and their number. There are no
pickles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from halimede.errors import DecodeError, InvalidFieldError
from halimede.evaluation.tables import NO_CLASS_COLUMN, read_npz, read_table
from halimede.frames import encodings
from halimede.frames.payloads import open_payload
from halimede.inference import Array
from halimede.messages import Box
from halimede.picture_files import files_below, probe
from halimede.sample_files.rules import class_of
from halimede.sample_files.tables import SUFFIXES as TABLES

FIELD = "--data"
#: most samples, and most bytes of all their pixels
MAX_SAMPLES = 100_000
MAX_PIXELS = 2 * 1024**3
MAX_PICTURE = 64 * 1024**2
FORMS = "give a folder of class folders, a folder with pictures and annotations.json, a .csv or an .npz"
#: called with the number of finished samples, and of all samples
Progress = Callable[[int, int], None]
ANNOTATIONS = "annotations.json"
MAX_JSON = 256 * 1024**2
MAX_BOXES = 2_000_000
Id = int | str
Name = Annotated[str, Meta(min_length=1, max_length=1024)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledPicture:
    """Samples and their content.

    ``images``: each as the input of a model's ``prepare``, height x width (x 3) uint8, or a row (or any array) of
    numbers. ``truths``: the class of each as text; None: unknown. ``boxes``: the objects of each, with score 1 and the
    category's name as label; None: not detection data. ``sizes``: bytes of each when uploaded, in the encoding on disk,
    raw for a row of a table. ``names`` identify the samples. ``class_advice``: what would give them classes.
    """

    images: list[Array]
    names: list[str]
    sizes: list[int]
    truths: list[str] | None = None
    boxes: list[list[Box]] | None = None
    class_advice: str = ""

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.images)


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
    elif path.suffix.lower() in TABLES | {".npz"}:
        read = read_npz if path.suffix.lower() == ".npz" else read_table
        images, classes = read(path, MAX_SAMPLES, MAX_PIXELS)
        found = LabelledPicture(
            images=images,
            names=[f"{path.name}[{i}]" for i in range(len(images))],
            sizes=[image.nbytes for image in images],
            truths=None if classes is None else [_named(text, labels) for text in classes],
            class_advice=NO_CLASS_COLUMN if classes is None and read is read_table else "",
        )
    else:
        raise InvalidFieldError(FIELD, str(path), FORMS)
    if not len(found):
        raise InvalidFieldError(FIELD, str(path), f"there is no sample in it: {FORMS}")
    _check_known(path, found, labels)
    return found


def _folder(path: Path, labels: Sequence[str], progress: Progress | None, until_ns: float) -> LabelledPicture:
    if (path / ANNOTATIONS).is_file():
        boxes = read_annotations(path / ANNOTATIONS, MAX_SAMPLES)
        images, sizes = _decoded(path, [path / name for name in boxes], progress)
        return LabelledPicture(images=images, names=list(boxes), sizes=sizes, boxes=list(boxes.values()))
    files = _pictures(path, until_ns)
    classes = [class_of(file.relative_to(path)) for file in files]
    if any(classes) and not all(classes):
        stray = files[classes.index("")]
        raise InvalidFieldError(FIELD, str(stray), "it is in no class folder, and others are: move it, or remove it")
    images, sizes = _decoded(path, files, progress)
    truths = [_named(text, labels) for text in classes] if any(classes) else None
    return LabelledPicture(
        images=images, names=[str(file.relative_to(path)) for file in files], sizes=sizes, truths=truths
    )


def _pictures(path: Path, until_ns: float) -> list[Path]:
    """Return all files below a folder that begin like a JPEG or PNG, by name; links to folders are not followed."""
    found = []
    for file in files_below(path, until_ns):
        if _is_picture(file):
            found.append(file)
            if len(found) > MAX_SAMPLES:
                raise InvalidFieldError(FIELD, str(path), f"it holds over {MAX_SAMPLES} pictures: give a part of them")
    return found


def _is_picture(file: Path) -> bool:
    try:
        return probe(file) is not None
    except OSError as error:
        raise InvalidFieldError(FIELD, str(file), f"it cannot be read: {error.strerror}") from error


def _decoded(folder: Path, files: Sequence[Path], progress: Progress | None) -> tuple[list[Array], list[int]]:
    images, sizes, room = [], [], MAX_PIXELS
    for i, file in enumerate(files):
        try:
            if (size := file.stat().st_size) > MAX_PICTURE:
                raise InvalidFieldError(
                    FIELD, str(file), f"it has {size} bytes, more than {MAX_PICTURE}: make it smaller"
                )
            frame = open_payload(file.read_bytes(), "")
            room -= encodings.measure(frame)
            if room < 0:
                fix = f"its pictures take over {MAX_PIXELS >> 30} GiB when decoded: give a part of them"
                raise InvalidFieldError(FIELD, str(folder), fix)
            images.append(encodings.decode(frame))
        except DecodeError as error:
            raise InvalidFieldError(FIELD, str(file), f"{error}: repair or remove it") from error
        except OSError as error:
            raise InvalidFieldError(FIELD, str(file), f"it cannot be read: {error.strerror}") from error
        sizes.append(size)
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
    there: Iterable[Any] = data.truths or (box.label for boxes in data.boxes or () for box in boxes)
    kinds = sorted({str(kind) for kind in there})
    if labels and kinds and not set(kinds) & set(labels):
        listed, known = ", ".join(kinds[:5]), ", ".join(labels[:5])
        fix = f"the model knows none of its classes ({listed}...): use the names of spec.labels ({known}...)"
        raise InvalidFieldError(FIELD, str(path), fix)


class _Image(Struct):
    id: Id
    file_name: Name


class _Category(Struct):
    id: Id
    name: Name


class _Annotation(Struct):
    image_id: Id
    category_id: Id
    bbox: tuple[float, float, float, float]
    iscrowd: int = 0


class _File(Struct):
    images: list[_Image]
    categories: list[_Category]
    annotations: Annotated[list[_Annotation], Meta(max_length=MAX_BOXES)] = []


def read_annotations(path: Path, limit: int) -> dict[str, list[Box]]:
    """Return the boxes of each picture in a COCO file, by file name, in the order of ``images``.

    ``images`` have id and file_name, ``categories`` id and name, ``annotations`` image_id, category_id and bbox (x, y,
    width and height in pixels): https://cocodataset.org/#format-data. The file is read whole.

    Annotations of crowds are skipped: a detector cannot match one box for many objects. Raises InvalidFieldError, also
    for a picture outside the folder and for more than ``limit`` pictures.
    """
    file = _read(path)
    if len(file.images) > limit:
        raise InvalidFieldError(FIELD, str(path), f"it lists {len(file.images)} images, more than {limit}: give a part")
    categories = {category.id: category.name for category in file.categories}
    names: dict[Id, str] = {}
    for i, image in enumerate(file.images):
        _check_name(path, i, image.file_name)
        names[image.id] = image.file_name
    found: dict[str, list[Box]] = {name: [] for name in names.values()}
    if len(found) != len(file.images):
        raise InvalidFieldError(FIELD, str(path), "an image's id or file_name is there twice: list each image once")
    for i, annotation in enumerate(file.annotations):
        at = f"{path}: annotations[{i}]"
        name, category = names.get(annotation.image_id), categories.get(annotation.category_id)
        if name is None:
            raise InvalidFieldError(FIELD, at, f"its image_id {annotation.image_id!r} is no image of this file")
        if category is None:
            raise InvalidFieldError(
                FIELD, at, f"its category_id {annotation.category_id!r} is no category of this file"
            )
        x, y, width, height = annotation.bbox
        if not all(map(math.isfinite, annotation.bbox)) or width <= 0 or height <= 0:
            raise InvalidFieldError(FIELD, at, "its bbox is empty: write x, y, width, height in pixels")
        if not annotation.iscrowd:
            found[name].append(Box(x, y, x + width, y + height, 1.0, category))
    return found


def _read(path: Path) -> _File:
    try:
        if path.stat().st_size > MAX_JSON:
            raise InvalidFieldError(FIELD, str(path), f"it is larger than {MAX_JSON >> 20} MiB: give a part of it")
        return msgspec.json.decode(path.read_bytes(), type=_File)
    except msgspec.DecodeError as error:  # also for JSON of another structure
        fix = f"write COCO's JSON with images, categories and annotations: {error}"
        raise InvalidFieldError(FIELD, str(path), fix) from error
    except (RecursionError, OSError) as error:
        raise InvalidFieldError(FIELD, str(path), f"it cannot be read: {error}") from error


def _check_name(path: Path, number: int, name: str) -> None:
    """Refuse a picture outside the folder: the file may be from anyone."""
    outside = PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\0" in name or "\\" in name
    if outside or not (path.parent / name).resolve().is_relative_to(path.parent.resolve()):
        fix = f"its file_name {name[:80]!r} is not in this folder: put the picture beside the annotations"
        raise InvalidFieldError(FIELD, f"{path}: images[{number}]", fix)
