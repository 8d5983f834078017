"""Checks that every package of the images has a wheel for each of their architectures: ``make check-wheels``.

pip resolves what the Dockerfile installs, with the versions of ``constraints.txt``, for the Python and the C library of
the base image. It reads the package index and installs nothing. A finding is an error with pip's words.

pip evaluates markers such as ``platform_machine`` for the machine that runs it: a package that only one architecture
needs is then looked for on all of them, or on none.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
#: of the base image: python:3.11-slim-bookworm
PYTHON, GLIBC = "3.11", 36
#: seconds for one architecture
TIMEOUT = 1200


def requirements() -> list[str]:
    """Return what all images install: the packages of their extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = re.findall(r"\*\.whl\)\[([a-z0-9,]+)\]", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    lines = set(project["dependencies"])
    for extra in {extra for extras in found for extra in extras.split(",")}:
        lines |= set(project["optional-dependencies"][extra])
    return sorted(lines)


def command(machine: str, report: Path) -> list[str]:
    """Return the command of pip that resolves for a machine such as ``aarch64``."""
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 16, -1)] + [f"manylinux2014_{machine}"]
    platforms = [word for tag in tags for word in ("--platform", tag)]
    target = ["--target", str(report.parent / machine), "--python-version", PYTHON, "--only-binary", ":all:"]
    said = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report)]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    return [sys.executable, "-m", "pip", "install", *said, *target, *platforms, *constraints, *requirements()]


def wheels(machine: str) -> Mapping[str, str]:
    """Return the file name of each package's wheel. Raises SystemExit with pip's words if one has none."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        done = subprocess.run(command(machine, report), capture_output=True, text=True, timeout=TIMEOUT, check=False)
        if done.returncode:
            raise SystemExit(f"Error: no wheels for {machine}:\n{done.stderr}")
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {each["metadata"]["name"]: each["download_info"]["url"].rpartition("/")[2] for each in found}


def main() -> None:
    """Check all architectures, and print how many packages each has."""
    every = {platform: wheels(machine) for platform, machine in MACHINES.items()}
    first, *others = every.values()
    for other in others:
        if different := set(first) ^ set(other):
            raise SystemExit(f"Error: not on every architecture: {', '.join(sorted(different))}")
    own = sum(not name.endswith("-none-any.whl") for name in first.values())
    print(f"{len(first)} packages, {own} of them compiled, have wheels for {' and '.join(every)}")


if __name__ == "__main__":
    main()
