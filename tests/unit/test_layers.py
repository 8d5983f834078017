"""The layers hold, and the check that holds them can fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.programs import run_program

ROOT = Path(__file__).parents[2]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).parent / "lint-imports"
    return run_program(command, "--no-cache", cwd=folder, env={"PYTHONPATH": str(folder)})


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


def test_the_layers_hold_and_each_planted_import_is_caught(tmp_path: Path) -> None:
    for name in ("halimede", "services"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    found = lint(tmp_path)
    assert found.returncode == 0, found.stdout
    for file, planted in PLANTED.items():
        path = tmp_path / file
        path.write_text("\n".join([path.read_text(), *(line for line, _ in planted), ""]))
    found = lint(tmp_path)
    assert found.returncode == 1, found.stdout
    text = " ".join(found.stdout.split())
    missed = [
        (file, target)
        for file, planted in PLANTED.items()
        for _, target in planted
        if f"{file.removesuffix('.py').replace('/', '.')} -> {target} (l." not in text
    ]
    assert not missed, found.stdout
