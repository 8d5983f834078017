"""A small file system of its own, and a file that takes all its space."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1024 * 1024
ROOM = 16 * MIB


@contextmanager
def small_disk(path: Path, inodes: int = 0) -> Iterator[Path]:
    """A file system with little room. ``inodes``: how many files it has at most; 0: any number."""
    path.mkdir()
    mount = shutil.which("mount") or "/bin/mount"
    options = f"size={ROOM},mode=0700,nr_inodes={inodes}"
    subprocess.run([mount, "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run([shutil.which("umount") or "/bin/umount", "-l", str(path)], check=True)


def fill(path: Path) -> None:
    """Take all the room that there is, to the last page."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
