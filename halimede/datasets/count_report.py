"""What a counting process prints: one JSON object per line.

The process that counts starts for each count, so this module imports nothing of the process that waits for it.
"""

from __future__ import annotations

import msgspec

from halimede.datasets.counting import Print
from halimede.messages import DatasetFacts


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a count. ``total`` bytes are only known for a single file."""

    files: int = 0
    done: int = 0
    total: int = 0
    samples: int = 0


class CountReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line: progress, or the final result."""

    progress: Progress | None = None
    facts: DatasetFacts | None = None
    watch: dict[str, Print] = {}
    whole: bool = True
    repeated: str = ""
    reason: str = ""
    message: str = ""
