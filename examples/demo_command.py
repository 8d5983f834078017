"""The end of each demo: report.json, report.html and a table of its figures; then the exit code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from halimede.errors import HalimedeError


def write_report(
    out: Path, found: dict[str, Any], page: str, rows: Iterable[tuple[str, str]], *, title: str, console: Console
) -> None:
    """Write what a run has found as JSON and as a page into a folder, and print it as a table."""
    (out / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2))
    (out / "report.html").write_text(page)
    lines = Table("figure", "value", title=title)
    for name, value in rows:
        lines.add_row(name, value)
    console.print(lines)
    console.print(f"[bold]{out / 'report.html'}[/] and {out / 'report.json'}")


@contextlib.contextmanager
def errors_in_a_line() -> Iterator[None]:
    """Exit with one line if a demo fails, or is interrupted."""
    try:
        yield
    except HalimedeError as error:
        sys.exit(f"demo failed: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
