"""Counting in a process of its own: slow on purpose, small, and gone with who started it.

One JSON object a line comes back: how far it is, and in the end what was counted or why not.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from halimede.datasets.counting import Counted, Print
from halimede.datasets.registry import UNREADABLE, DatasetError
from halimede.messages import DatasetFacts

#: bytes of one line, and of what is kept of its standard error
MAX_LINE, MAX_ERRORS = 4 * 1024 * 1024, 4096


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a count is. ``total`` bytes are only known of a single file."""

    files: int = 0
    done: int = 0
    total: int = 0
    samples: int = 0


class CountReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line: progress, or the end of it."""

    progress: Progress | None = None
    facts: DatasetFacts | None = None
    watch: dict[str, Print] = {}
    whole: bool = True
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class CountJob:
    """What is to be counted, and where what was counted is kept."""

    path: Path
    format: str
    ledger: Path | None = None


async def count_in_child(job: CountJob, told: Callable[[Progress], None]) -> Counted:
    """Count in a child process. Raises DatasetError. Cancelled, it ends the child."""
    arguments = ["-m", "halimede.datasets", "--parent", str(os.getpid()), "--format", job.format]
    arguments += ["--ledger", str(job.ledger)] if job.ledger else []
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        "--",
        str(job.path),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=MAX_LINE,
        start_new_session=True,
    )
    assert process.stdout is not None  # noqa: S101
    assert process.stderr is not None  # noqa: S101
    errors = asyncio.create_task(_last(process.stderr))
    try:
        said = CountReport(reason=UNREADABLE, message="the count ended without a word")
        async for line in process.stdout:
            said = msgspec.json.decode(line, type=CountReport)
            if said.progress is not None:
                told(said.progress)
        code = await process.wait()
        if said.facts is None and not said.reason:
            last = await errors
            text = f"the count broke ({f'exit code {code}' if code >= 0 else f'signal {-code}'})"
            raise DatasetError(UNREADABLE, f"{text}: {last}" if last else text)
    except (ValueError, msgspec.DecodeError):
        raise DatasetError(UNREADABLE, "the count said what cannot be read") from None
    finally:
        errors.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if said.facts is None:
        raise DatasetError(said.reason, said.message)
    return Counted(said.facts, said.watch, said.whole)


async def _last(stream: asyncio.StreamReader) -> str:
    """Read a stream to its end; return its last line."""
    kept = b""
    while data := await stream.read(MAX_ERRORS):
        kept = (kept + data)[-MAX_ERRORS:]
    return kept.decode("utf-8", "replace").strip().rpartition("\n")[2]
