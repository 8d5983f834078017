"""The Dockerfiles: linted by hadolint, and made the way their heads say. No daemon builds them here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = sorted(ROOT.glob("services/**/*Dockerfile"))
each = pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(ROOT)))


def hadolint() -> str:
    found = shutil.which("hadolint", path=f"{Path(sys.executable).parent}")
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("hadolint does not run on this machine")
    return found


def lint(text: str) -> str:
    return subprocess.run([hadolint(), "-"], input=text, capture_output=True, text=True, timeout=60, check=False).stdout


def final(file: Path) -> str:
    """Return the last stage: what is in the image."""
    return "FROM " + file.read_text().replace("\\\n", " ").split("\nFROM ")[-1]


@each
def test_the_linter_finds_nothing(file: Path) -> None:
    assert lint(file.read_text()) == ""


def test_the_linter_would_find_something() -> None:
    assert "DL3006" in lint("FROM debian\nRUN apt-get install foo\n")


@each
def test_an_image_holds_no_compiler_and_runs_as_nobody(file: Path) -> None:
    text, last = file.read_text(), final(file)
    assert text.count("\nFROM ") == 2, "one stage builds, the other is the image"
    assert "--only-binary :all:" in text
    assert not re.search(r"apt-get|gcc|build-essential", text)
    assert not re.search(r"\bpip\b", last.replace("/venv", "")), "what is installed comes from the first stage"
    assert "useradd --uid 10001" in last
    assert "\nUSER 10001:10001\n" in last
    assert "\nHEALTHCHECK " in last
    assert "PYTHONDONTWRITEBYTECODE=1" in last
    # the package that the first stage installs carries both
    assert re.search(r"^COPY .* LICENSE NOTICE ", text, re.MULTILINE)
    assert not re.search(r"--platform|amd64|x86", text), "one file for every architecture"


@each
def test_the_extras_that_it_installs_exist(file: Path) -> None:
    (extras,) = re.findall(r'"\.\[([a-z0-9,]+)\]"', file.read_text())
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= set(known)


def test_no_credentials_and_no_builds_reach_the_daemon() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        source
        for file in FILES
        for line in file.read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert copied == allowed
