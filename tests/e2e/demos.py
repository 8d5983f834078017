"""The demos as their users run them: each ends with a report, and with a page that shows it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.running import ROOT
from tests.html_page import HtmlPage
from tests.waiting import output_of


@dataclass(frozen=True)
class Demo:
    """A demo that has ended: its exit code, what it has printed, and its files."""

    code: int | None
    output: str
    report: dict[str, Any]
    page: HtmlPage


async def run_demo(
    folder: Path, table: Callable[[Any], list[tuple[str, str]]], *command: str, silence_s: float = 120.0
) -> Demo:
    """Run a demo. Its page is well formed, loads nothing, and has the rows that ``table`` makes of the report."""
    # in a session of its own, as in a terminal of its own: trainers run when no other process of their session does
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *command,
        "--out",
        folder,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    output = await output_of(process, silence_s)
    assert (folder / "report.json").exists(), output
    report = json.loads((folder / "report.json").read_text())
    page = HtmlPage((folder / "report.html").read_text())
    assert (page.mistakes, page.external) == ([], [])
    assert all(list(row) in page.rows for row in table(report))
    return Demo(process.returncode, output, report, page)
