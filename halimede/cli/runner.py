"""Runs commands: the event loop, and the exit codes for errors, Ctrl-C and a closed pipe."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import typer

from halimede import programs
from halimede.cli import INTERRUPTED
from halimede.errors import HalimedeError

FAILED = 1


def run(command: Callable[[], Coroutine[Any, Any, int | None]]) -> None:
    """Run a command to its end; its return value is the exit code. Raises only typer.Exit."""
    code = _run(command)
    if code:
        raise typer.Exit(code)


def _run(command: Callable[[], Coroutine[Any, Any, int | None]]) -> int:
    from halimede.cli.output import fail  # here, because help texts need no tables

    _quiet()
    try:
        code = asyncio.run(command()) or 0
        sys.stdout.flush()
    except typer.BadParameter:
        raise
    except HalimedeError as error:
        for one_error in (error, *error.others):
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
            fail(programs.not_installed([package], ["cli"]))
            return FAILED
        fail(f"this is a bug in halimede: {type(error).__name__}: {error} (HALIMEDE_DEBUG=1 shows more)")
        return FAILED
    return code


def _quiet() -> None:
    """Keep log lines of the library out of a command's output, unless HALIMEDE_LOG_LEVEL is set."""
    from halimede import log

    log.configure("CRITICAL")
