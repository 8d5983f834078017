"""Each image without a daemon: what the Dockerfile installs into it, in a clean folder, starts there."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from tests.dockerfile import PIP, Stage, images, stages
from tests.e2e.running import ROOT
from tests.programs import run_program, run_python
from tests.wheels import build_wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

IMAGES = images()


def place(line: str, root: Path, folder: Path) -> None:
    """Do what a COPY does, into a folder that stands for the stage."""
    *sources, target = line.split()
    for source in sources:
        to = folder / target.removeprefix("./").lstrip("/")
        if (root / source).is_dir():
            shutil.copytree(root / source, to, ignore=shutil.ignore_patterns("__pycache__"))
            continue
        to = to / Path(source).name if target.endswith("/") else to
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / source, to)


@dataclass(frozen=True)
class Image:
    """What the Dockerfile makes of a target, in a folder: its Python environment, and how it is started."""

    name: str
    venv: Path
    app: Path
    entry: list[str]
    environment: dict[str, str]

    def python(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_program(self.venv / "bin" / "python", *words, cwd=self.app, env=self.environment)


def image_of(name: str, tmp_path: Path, *, pip: bool = False) -> Image:
    """Do what the Dockerfile does; without ``pip`` the packages of the extras are linked to, not installed."""
    stage, venv, made = IMAGES[name], tmp_path / "venv", tmp_path / "build"
    made.mkdir()
    for word, line in stages()["wheel"].own:
        if word == "COPY":
            place(line, ROOT, made)
    wheel = build_wheel(made, tmp_path)
    run_python("-m", "venv", "--without-pip", venv, check=True)
    if pip:
        install(stage, venv, wheel)
    else:
        link_packages(venv, stage.extras, wheel)
    app = tmp_path / "image" / "app"
    app.mkdir(parents=True)
    environment = {**stage.environment, "PATH": f"{venv}/bin:{os.environ['PATH']}"}
    environment["HALIMEDE_HOME"] = str(tmp_path / "home")
    return Image(name, venv, app, stage.entrypoint[1:], environment)


def needed(extras: Iterable[str]) -> list[Distribution]:
    """Return all distributions that halimede needs with these extras, itself left out."""
    distributions: dict[str, Distribution] = {}
    waiting, done = [("halimede", frozenset(extras))], set[tuple[str, frozenset[str]]]()
    while waiting:
        name, extra = waiting.pop()
        if (name.lower(), extra) not in done:
            done.add((name.lower(), extra))
            distributions[name.lower()] = distribution(name)
            waiting += [(r.name, frozenset(r.extras)) for r in _requirements(distributions[name.lower()], extra)]
    del distributions["halimede"]
    return list(distributions.values())


def _requirements(of: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    for requirement in map(Requirement, of.requires or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def link_packages(venv: Path, extras: Iterable[str], wheel: Path) -> None:
    """Fill an environment with a wheel of halimede, and with links to what it needs with these extras.

    What pip would find for the extras of an image is what the constraints name, and that is what is installed here:
    only that nothing else is in reach has to be tried, and that takes no download. `test_install.py` runs pip itself.
    """
    (site,) = venv.glob("lib/python*/site-packages")
    with ZipFile(wheel) as file:
        file.extractall(site)
    for package in needed(extras):
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(package.locate_file(top))))


def install(stage: Stage, venv: Path, wheel: Path) -> None:
    """Run the image's own lines of pip, with the pip and the folders of this machine."""
    lines = [line[line.index(PIP) :] for line in stage.lines("RUN") if PIP in line]
    command = " && ".join(lines).replace(PIP, shlex.join([sys.executable, "-m", "pip", "--python", str(venv)]))
    command = command.replace("/pip/constraints.txt", str(ROOT / "constraints.txt"))
    command = command.replace("/wheel/", f"{wheel.parent}/").replace("/venv/lib", f"{venv}/lib")
    quick = {**os.environ, "PIP_NO_COMPILE": "1"}  # half the time
    done = run_program("sh", "-ec", command, env=quick, timeout_s=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does not provide the extra" not in done.stderr


def starts(image: Image) -> None:
    """Start what is in it, and what else it has to hold."""
    shown = image.python(*image.entry, "--help")
    assert shown.returncode == 0, shown.stderr
    # what OTEL_EXPORTER_OTLP_ENDPOINT among the `env` of pods.json asks for
    traces = ["-c", "import opentelemetry.exporter.otlp.proto.http.trace_exporter, opentelemetry.sdk.trace"]
    needed = {
        "gm": ["-c", "from halimede.programs import mount; mount('services'); import services.gm.leader"],
        "lc": ["-m", "halimede.models", "--help"],
        "worker": traces,
        "node": traces,
    }
    if words := needed.get(image.name):
        found = image.python(*words)
        assert found.returncode == 0, found.stderr
    # nothing was written where the image would be read-only
    assert not list(image.app.rglob("__pycache__"))


# the LC's is tried in test_install.py, with what else is asked of an environment without more
@pytest.mark.parametrize("name", sorted(IMAGES.keys() - {"lc"}))
def test_what_an_image_is_made_of_starts(name: str, tmp_path: Path) -> None:
    starts(image_of(name, tmp_path))
