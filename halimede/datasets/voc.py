"""Pascal VOC: a sample is an annotation file, a class is counted by its objects."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from halimede.datasets.counts import DatasetCounts
from halimede.datasets.registry import DatasetReader, FileBlocks
from halimede.sample_files import voc
from halimede.sample_files.rules import SampleFileError


class Voc(DatasetReader):
    """Reads annotations in XML: a ``DatasetReader``, which describes the methods."""

    suffixes = frozenset({voc.SUFFIX})
    has_samples_in_files = False

    def root(self, folder: Path) -> Path:
        """Return the annotations folder of VOC's own layout, if there is one."""
        return voc.annotations_folder(folder)

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> None:
        """Count one annotation; in VOC's own layout, with ``JPEGImages``, one whose picture is missing is unusable."""
        try:
            annotation = voc.read_annotation(source.blocks(), source.size)
        except SampleFileError as error:
            tally.record_fault(source.name, str(error))
            return
        layout = voc.layout_folder(source.path)
        has_pictures = layout is not None and (layout / voc.JPEG_IMAGES).is_dir()
        if has_pictures and voc.find_picture(root, source.path, annotation.picture) is None:
            name = voc.shown_name(annotation.picture) or source.path.stem
            tally.record_fault(source.name, f"its picture {voc.JPEG_IMAGES}/{name} does not exist")
            source.is_final = False  # the picture may appear without a change to this file
            return
        tally.samples += 1
        tally.add_classes(Counter(box.label for box in annotation.boxes))
