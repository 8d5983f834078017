"""Builds the wheel and the source archive, as pip does, without a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waiting import patience


def build(kind: str, root: Path, folder: Path) -> Path:
    """Build what ``root`` describes (``kind``: wheel or sdist) into a new folder below ``folder``; return its path."""
    made = folder / f"{kind}-{len(list(folder.iterdir()))}"
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(made)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=patience(120), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = made.iterdir()
    return found


def build_wheel(root: Path, folder: Path) -> Path:
    """Build the wheel of ``root``; return its path."""
    return build("wheel", root, folder)
