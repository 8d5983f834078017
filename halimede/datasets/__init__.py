"""Counts datasets: number of samples by class, bytes, and unusable entries.

Each format has one file, which ``registry.FORMATS`` names. All files are read in blocks, so that memory does not grow
with the data, and an unchanged file is not read again. Files of users are not trusted: no entities, no pickles, no
unlimited entries. ``python -m halimede.datasets`` counts in a separate process (``halimede.datasets.count_process``).
"""

from halimede.datasets.counting import Counted, count
from halimede.datasets.registry import FORMATS, DatasetError, find

__all__ = ["FORMATS", "Counted", "DatasetError", "count", "find"]
