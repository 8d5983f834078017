"""The message with which a process ends in a container: Kubernetes shows it as the reason why the container ended.

It is alone because every program that runs in pods may use it, and only there the file exists.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

#: the file that Kubernetes reads by default, made by the container's runtime, and the most bytes that it reads
FILE, MOST = Path("/dev/termination-log"), 4096


def write(text: str, file: Path = FILE) -> None:
    """Write why the process ends, if the file is there; its end is kept if it is too long. Raises nothing."""
    with contextlib.suppress(OSError):
        handle = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(handle, "wb") as out:
            out.write(text.encode(errors="replace")[-MOST:])
