"""Lists and tables of samples for Sedna's scripts: samples ``x`` and labels ``y`` as NumPy arrays."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halimede.compat.sedna.common.class_factory import post_processing
from halimede.compat.sedna.unsupported import NotThereError
from halimede.errors import InvalidFieldError

__all__ = ("BaseDataSource", "CSVDataParse", "TxtDataParse")

#: the kind of samples without labels
TEST = "test"


class BaseDataSource:
    """Samples ``x``, and their labels ``y``; both are None before ``parse``.

    ``data_type``: train, eval or test. ``func``: converts each line or row; a callable, or the alias of a registered
    one (``process_func`` afterwards); None: nothing is converted. ``meta_attr``: for scripts; nothing here sets it.
    """

    def __init__(self, data_type: str = "train", func: Callable[[Any], Any] | str | None = None) -> None:
        self.data_type = data_type
        self.process_func = post_processing(func or None)
        self.x: Any = None
        self.y: Any = None
        self.meta_attr: Any = None

    def num_examples(self) -> int:
        """Return the number of samples, 0 before ``parse``."""
        return 0 if self.x is None else len(self.x)

    def __len__(self) -> int:
        return self.num_examples()

    def parse(self, *args: Any, **kwargs: Any) -> None:
        """Read samples into ``x`` and ``y``: subclasses implement it; this raises NotImplementedError."""
        raise NotImplementedError

    @property
    def is_test_data(self) -> bool:
        """Whether the samples have no labels to learn from."""
        return self.data_type == TEST

    def save(self, output: str = "") -> None:
        """Write ``x`` and ``y`` as an ``.npz`` file at the path ``output`` (Sedna's is a pickle).

        Raises InvalidFieldError before ``parse``.
        """
        if self.x is None:
            raise InvalidFieldError("x", None, "parse something first")
        np.savez(output, x=_array(self.x), y=_array([] if self.y is None else self.y))


class TxtDataParse(BaseDataSource):
    """Lines of words: a ``BaseDataSource`` of text files.

    The first word of a line is a sample, the second its label (0 without one). Empty lines are skipped.
    """

    def parse(self, *args: str, use_raw: bool = False, **_: Any) -> None:
        """Read the files ``args``; missing files are skipped. ``use_raw``: all words of a line are the sample.

        ``y`` is empty for test data and with ``use_raw``. Raises InvalidFieldError for raw lines of unequal length.
        """
        samples: list[Any] = []
        labels: list[Any] = []
        for name in args:
            for line in _lines(name):
                row = self.process_func(line) if self.process_func else line.split()
                if not len(row):
                    continue
                samples.append(row if use_raw else row[0])
                if not use_raw and not self.is_test_data:
                    labels.append(row[1] if len(row) > 1 else 0)
        self.x, self.y = _array(samples), _array(labels)


class CSVDataParse(BaseDataSource):
    """Tables with a header: a ``BaseDataSource`` of CSV files.

    ``x`` has a row per sample, of floats if all values are numbers, else of text. Sedna returns pandas' DataFrames: a
    script that accesses columns by name finds their names in ``columns``.
    """

    def __init__(self, data_type: str = "train", func: Callable[[Any], Any] | str | None = None) -> None:
        super().__init__(data_type, func)
        self.columns: list[str] = []

    def parse(
        self, *args: str | Mapping[str, Any], label: str = "", usecols: str | Sequence[str] = (), **options: Any
    ) -> None:
        """Read files, or dicts that are one row each. A table without the column ``label`` is skipped.

        ``y`` is that column; None without ``label``. Without any row nothing changes. ``usecols``: the columns to read,
        all if none is named; a text has commas between them. Raises InvalidFieldError for a row that lacks a column,
        NotThereError for further options of pandas.
        """
        if options:
            raise NotThereError(f"CSVDataParse.parse: {', '.join(options)} is pandas' own: read the file yourself")
        columns = usecols.split(",") if isinstance(usecols, str) and usecols else list(usecols)
        rows: list[dict[str, Any]] = []
        for table in args:
            records = [dict(table)] if isinstance(table, Mapping) else list(_rows(table))
            if self.process_func:
                records = [self.process_func(row) for row in records]
            if records and (not label or label in records[0]):
                rows += records
        if not rows:
            return
        self.columns = [name for name in (columns or rows[0]) if name != label]
        for row in rows:
            if lacking := [name for name in self.columns if row.get(name) is None]:
                raise InvalidFieldError("usecols", lacking[0], f"a row lacks it: it has {', '.join(map(str, row))}")
        self.x = _numbers([[row[name] for name in self.columns] for row in rows])
        self.y = _numbers([row[label] for row in rows]) if label else None


def _lines(name: str) -> Iterator[str]:
    """Yield the lines of a file without white space around them; none if it does not exist."""
    if name and Path(name).is_file():
        with Path(name).open(encoding="utf-8") as file:
            yield from (line.strip() for line in file)


def _rows(name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a CSV file by column; none if it does not exist."""
    if name and Path(name).is_file():
        with Path(name).open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)


def _array(values: Any) -> NDArray[Any]:
    """Return an array of rows. Raises InvalidFieldError if their lengths differ."""
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InvalidFieldError("samples", values, "give rows of equal length") from error


def _numbers(values: Any) -> NDArray[Any]:
    """Return an array of floats if all text of a table is numbers, else of its own type. Raises InvalidFieldError."""
    try:
        return np.asarray(values, dtype=float)
    except ValueError:
        return _array(values)
