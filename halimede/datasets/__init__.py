"""What is in a dataset: how many samples of which classes, how large it is, which entries cannot be used.

One file a format, registered with ``@register``. Everything is read block by block, so that memory does not grow with
the data, and a file that has not changed is not read again. Files of users are not trusted: no entities, no pickles, no
entry without a limit. ``python -m halimede.datasets`` counts in a process of its own
(``halimede.datasets.count_process``).
"""

from halimede.datasets.counting import Counted, count
from halimede.datasets.registry import FORMATS, DatasetError, find

__all__ = ["FORMATS", "Counted", "DatasetError", "count", "find"]
