"""Parquet: rows from the file's own metadata, classes from one column, row group by row group. Needs pyarrow."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

from halimede.datasets.counts import DatasetCounts
from halimede.datasets.registry import NOT_INSTALLED, UNREADABLE, DatasetError, DatasetReader, FileBlocks
from halimede.sample_files.rules import class_column

#: rows that are read at a time
ROWS = 16 * 1024


class Parquet(DatasetReader):
    """Reads Parquet files: a ``DatasetReader``, which describes the methods."""

    suffixes = frozenset({".parquet", ".pq"})

    def read(self, source: FileBlocks, tally: DatasetCounts, root: Path) -> None:  # noqa: ARG002  # of the port
        """Count the rows by the metadata, and their classes by one column. Raises DatasetError without pyarrow."""
        if importlib.util.find_spec("pyarrow") is None:
            text = "this node cannot read Parquet: install halimede[datasets], or write it as csv or jsonl"
            raise DatasetError(NOT_INSTALLED, text)
        import pyarrow as arrow  # noqa: PLC0415  # it takes 40 MB: import it only when needed
        from pyarrow import parquet  # noqa: PLC0415

        arrow.set_cpu_count(1)
        try:
            with parquet.ParquetFile(source.file, buffer_size=1 << 16, pre_buffer=False) as file:
                _read(arrow, file, tally)
        except arrow.ArrowException as error:
            raise DatasetError(UNREADABLE, f"{source.name}: {' '.join(str(error).split())[:500]}") from None


def _read(arrow: Any, file: Any, tally: DatasetCounts) -> None:
    """Count the rows and classes of an open file."""
    tally.samples += file.metadata.num_rows
    fields = [field for field in file.schema_arrow if _may_be_class(arrow, field.type)]
    names = [field.name for field in fields]
    if not names:
        return
    column, guessed = class_column(names)
    if guessed and file.schema_arrow[-1].name != names[column]:
        return  # the table's last column has numbers or lists, so it is no class
    for group in range(file.num_row_groups):
        for batch in file.iter_batches(ROWS, row_groups=[group], columns=[names[column]], use_threads=False):
            counts: Counter[str] = Counter()
            for pair in batch.column(0).value_counts().to_pylist():
                if pair["values"] is not None:
                    counts[str(pair["values"])] += pair["counts"]
            tally.add_classes(counts, guessed=guessed)
            if tally.unclassed:
                return


def _may_be_class(arrow: Any, kind: Any) -> bool:
    """Whether values of a type of Arrow may be classes."""
    types = arrow.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return any(test(kind) for test in (types.is_integer, types.is_boolean, types.is_string, types.is_large_string))
