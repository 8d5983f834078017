"""Boxes in COCO's format, in one ``annotations.json`` next to the pictures: read whole, up to a limit.

Its layout: ``images`` (id, file_name), ``categories`` (id, name), ``annotations`` (image_id, category_id, bbox as x, y,
width and height in pixels), https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from halimede.errors import InvalidFieldError
from halimede.messages import Box

FIELD = "--data"
ANNOTATIONS = "annotations.json"
MAX_JSON = 256 * 1024**2
MAX_BOXES = 2_000_000

Id = int | str
Name = Annotated[str, Meta(min_length=1, max_length=1024)]


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
    """Return the boxes of each picture, by its file's name below the folder, in the order of ``images``.

    Annotations of crowds are left out: one box for many objects is nothing that a detector can be right about.
    Raises InvalidFieldError, also for a file outside the folder and over ``limit`` pictures.
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
    except msgspec.DecodeError as error:  # that it does not fit is one, too
        fix = f"write COCO's JSON with images, categories and annotations: {error}"
        raise InvalidFieldError(FIELD, str(path), fix) from error
    except (RecursionError, OSError) as error:
        raise InvalidFieldError(FIELD, str(path), f"it cannot be read: {error}") from error


def _check_name(path: Path, number: int, name: str) -> None:
    """Refuse a picture outside the folder: the file may be anybody's."""
    outside = PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\0" in name or "\\" in name
    if outside or not (path.parent / name).resolve().is_relative_to(path.parent.resolve()):
        fix = f"its file_name {name[:80]!r} is not in this folder: put the picture beside the annotations"
        raise InvalidFieldError(FIELD, f"{path}: images[{number}]", fix)
