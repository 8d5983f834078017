"""Counts in a child process: with low priority, little memory, and a life bound to its parent.

LC counts with ``count_in_child``. The child prints one JSON object per line: its progress, and at the end the counts or
the error.
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

from halimede.datasets.count_report import CountReport, Progress
from halimede.datasets.counting import Counted
from halimede.datasets.registry import UNREADABLE, DatasetError
from halimede.system.child_process import last_line

#: most bytes of one line
MAX_LINE_BYTES = 4 * 1024 * 1024
#: seconds without progress after which a count has failed, and seconds that a killed process has to end: a disk or a
#: network mount that does not answer may hold it for ever
STALL_TIMEOUT_S, KILL_TIMEOUT_S = 300.0, 5.0


@dataclass(frozen=True, slots=True)
class CountJob:
    """The dataset to count.

    Attributes:
        path: its file or folder.
        format: the format's name, in any spelling.
        ledger: the file with the counts of the last run; None: count all.
        root: a folder that no link may lead out of; None: links may lead anywhere.
        listing: the file for the list of the dataset's files, if other nodes copy them.

    """

    path: Path
    format: str
    ledger: Path | None = None
    root: Path | None = None
    listing: Path | None = None


async def count_in_child(job: CountJob, on_progress: Callable[[Progress], None]) -> Counted:
    """Return the counts of a dataset, counted in a child process, which ends with the call.

    Raises DatasetError, also after ``STALL_TIMEOUT_S`` without progress, and OSError if no process can be started.
    """
    arguments = ["-m", "halimede.datasets", "--parent", str(os.getpid()), "--format", job.format]
    arguments += ["--ledger", str(job.ledger)] if job.ledger else []
    arguments += ["--root", str(job.root)] if job.root else []
    arguments += ["--listing", str(job.listing)] if job.listing else []
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        "--",
        str(job.path),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=MAX_LINE_BYTES,
        process_group=0,
    )
    assert process.stdout is not None  # noqa: S101
    assert process.stderr is not None  # noqa: S101
    errors = asyncio.create_task(last_line(process.stderr))
    try:
        report = CountReport(reason=UNREADABLE, message="the count process ended without a result")
        async with asyncio.timeout(STALL_TIMEOUT_S) as deadline:
            async for line in process.stdout:
                deadline.reschedule(asyncio.get_running_loop().time() + STALL_TIMEOUT_S)
                report = msgspec.json.decode(line, type=CountReport)
                if report.progress is not None:
                    on_progress(report.progress)
            code = await process.wait()
        if report.facts is None and not report.reason:
            error = await errors
            text = f"the count process failed ({f'exit code {code}' if code >= 0 else f'signal {-code}'})"
            raise DatasetError(UNREADABLE, f"{text}: {error}" if error else text)
    except TimeoutError:
        text = f"{job.path}: no progress for {STALL_TIMEOUT_S:g} s: check the disk or network mount that it is on"
        raise DatasetError(UNREADABLE, text) from None
    except (ValueError, msgspec.DecodeError):
        raise DatasetError(UNREADABLE, "the result of the count process is not readable") from None
    finally:
        errors.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_TIMEOUT_S):
                await process.wait()
    if report.facts is None:
        raise DatasetError(report.reason, report.message)
    return Counted(report.facts, report.watch, report.whole, report.repeated)
