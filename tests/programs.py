"""Programs that tests run: to their end, for what they print and how they end; or beside a block."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.waiting import patience


def run_program(
    *command: str | Path, timeout_s: float = 60, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program; ``options`` are those of ``subprocess.run``."""
    return subprocess.run(command, capture_output=True, text=True, timeout=patience(timeout_s), check=check, **options)


def run_python(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return run_program(sys.executable, *arguments, **options)


@contextlib.contextmanager
def started(*command: str | Path, log: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the block ends, and what it prints goes to a file; ``options`` are those of ``Popen``."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
