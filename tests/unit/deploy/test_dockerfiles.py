"""The Dockerfile: linted by hadolint, and its images hold what they need and no more. `test_images.py` builds them."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.dockerfile import FILE, PIP, ROOT, WHEEL, Stage, images, stages, tags
from tests.programs import run_program

IMAGES = images()
each = pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)


def lint(text: str) -> str:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}")
    if hadolint is None or run_program(hadolint, "--version").returncode:
        pytest.skip("hadolint does not run on this machine")
    return run_program(hadolint, "-", input=text).stdout


def required(extras: set[str]) -> set[str]:
    """Return the packages that halimede and these extras name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extras <= set(project["optional-dependencies"])
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return {Requirement(line).name for line in lines}


def test_the_linter_finds_nothing_and_would_find_something() -> None:
    assert lint(FILE.read_text()) == ""
    assert "DL3006" in lint("FROM debian\nRUN apt-get install foo\n")


def test_podman_is_always_asked_for_the_format_that_has_health_checks() -> None:
    paths = (ROOT / "Makefile", *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "e2e" / "compose.py")
    found = [line for path in paths for line in re.findall(r"podman build[^\"`]*", path.read_text())]
    assert len(found) >= 5
    assert set(found) == {"podman build --format docker"}


def test_its_head_builds_every_image_once() -> None:
    last = {stage.name for stage in stages().values()} - {stage.base for stage in stages().values()} - {"built"}
    assert tags() == {target: f"halimede/{target}:0.1.0" for target in last}
    # the only image of somebody else
    assert re.findall(r"^FROM (\S+:\S+)", FILE.read_text(), re.MULTILINE) == ["python:3.11-slim-bookworm"]


@each
def test_an_image_has_what_its_extras_name_and_no_other_package(image: Stage) -> None:
    # filelock, of 50 KB, is in the layer that all share; only cameras do without
    assert image.packages - required(image.extras) <= {"filelock"}
    assert image.packages >= required(image.extras)


@each
def test_an_image_is_made_of_wheels_and_holds_neither_compiler_nor_pip(image: Stage) -> None:
    runs = image.lines("RUN")
    assert not re.search(r"apt-get|gcc|build-essential|--platform|amd64|x86", "\n".join(runs))
    installs = [run for run in runs if "pip install" in run.replace(PIP, "pip")]
    for run in installs:
        assert "--mount=type=bind,from=pip,source=/pip,target=/pip " in run
        assert ("--only-binary :all: -c /pip/constraints.txt " in run) != ("--no-index" in run)
    assert [run for run in installs if "--no-index" in run] == [run for run in runs if WHEEL in run] == installs[-1:]
    (removal,) = [run for run in runs if run.startswith("find / ")]
    assert all(f"-name {name}" in removal.replace("'", "") for name in ("pip", "setuptools*", "ensurepip", "wheel"))
    assert any("python -m venv --without-pip /venv" in run for run in runs)
    assert not image.lines("COPY"), "what is in it comes from wheels"


@each
def test_an_image_runs_as_nobody_and_tells_its_health(image: Stage) -> None:
    assert "useradd --uid 10001" in "\n".join(image.lines("RUN"))
    assert image.lines("USER") == ["10001:10001"]
    assert "HALIMEDE_HTTP" in image.lines("HEALTHCHECK")[-1]
    assert image.environment.keys() >= {"HALIMEDE_HTTP", "PYTHONDONTWRITEBYTECODE"}
    assert image.entrypoint[:3] == ["python", "-m", "halimede"]


def test_images_share_the_layers_of_their_packages() -> None:
    """What an edge node pulls for workers and cameras, and a cloud node for workers and servers, is pulled once."""
    assert {stage.base for stage in IMAGES.values()} <= {"common", "arrays", "video", "inference"}
    above = {"common": "base", "arrays": "common", "video": "arrays", "inference": "video"}
    assert {name: stages()[name].base for name in above} == above
    assert IMAGES["worker"].base == IMAGES["worker-reid"].base == IMAGES["node"].base == "inference"


def test_a_node_without_kubernetes_has_lc_worker_and_server() -> None:
    assert IMAGES["node"].extras == set().union(*(IMAGES[name].extras for name in ("lc", "worker", "serve")))


def test_no_credentials_and_no_builds_reach_the_daemon() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copies = [rest for stage in stages().values() for word, rest in stage.own if word == "COPY"]
    copied = {source for rest in copies for source in rest.split()[:-1]}
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)
