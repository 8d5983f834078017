"""The command ``halimede``: all of a user's actions, over the bus only."""

from __future__ import annotations

import sys

from halimede.system.runtime import own_process

INTERRUPTED = 130


def main() -> None:
    """Run the command; if its packages are missing, print what to install."""
    own_process()
    try:
        from halimede.cli.app import start  # they may be missing
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "halimede":
            raise
        sys.exit(f"halimede: the package {error.name} is missing: pip install 'halimede[cli]'")
    sys.exit(start())
