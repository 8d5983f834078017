"""Builds the wheel and the source archive, as pip does, without a network."""

from __future__ import annotations

from pathlib import Path

from tests.programs import run_python


def build(kind: str, root: Path, folder: Path) -> Path:
    """Build what ``root`` describes (``kind``: wheel or sdist) into a new folder below ``folder``; return its path."""
    made = folder / f"{kind}-{len(list(folder.iterdir()))}"
    done = run_python("-m", "hatchling", "build", "-t", kind, "-d", made, cwd=root, timeout_s=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = made.iterdir()
    return found


def build_wheel(root: Path, folder: Path) -> Path:
    return build("wheel", root, folder)
