"""Runs commands: the event loop, and the exit codes for errors, Ctrl-C and a closed pipe."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any

import typer

from halimede import programs
from halimede.cli import INTERRUPTED
from halimede.errors import HalimedeError

#: the exit code of a command that failed
FAILED = 1


def run(command: Callable[[], Coroutine[Any, Any, int | None]]) -> None:
    """Run a command to its end on a new event loop; its return value is the exit code, None: 0.

    Raises typer.Exit with an exit code other than 0, and typer.BadParameter. Errors are printed, and give exit code 1;
    Ctrl-C gives INTERRUPTED, a closed pipe 0. With HALIMEDE_DEBUG set, unexpected exceptions are raised.
    """
    code = _run(command)
    if code:
        raise typer.Exit(code)


def _run(command: Callable[[], Coroutine[Any, Any, int | None]]) -> int:
    """Run a command and return its exit code; errors are printed in one line each."""
    from halimede import log
    from halimede.cli.output import fail  # here, because help texts need no tables

    log.configure("CRITICAL")  # keep log lines out of a command's output, unless HALIMEDE_LOG_LEVEL is set
    try:
        code = asyncio.run(command()) or 0
        sys.stdout.flush()
    except typer.BadParameter:
        raise
    except HalimedeError as error:
        for one_error in (error, *error.further_errors):
            fail(str(one_error))
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # the reader (such as `head`) has closed the pipe; keep the interpreter from flushing into it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("HALIMEDE_DEBUG"):
            raise
        if package := programs.missing_package(error):
            fail(programs.missing_text([package], ["cli"]))
            return FAILED
        fail(f"this is a bug in halimede: {type(error).__name__}: {error} (HALIMEDE_DEBUG=1 shows more)")
        return FAILED
    return code


def needs_worker(module: str = "halimede.inference") -> None:
    """Check that a module, which needs a worker's packages, can be imported.

    Raises typer.BadParameter with the command that installs the packages.
    """
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        raise typer.BadParameter(f"{error.name} is not installed: pip install 'halimede[worker]'") from error
