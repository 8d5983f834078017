"""COCO: a sample is an image, a class is counted by its annotations."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from halimede.datasets.counts import DatasetCounts
from halimede.datasets.registry import DatasetReader, FileBlocks
from halimede.sample_files import coco


class Coco(DatasetReader):
    """Reads annotations in JSON: a ``DatasetReader``, which describes the methods."""

    suffixes = frozenset({coco.SUFFIX})

    def root(self, folder: Path) -> Path:
        """Return the annotations folder of COCO's own layout, if there is one."""
        return coco.annotations_folder(folder)

    def scope(self, path: Path, root: Path) -> str:
        """Return the folder of the pictures: pictures of one name in two folders are two samples."""
        return str(coco.pictures_folder(root.parent if root.name == coco.ANNOTATIONS else root, path))

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> None:  # noqa: ARG002  # of the port
        """Count one file of annotations, entry by entry; its rank and pictures show whether it repeats another one."""
        file = coco.CocoFile(source.file.fileno(), source.size, source.name, tally.record_fault, source.on_bytes)
        counts: Counter[Any] = Counter()
        for entry in file.entries():
            if isinstance(entry, coco.CocoAnnotation):
                counts[entry.category_id] += 1
            else:
                tally.samples += 1
        tally.add_classes({file.categories[key]: number for key, number in counts.items()})
        tally.rank = file.rank
        tally.listed = file.pictures.tobytes() if len(file.pictures) <= coco.MAX_COMPARED else b""
