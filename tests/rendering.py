"""What `kubectl apply -k` would send for each overlay of deploy/, and its copy in one file for `kubectl apply -f`.

    python -m tests.rendering --write

writes the copies anew. The custom resource definitions are not in them: they have files of their own already.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.waiting import patience

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
OVERLAYS = ("mosquitto", "tls", "emqx")
HEAD = "# Made from deploy/overlays/{name} by `python -m tests.rendering --write`: do not edit.\n"
CRD = "kind: CustomResourceDefinition\n"


def renderer() -> list[str] | None:
    """Return a command that renders a folder: kustomize, or a kubectl that has one of version 5; None without."""
    if shutil.which("kustomize"):
        said = subprocess.run(
            ["kustomize", "version"], capture_output=True, text=True, timeout=patience(30), check=False
        )
        if re.search(r"v5\.", said.stdout):
            return ["kustomize", "build"]
    if shutil.which("kubectl"):
        said = subprocess.run(
            ["kubectl", "version", "--client"], capture_output=True, text=True, timeout=patience(30), check=False
        )
        if re.search(r"Kustomize Version: v5\.", said.stdout):
            return ["kubectl", "kustomize"]
    return None


def render(folder: Path) -> str:
    """Return what a folder renders to."""
    command = renderer()
    assert command
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def overlay(name: str) -> str:
    """Return an overlay's copy as it should be."""
    found = [text for text in render(DEPLOY / "overlays" / name).split("\n---\n") if CRD not in text]
    return HEAD.format(name=name) + "\n---\n".join(found)


def copy(name: str) -> Path:
    """Return the path of an overlay's copy."""
    return DEPLOY / f"{name}.yaml"


def documents(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects in a YAML text, read as kubectl does, and in C: definitions are long."""
    yield from (found for found in yaml.load_all(text, yaml.CSafeLoader) if found)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"] or not renderer():
        sys.exit("usage: python -m tests.rendering --write (needs kubectl 1.27 or newer, or kustomize 5)")
    for each in OVERLAYS:
        copy(each).write_text(overlay(each))
