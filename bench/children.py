"""A process of a benchmark that is told and asked through pipes, and ends with its standard input."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping

from bench.results import ROOT

#: seconds that it has to end
END = 20.0


@contextlib.asynccontextmanager
async def child(module: str, *arguments: str, env: Mapping[str, str] | None = None) -> AsyncIterator[Process]:
    """Run ``python -m module`` within the block, with ``env`` added to the environment."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, cwd=ROOT, env={**os.environ, **(env or {})},
        stdin=PIPE, stdout=PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        assert process.stdin is not None  # for the type checker
        process.stdin.close()
        try:
            async with asyncio.timeout(END):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
