"""What the process that counts a dataset prints: one JSON object (``CountReport``) per line.

The process starts anew for each count, so this module imports nothing of the process that waits for it.
"""

from __future__ import annotations

import msgspec

from halimede.datasets.counting import FileState
from halimede.messages import DatasetFacts


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a count so far: files, bytes and samples.

    ``done``: the bytes read; ``total``: the bytes of a single file, else 0.
    """

    files: int = 0
    done: int = 0
    total: int = 0
    samples: int = 0


class CountReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line: progress, the final result, or an error.

    Attributes:
        progress: the count so far, in a line of progress; None: another line.
        facts: the result: samples, classes and faults, as the dataset's status shows them; None: there is no result.
        watch: with ``facts``: the states of files and folders, by path; a change of one makes the result invalid.
        whole: with ``facts``: whether ``watch`` shows every change. False: files of a folder may be overwritten
            unnoticed.
        repeated: with ``facts``: a text that says which files list the same samples, and what to do; empty: none do.
        reason: of the error, in one word; empty: there is no error.
        message: the error in a sentence; empty: there is no error.

    """

    progress: Progress | None = None
    facts: DatasetFacts | None = None
    watch: dict[str, FileState] = {}
    whole: bool = True
    repeated: str = ""
    reason: str = ""
    message: str = ""
