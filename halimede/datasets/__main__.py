"""``python -m halimede.datasets PATH --format csv``: counts a dataset, and prints lines of JSON.

The process has a low priority, ends with its parent (``--parent``), and has a memory limit: a user's file can only harm
its own count.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from halimede.datasets.count_report import CountReport, Progress
from halimede.datasets.counting import Counted, count
from halimede.datasets.listing import write_listing
from halimede.datasets.registry import UNREADABLE, DatasetError
from halimede.system.prctl import end_with_parent

#: how low the priority of the process is
NICENESS = 10
#: bytes of memory for the count; Parquet's library alone takes more than all other formats together
MEMORY_BYTES, PARQUET_MEMORY_BYTES = 256 * 1024 * 1024, 1024 * 1024 * 1024
#: seconds between two reports of progress
PROGRESS_PERIOD_S = 3.0


def main(arguments: list[str] | None = None) -> int:
    """Count the dataset and print the reports; return the exit code: 0, or 1 with a report of the error.

    If the parent has ended already, it returns 1 without a report. ``arguments`` None: those of the command line.
    """
    parser = argparse.ArgumentParser("python -m halimede.datasets", description="Count what is in a dataset.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--format", required=True)
    parser.add_argument("--ledger", type=Path, help="an SQLite file for what need not be counted again")
    parser.add_argument("--root", type=Path, help="a folder that links must not lead out of")
    parser.add_argument("--listing", type=Path, help="a file for the list of its files with their digests")
    parser.add_argument("--parent", type=int, help="a process that this one ends with")
    options = parser.parse_args(arguments)
    if options.parent is not None and not end_with_parent(options.parent):
        return 1
    os.nice(NICENESS)
    memory_bytes = PARQUET_MEMORY_BYTES if options.format.lower() in {"parquet", "pq"} else MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    try:
        counted = _count(options)
    except DatasetError as error:
        _report(CountReport(reason=error.reason, message=str(error)))
        return 1
    except MemoryError:
        text = f"counting it takes over {memory_bytes >> 20} MiB of memory: split it"
        _report(CountReport(reason=UNREADABLE, message=text))
        return 1
    _report(CountReport(facts=counted.facts, watch=counted.watch, whole=counted.whole, repeated=counted.repeated))
    return 0


def _count(options: argparse.Namespace) -> Counted:
    """Count, and write the list of the files with ``--listing``. Raises DatasetError."""
    printer = _ProgressPrinter(options.path)
    counted = count(options.path, options.format, options.ledger, printer, options.root)
    if options.listing is None:
        return counted
    try:
        digest = write_listing(options.path, options.listing, printer)
    except OSError as error:
        text = f"{error.filename or options.path} cannot be read, or its list not be written: {error.strerror}"
        raise DatasetError(UNREADABLE, text) from None
    return replace(counted, facts=msgspec.structs.replace(counted.facts, listing=digest))


class _ProgressPrinter:
    """Prints the progress of a count, at most every ``PROGRESS_PERIOD_S`` seconds: an ``OnProgress``."""

    def __init__(self, path: Path) -> None:
        self._total = path.stat().st_size if path.is_file() else 0
        self._next = time.monotonic() + PROGRESS_PERIOD_S

    def __call__(self, files: int, done: int, samples: int) -> None:
        """Print the progress if it is time; ``done``: bytes that were read."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + PROGRESS_PERIOD_S
            _report(CountReport(progress=Progress(files=files, done=done, total=self._total, samples=samples)))


def _report(report: CountReport) -> None:
    """Print a report as one line of JSON."""
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    code = main()
    gc.freeze()  # skips the final collection: a tenth of the count of a small file
    sys.exit(code)
