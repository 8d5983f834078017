"""The processes that ``halimede NAME`` runs, and where their packages are: in the wheel, or beside it in a checkout.

The applications are in packages of their own (``services``, and ``examples`` for the demo). The wheel carries them in
``halimede/_bundle``, so that they never stand among other packages under these names. A process makes the package that
it runs importable for itself alone; whatever else has its name, on PYTHONPATH or in the working directory, is not
taken.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: the applications in an installed wheel
BUNDLE = HERE / "_bundle"
#: in a checkout, the folder with all packages; None where they are installed
CHECKOUT = None if BUNDLE.is_dir() else HERE.parent
#: exit code of a mistake that the user can correct
USER_ERROR = 2
#: extras that have the packages of others
COLLECTIONS = frozenset({"all", "dev"})
#: distributions whose modules have another name
DISTRIBUTIONS = {"PIL": "pillow", "google": "protobuf", "grpc": "grpcio", "sklearn": "scikit-learn"}
#: packages of this installation: one that is missing is a bug
OWN = frozenset({"halimede", "services", "examples"})
#: file permissions that processes take from new files: stores and logs hold data that other users must not read
PRIVATE = 0o077


@dataclass(frozen=True, slots=True)
class Program:
    """One process.

    Attributes:
        entry: its main function, as module:function: arguments in, exit code out (None: 0).
        extras: those whose packages it needs.
        private: whether its files are only for its user.
        whole: whether it starts processes that need the packages, too: so all are checked before.
        runs_user_code: whether it imports its user's modules, one of which may have the name of a package of ours.

    """

    entry: str
    extras: tuple[str, ...]
    private: bool = False
    whole: bool = False
    runs_user_code: bool = False


PROGRAMS = {
    "up": Program("services.main:main", ("gm", "lc", "worker"), private=True, whole=True),
    "demo": Program("examples.digits.demo:main", ("gm", "lc", "worker", "cli", "demo"), private=True, whole=True),
    "gm": Program("services.gm.main:main", ("gm",), private=True),
    "lc": Program("services.lc.main:main", ("lc",), private=True),
    "worker": Program("services.worker.app:main", ("worker",), runs_user_code=True),
    "camera": Program("services.worker.camera:main", ("camera",), whole=True),
    "serve": Program("halimede.serving.server:main", ("serve",)),
    "router": Program("halimede.serving.router.server:main", ("serve",)),
}


def command(name: str, *arguments: str) -> list[str]:
    """Return the command line that runs a program of this installation, whatever the working directory contains."""
    return [sys.executable, "-P", "-m", "halimede", name, *arguments]


def inherited() -> dict[str, str]:
    """Return the variables by which a child process runs this installation, where that is a checkout."""
    if CHECKOUT is None:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))}


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a program to its end; return its exit code. A package that is missing is one line and exit code 2."""
    program = PROGRAMS[name]
    if program.private:
        os.umask(PRIVATE)
    missing = _not_installed(program.extras) if program.whole else []
    try:
        if not missing:
            return _entry(program)(arguments) or 0
    except (ModuleNotFoundError, BaseExceptionGroup) as error:
        missing = [missing_package(error)]
        if not missing[0]:
            raise
    sys.stderr.write(f"halimede {name}: {not_installed(missing, program.extras)}\n")
    return USER_ERROR


def missing_package(error: BaseException) -> str:
    """Return the package of others that an error, or the first one of a group, has not found; else empty text."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return "" if package in OWN else package


def not_installed(packages: Sequence[str], extras: Sequence[str]) -> str:
    """Return the message that packages are missing: with ``extras``, and the first one that has a package else."""
    wanted = [*extras]
    for package in packages:
        name = _normal(DISTRIBUTIONS.get(package, package))
        having = [extra for each, extra in _required() if _normal(each) == name]
        if having and not set(having) & set(wanted):
            wanted.append("worker" if "worker" in having else having[0])
    return f"not installed: {', '.join(packages)}: pip install 'halimede[{','.join(wanted)}]'"


def _entry(program: Program) -> Callable[[Sequence[str]], int | None]:
    module, _, function = program.entry.partition(":")
    package = module.partition(".")[0]
    before = set(sys.modules)
    if package not in before:
        mount(package)
    entry: Callable[[Sequence[str]], int | None] = getattr(import_module(module), function)
    if program.runs_user_code:
        for loaded in [name for name in sys.modules.keys() - before if name.partition(".")[0] == package]:
            del sys.modules[loaded]
    return entry


def mount(package: str) -> None:
    """Import an application of this installation under its name, whatever else has that name."""
    folder = (CHECKOUT or BUNDLE) / package
    spec: Any = importlib.util.spec_from_file_location(package, folder / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[package] = module
    spec.loader.exec_module(module)


def _not_installed(extras: Sequence[str]) -> list[str]:
    """Return the distributions of some extras that are missing here; none where halimede itself is not installed."""
    names = sorted({name for name, extra in _required() if extra in extras})
    return [name for name in names if not _has(name)]


def _required() -> list[tuple[str, str]]:
    """Return the required distributions, each with an extra that has it; none where halimede is not installed."""
    from importlib import metadata  # noqa: PLC0415  # a twentieth of a command's start, for messages alone

    try:
        lines = metadata.requires("halimede") or []
    except metadata.PackageNotFoundError:
        return []
    found = (re.match(r"""([A-Za-z0-9._-]+).*extra == ["']([a-z0-9-]+)["']""", line) for line in lines)
    return [(each[1], each[2]) for each in found if each and each[2] not in COLLECTIONS]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _has(distribution: str) -> bool:
    from importlib import metadata  # noqa: PLC0415  # as above

    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
