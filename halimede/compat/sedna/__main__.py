"""Runs an untouched Sedna script: ``python -m halimede.compat.sedna script.py [args]``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from halimede.compat.sedna import import_hook
from halimede.errors import HalimedeError

USAGE = "usage: python -m halimede.compat.sedna SCRIPT [ARGUMENT...]"
#: exit code of a user's mistake, as that of a worker
MISTAKE = 2


def main(arguments: list[str]) -> int:
    """Run the script as Python would, with ``sedna`` at hand; return the exit code of a mistake, or 0."""
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(f"{USAGE}\n\n{__doc__}", file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else MISTAKE
    script = Path(arguments[0])
    if not script.is_file():
        print(f"halimede.compat.sedna: {script} is no file: name the script", file=sys.stderr)
        return MISTAKE
    sys.argv = arguments
    sys.path[0] = str(script.resolve().parent)
    import_hook.install()
    try:
        runpy.run_path(str(script), run_name="__main__")
    except HalimedeError as error:
        print(f"{script.name}: {error}", file=sys.stderr)
        return MISTAKE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
