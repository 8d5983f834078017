"""Writes the pages of docs/reference and the reasons in docs/troubleshooting.md, or checks that the code says the same.

python -m scripts.reference --write    write them
python -m scripts.reference --check    exit 1, showing the differences, when a page is not up to date

Kinds and their fields come from ``halimede.api``, commands from ``halimede.cli``, metrics from the calls that export
them, variables from the calls that read them, checks from ``halimede.health_checks``, alerts from
``scripts.monitoring``. What a variable or a reason means is in ``variables.toml`` and ``reasons.toml``; a name of the
code that is missing there is an error, and so is one that the code does not have.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from halimede.contract.render import check_files, write_files
from scripts.reference import alerts, checks, commands, conditions, metrics, resources, variables
from scripts.reference.markdown import IncompleteError

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "docs/reference"


def pages() -> dict[str, str]:
    """Return all pages: paths relative to the repository, with their content."""
    sources = (resources, commands, metrics, variables, checks, alerts)
    made = {f"{FOLDER}/{name}.md": text for source in sources for name, text in source.pages().items()}
    return made | conditions.pages()


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write or check; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.reference", description="Generate docs/reference.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the pages")
    what.add_argument("--check", action="store_true", help="exit 1 when a page is not up to date")
    options = parser.parse_args(arguments)
    try:
        made = pages()
    except IncompleteError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    stale = sorted({f"{FOLDER}/{path.name}" for path in (root / FOLDER).glob("*.md")} - set(made))
    if options.check:
        return check_files(made, stale, root)
    write_files(made, stale, root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
