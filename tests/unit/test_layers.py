"""The layers hold, and the check that holds them can fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).parent / "lint-imports", "--no-cache"]
    return subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the code that a test may spoil."""
    for name in ("halimede", "services"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_layers_hold(copy: Path) -> None:
    found = lint(copy)
    assert found.returncode == 0, found.stdout


#: by file: an import that its layer forbids, and what the check calls it
PLANTED = {
    "services/lc/app.py": [("import services.gm.app", "services.gm.app"), ("import numpy", "numpy")],
    "services/gm/app.py": [("import services.worker", "services.worker"), ("import kubernetes", "kubernetes")],
    "services/gm/cluster/local.py": [("from kubernetes.aio import client", "kubernetes")],
    "halimede/mining/registry.py": [("import onnxruntime", "onnxruntime")],
    "halimede/cli/client.py": [("import paho.mqtt.client", "paho")],
    "halimede/codec.py": [("import services.gm", "services.gm")],
    "halimede/bus/port.py": [("import halimede.frames", "halimede.frames")],
}


def test_each_planted_import_is_caught(copy: Path) -> None:
    for file, planted in PLANTED.items():
        path = copy / file
        path.write_text("\n".join([path.read_text(), *(line for line, _ in planted), ""]))
    found = lint(copy)
    assert found.returncode == 1, found.stdout
    text = " ".join(found.stdout.split())
    missed = [
        (file, target)
        for file, planted in PLANTED.items()
        for _, target in planted
        if f"{file.removesuffix('.py').replace('/', '.')} -> {target} (l." not in text
    ]
    assert not missed, found.stdout
