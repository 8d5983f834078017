"""Each image without a daemon: what its Dockerfile installs and copies, in a clean folder, starts there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.closure import environment as environment_of
from tests.e2e.running import ROOT
from tests.wheels import build_wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: the LC's is tried in test_install.py, beside what else is asked of an environment without more
LC = ROOT / "services" / "lc" / "Dockerfile"
FILES = [*sorted({*ROOT.glob("services/*/Dockerfile")} - {LC}), ROOT / "services" / "camera.Dockerfile"]
#: both halves of it are tried in the others
NODE = ROOT / "services" / "node.Dockerfile"


def steps(text: str, word: str) -> list[str]:
    return re.findall(rf"^{word} (.*)$", text.replace("\\\n", " "), re.MULTILINE)


def place(line: str, root: Path, folder: Path) -> None:
    """Do what a COPY does, into a folder that stands for the image."""
    *sources, target = line.split()
    for source in sources:
        to = folder / target.removeprefix("./").lstrip("/")
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, to, ignore=shutil.ignore_patterns("__pycache__"))
            continue
        to = to / Path(source).name if target.endswith("/") else to
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, to)


def extras(file: Path) -> set[str]:
    (found,) = re.findall(r'"\.\[([a-z0-9,]+)\]"', file.read_text())
    return set(found.split(","))


def test_the_image_of_a_node_without_kubernetes_holds_lc_worker_and_server() -> None:
    parts = (ROOT / "services" / name / "Dockerfile" for name in ("lc", "worker", "serve"))
    assert extras(NODE) == set().union(*map(extras, parts))


@dataclass(frozen=True)
class Image:
    """What a Dockerfile makes, in a folder: its Python environment, its files, how it is started."""

    file: Path
    venv: Path
    root: Path
    entry: list[str]
    environment: dict[str, str]

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        line = [f"{self.venv}/bin/python", *words]
        return subprocess.run(
            line, cwd=self.root / "app", env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )


def image_of(file: Path, tmp_path: Path, *, pip: bool = False) -> Image:
    """Do what a Dockerfile says; without ``pip`` what its extras need is linked to, not installed once more."""
    build, image = file.read_text().replace("\\\n", " ").split("\nFROM ")[-2:]
    venv, made = tmp_path / "venv", tmp_path / "build"
    made.mkdir()
    for line in steps(build, "COPY"):
        place(line, ROOT, made)
    if pip:
        install(build, made, venv)
    else:
        environment_of(venv, extras(file), build_wheel(made, tmp_path))
    root = tmp_path / "image"
    (root / "app").mkdir(parents=True)
    for line in steps(image, "COPY"):
        if not line.startswith("--from"):
            place(line, ROOT, root)
    told = dict(pair.split("=", 1) for line in steps(image, "ENV") for pair in line.split())
    (entry,) = steps(image, "ENTRYPOINT")
    module, *roles = re.findall(r'"([a-z.]+)"', entry)[1:]
    environment = {**told, "PATH": f"{venv}/bin:{os.environ['PATH']}"}
    environment["HALIMEDE_HOME"] = str(tmp_path / "home")
    return Image(file, venv, root, ["-m", module, *roles], environment)


def install(build: str, made: Path, venv: Path) -> None:
    """Run a Dockerfile's own line."""
    (run,) = steps(build, "RUN")
    # the package itself is built in isolation, which another Python does already: a plain venv is what the image has
    run = run.replace("--no-cache-dir ", "")
    command = run.replace("python -m venv /venv", f"{sys.executable} -m venv {venv}").replace("/venv/", f"{venv}/")
    quick = {**os.environ, "PIP_NO_COMPILE": "1"}  # half the time
    done = subprocess.run(
        ["sh", "-ec", command], cwd=made, env=quick, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does not provide the extra" not in done.stderr


def starts(image: Image) -> None:
    """Start what is in it, and what else it has to hold."""
    shown = image.python(*image.entry, "--help")
    assert shown.returncode == 0, shown.stderr
    needed = {
        "gm": ["-c", "from halimede.programs import mount; mount('services'); import services.gm.leader"],
        "lc": ["-m", "halimede.models", "--help"],
        # what OTEL_EXPORTER_OTLP_ENDPOINT among the `env` of pods.json asks for
        "worker": ["-c", "import opentelemetry.exporter.otlp.proto.http.trace_exporter, opentelemetry.sdk.trace"],
    }
    if words := needed.get(image.file.parent.name):
        found = image.python(*words)
        assert found.returncode == 0, found.stderr
    # nothing was written where the image would be read-only
    assert not list(image.root.rglob("__pycache__"))


@pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_an_image_is_made_of_starts(file: Path, tmp_path: Path) -> None:
    starts(image_of(file, tmp_path))
