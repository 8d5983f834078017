"""The command ``halimede``: all actions of an operator, over the bus only; and the start of a system's programs."""

from __future__ import annotations

import sys

from halimede import programs
from halimede.system.runtime import own_process

#: the exit code after Ctrl-C
INTERRUPTED = 130


def main() -> None:
    """Run the command line and end the process with its exit code; print what to install if packages are missing."""
    own_process()
    try:
        # a program has its own command line: it needs none of the command's packages
        if sys.argv[1:] and sys.argv[1] in programs.PROGRAMS:
            sys.exit(programs.run(sys.argv[1], sys.argv[2:]))
        from halimede.cli.app import start  # they may be missing

        code = start()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        package = programs.missing_package(error)
        if not package:
            raise
        sys.stderr.write(f"halimede: {programs.missing_text([package], ['cli'])}\n")
        code = programs.USER_ERROR
    sys.exit(code)
