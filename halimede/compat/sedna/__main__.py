"""Runs an untouched Sedna script: ``python -m halimede.compat.sedna script.py [args]``."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from halimede.errors import HalimedeError

USAGE = "usage: python -m halimede.compat.sedna SCRIPT [ARGUMENT...]"
#: exit code of a user's mistake, as of a worker
MISTAKE = 2
#: the package's name in scripts, and here (constants, because ``__name__`` differs in the main module)
THEIRS, OURS = "sedna", "halimede.compat.sedna"


def main(arguments: list[str]) -> int:
    """Run the script with its arguments as Python would, with ``sedna`` importable; return the exit code.

    Raises SystemExit and other exceptions of the script, but for HalimedeError, which is printed in one line.
    """
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(f"{USAGE}\n\n{__doc__}", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else MISTAKE
    script = Path(arguments[0])
    if not script.is_file():
        print(f"halimede.compat.sedna: {script} is no file: name the script", file=sys.stderr)
        return MISTAKE
    sys.argv = arguments
    sys.path[0] = str(script.resolve().parent)
    install()
    try:
        runpy.run_path(str(script), run_name="__main__")
    except HalimedeError as error:
        print(f"{script.name}: {error}", file=sys.stderr)
        return MISTAKE
    return 0


class ImportFinder(MetaPathFinder):
    """Finds Sedna's modules here: a ``MetaPathFinder``.

    It searches missing ones nowhere else: two versions would conflict.
    """

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec of a module of Sedna, None for other modules.

        Raises ModuleNotFoundError for a missing one.
        """
        if fullname.partition(".")[0] != THEIRS:
            return None
        ours = OURS + fullname.removeprefix(THEIRS)
        if importlib.util.find_spec(ours) is None:
            text = f"halimede has no {fullname}: what there is of Sedna's is listed in docs/sedna.md"
            raise ModuleNotFoundError(text, name=fullname)
        return ModuleSpec(fullname, _Same(ours), is_package=True)


class _Same(Loader):
    """A ``Loader`` of a module of halimede under its Sedna name: it is the same module, with the same registrations."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002
        """Return the module of halimede, imported if necessary."""
        module = importlib.import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec, which the import has replaced, so that it keeps its name."""
        module.__spec__ = self._spec


def install() -> None:
    """Let ``sedna`` be found here from now on, before any other package of that name."""
    if not any(isinstance(finder, ImportFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, ImportFinder())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
