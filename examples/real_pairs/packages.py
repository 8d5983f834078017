"""Packages of PyPI of which the demos of real pairs read files: installed on demand, apart from the environment.

Nothing of them is imported, so what these packages need themselves is not installed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from halimede.errors import HalimedeError

#: shared by all demos and benches of this repository
FOLDER = Path(__file__).parents[2] / "build" / "packages"
#: seconds of pip for a connection, and how often it tries again
CONNECT_S, RETRIES = 15, 2


@dataclass(frozen=True)
class Package:
    """A package in one version: the files that are read, what they are, and their licence."""

    name: str
    version: str
    files: tuple[str, ...]
    contents: str
    licence: str

    @property
    def pin(self) -> str:
        """What pip is given."""
        return f"{self.name}=={self.version}"

    @property
    def page(self) -> str:
        """Where a person reads about it."""
        return f"https://pypi.org/project/{self.name}/{self.version}/"


def missing(packages: Iterable[Package], folder: Path = FOLDER) -> list[Package]:
    """Return the packages that a folder does not have in these versions with all files."""
    versions = {installed.name.lower(): installed.version for installed in metadata.distributions(path=[str(folder)])}
    return [
        package
        for package in packages
        if versions.get(package.name) != package.version or not all((folder / file).is_file() for file in package.files)
    ]


def install(
    packages: Iterable[Package], folder: Path = FOLDER, report: Callable[[str], object] = lambda _: None
) -> None:
    """Install what is missing. Raises HalimedeError with the packages that cannot be had, and pip's reason."""
    absent = missing(packages, folder)
    if not absent:
        return
    pins = [package.pin for package in absent]
    report(f"installing {', '.join(pins)} into {folder}")
    options = ["--no-deps", "--upgrade", "--disable-pip-version-check", "--no-input", "--root-user-action=ignore"]
    options += ["--progress-bar", "off", "--timeout", str(CONNECT_S), "--retries", str(RETRIES)]
    command = [sys.executable, "-m", "pip", "install", "-q", *options, "--target", str(folder), *pins]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()
        cause = errors[-1].removeprefix("ERROR: ") if errors else f"pip ended with {done.returncode}"
        raise HalimedeError(f"{', '.join(pins)} cannot be installed from the package index: {cause}")
    if broken := missing(absent, folder):
        files = ", ".join(f"{package.pin} ({', '.join(package.files)})" for package in broken)
        raise HalimedeError(f"packages lack files that are read: {files}; remove {folder} and run this again")
