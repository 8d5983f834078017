"""What the commands of demos share: options of the security, the report with its page and table, the exit code."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from halimede import programs
from halimede.errors import HalimedeError, InvalidFieldError


def add_security(parser: argparse.ArgumentParser) -> None:
    """Add the options for the connections of a demo's system."""
    security = parser.add_mutually_exclusive_group()
    security.add_argument("--tls", action="store_true", help="with certificates on every connection, not passwords")
    security.add_argument("--insecure", action="store_true", help="without passwords and access rules")


def security(options: argparse.Namespace) -> list[str]:
    """Return the given ones of these options, for `halimede up`."""
    return [f"--{name}" for name in ("tls", "insecure") if getattr(options, name)]


def make_folder(option: str, folder: Path) -> None:
    """Make the folder that a user has given. Raises InvalidFieldError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidFieldError(option, str(folder), f"{error.strerror}: give a folder that can be written") from error


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


async def output_of(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run the command ``halimede`` as a user does, and return what it prints. Raises HalimedeError."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *programs.command(*arguments), env={**os.environ, **(environment or {})}, stdout=pipe, stderr=pipe
    )
    try:
        printed, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    if process.returncode:
        raise HalimedeError(f"halimede {' '.join(arguments)} failed: {errors.decode().strip()[-500:]}")
    return printed.decode()


@contextlib.contextmanager
def errors_in_a_line() -> Iterator[None]:
    """Exit with one line if a demo fails, or is interrupted: by SIGTERM as by Ctrl-C, so that it ends its processes."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except HalimedeError as error:
        sys.exit(f"demo failed: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)


def end(missed: Sequence[str]) -> None:
    """Exit with 1 and one line if a demo has broken promises."""
    if missed:
        sys.exit(f"demo failed: {'; '.join(missed)}")
