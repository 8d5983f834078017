"""What `kubectl apply -k` would send for each overlay of deploy/, and its copy in one file for `kubectl apply -f`.

    python -m tests.rendering --write

writes the copies anew. The custom resource definitions are not in them: they have files of their own already.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.programs import run_program

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
OVERLAYS = ("mosquitto", "tls", "emqx")
HEAD = "# Made from deploy/overlays/{name} by `python -m tests.rendering --write`: do not edit.\n"
CRD = "kind: CustomResourceDefinition\n"


def renderer() -> list[str] | None:
    """Return a command that renders a folder: kustomize, or a kubectl that has one of version 5; None without."""
    if shutil.which("kustomize") and re.search(r"v5\.", run_program("kustomize", "version").stdout):
        return ["kustomize", "build"]
    if shutil.which("kubectl"):
        version = run_program("kubectl", "version", "--client").stdout
        return ["kubectl", "kustomize"] if re.search(r"Kustomize Version: v5\.", version) else None
    return None


def render(folder: Path) -> str:
    command = renderer()
    assert command
    done = run_program(*command, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def overlay(name: str) -> str:
    found = [text for text in render(DEPLOY / "overlays" / name).split("\n---\n") if CRD not in text]
    return HEAD.format(name=name) + "\n---\n".join(found)


def copy(name: str) -> Path:
    return DEPLOY / f"{name}.yaml"


def documents(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects in a YAML text, read as kubectl does, and in C: definitions are long."""
    yield from (found for found in yaml.load_all(text, yaml.CSafeLoader) if found)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"] or not renderer():
        sys.exit("usage: python -m tests.rendering --write (needs kubectl 1.27 or newer, or kustomize 5)")
    for each in OVERLAYS:
        copy(each).write_text(overlay(each))
