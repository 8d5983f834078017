"""The message with which a process ends in a container: Kubernetes shows it as the reason why the container ended."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

#: the file that Kubernetes reads by default; the container's runtime makes it, so it exists only in containers
FILE = Path("/dev/termination-log")
#: the most bytes that Kubernetes reads
MAX_BYTES = 4096


def write(text: str, file: Path = FILE) -> None:
    """Write why the process ends, if ``file`` exists; of a text that is too long, only the end. Raises nothing."""
    with contextlib.suppress(OSError):
        handle = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(handle, "wb") as out:
            out.write(text.encode(errors="replace")[-MAX_BYTES:])
