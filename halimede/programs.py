"""The processes that ``halimede NAME`` runs, and where their code is: in the installed wheel, or in a checkout.

The applications are in packages of their own (``services``, and ``examples`` for the demo). A checkout has them next to
``halimede``. The wheel has them in ``halimede/_bundle``, so that other packages may have the same names. A process
makes the package that it runs importable for itself alone (``mount``). A package of the same name on PYTHONPATH or in
the working directory is ignored.
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

#: the folder of the package ``halimede``
HERE = Path(__file__).resolve().parent
#: the applications in an installed wheel
BUNDLE = HERE / "_bundle"
#: in a checkout, the folder with all packages; None where they are installed
CHECKOUT = None if BUNDLE.is_dir() else HERE.parent
#: exit code of a mistake that the user can correct
USER_ERROR = 2
#: extras (named sets of optional packages) that only collect the packages of other extras
COLLECTIONS = frozenset({"all", "dev"})
#: distributions by the name of their module, where the names differ
DISTRIBUTIONS = {"PIL": "pillow", "google": "protobuf", "grpc": "grpcio", "sklearn": "scikit-learn"}
#: packages of this installation: if one is missing, that is a bug
OWN_PACKAGES = frozenset({"halimede", "services", "examples"})
#: the umask of private processes: stores and logs hold data that other users must not read
PRIVATE_UMASK = 0o077


@dataclass(frozen=True, slots=True)
class Program:
    """A process that ``halimede NAME`` runs.

    Attributes:
        entry: its main function, as module:function; it takes the arguments and returns the exit code (None: 0).
        extras: the extras whose packages it needs.
        is_private: only its user can read the files that it makes.
        is_whole: it runs only with all packages of ``extras``, because it starts processes that need them.
        runs_user_code: it imports its user's modules, which may have the name of an application's package.

    """

    entry: str
    extras: tuple[str, ...]
    is_private: bool = False
    is_whole: bool = False
    runs_user_code: bool = False


#: by NAME
PROGRAMS = {
    "up": Program("services.main:main", ("gm", "lc", "worker"), is_private=True, is_whole=True),
    "demo": Program("examples.digits.demo:main", ("gm", "lc", "worker", "cli", "demo"), is_private=True, is_whole=True),
    "gm": Program("services.gm.main:main", ("gm",), is_private=True),
    "lc": Program("services.lc.main:main", ("lc",), is_private=True),
    "worker": Program("services.worker.app:main", ("worker",), runs_user_code=True),
    "camera": Program("services.worker.camera:main", ("camera",), is_whole=True),
    "serve": Program("halimede.serving.server:main", ("serve",)),
    "router": Program("halimede.serving.router.server:main", ("serve",)),
}


def command(name: str, *arguments: str) -> list[str]:
    """Return the command line that runs a program of this installation, whatever the working directory contains."""
    return [sys.executable, "-P", "-m", "halimede", name, *arguments]


def child_variables() -> dict[str, str]:
    """Return the environment variables by which a child process imports this checkout; none for an installed wheel."""
    if CHECKOUT is None:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))}


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a program to its end; return its exit code. If its files are private, the umask becomes ``PRIVATE_UMASK``.

    If a package is missing, a line on standard error says what to install, and the exit code is 2.
    """
    program = PROGRAMS[name]
    if program.is_private:
        os.umask(PRIVATE_UMASK)
    missing = _missing_distributions(program.extras) if program.is_whole else []
    try:
        if not missing:
            return _load_entry(program)(arguments) or 0
    except (ModuleNotFoundError, BaseExceptionGroup) as error:
        missing = [missing_package(error)]
        if not missing[0]:
            raise
    sys.stderr.write(f"halimede {name}: {missing_text(missing, program.extras)}\n")
    return USER_ERROR


def missing_package(error: BaseException) -> str:
    """Return the package whose import failed, by an error or the first error of a group; empty for other errors.

    Empty also for packages of halimede itself.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return "" if package in OWN_PACKAGES else package


def missing_text(packages: Sequence[str], extras: Sequence[str]) -> str:
    """Return the message that packages are missing, with the command that installs them.

    ``packages``: names of modules or distributions. The command installs ``extras``, and a further extra for each
    package that is in none of them.
    """
    to_install = [*extras]
    for package in packages:
        name = _normalize(DISTRIBUTIONS.get(package, package))
        owners = [extra for distribution, extra in _required_distributions() if _normalize(distribution) == name]
        if owners and not set(owners) & set(to_install):
            to_install.append("worker" if "worker" in owners else owners[0])
    return f"not installed: {', '.join(packages)}: pip install 'halimede[{','.join(to_install)}]'"


def _load_entry(program: Program) -> Callable[[Sequence[str]], int | None]:
    """Return the main function of a program.

    For a program with user code, the application's package is then removed from ``sys.modules``, so that the user's
    package of that name can be imported.
    """
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


def _missing_distributions(extras: Sequence[str]) -> list[str]:
    """Return the distributions of some extras that are missing here; none where halimede itself is not installed."""
    names = sorted({name for name, extra in _required_distributions() if extra in extras})
    return [name for name in names if not _is_installed(name)]


def _required_distributions() -> list[tuple[str, str]]:
    """Return the required distributions, each with an extra that has it; none where halimede is not installed."""
    from importlib import metadata  # noqa: PLC0415  # a twentieth of a command's start, for messages alone

    try:
        requirements = metadata.requires("halimede") or []
    except metadata.PackageNotFoundError:
        return []
    pattern = re.compile(r"""([A-Za-z0-9._-]+).*extra == ["']([a-z0-9-]+)["']""")
    matches = filter(None, map(pattern.match, requirements))
    return [(match[1], match[2]) for match in matches if match[2] not in COLLECTIONS]


def _normalize(name: str) -> str:
    """Return a distribution's name in the form by which names are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_installed(distribution: str) -> bool:
    """Whether a distribution is installed here, in any version."""
    from importlib import metadata  # noqa: PLC0415  # slow, and for messages alone

    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
