"""Where figures of measurements are kept, and how they are put into documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: each program writes its figures into a file here
FOLDER = ROOT / "build" / "bench"
#: the document with the tables of most programs
PERFORMANCE = ROOT / "docs" / "performance.md"


def write(path: Path, figures: Any) -> None:
    """Write figures as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(figures, indent=2) + "\n")


def filled(page: str, tables: str, begin: str, end: str) -> str:
    """Return a page with the tables between its marks."""
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"the page has no {begin} with {end} after it")
    return f"{head}{begin}\n{tables}\n{end}{tail}"


def insert(page: Path, tables: str, begin: str, end: str) -> None:
    """Put tables between the marks of a document."""
    page.write_text(filled(page.read_text(), tables, begin, end))
