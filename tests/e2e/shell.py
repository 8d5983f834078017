"""Lines of a document, and commands of ``halimede``, as a user of a system types them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

from tests import typed
from tests.waiting import patience

ROOT = Path(__file__).parents[2]


def blocks(document: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


def environment(home: Path | str, **variables: str) -> dict[str, str]:
    """Return the variables of a user whose commands reach the system with this home."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    none = dict.fromkeys(("HALIMEDE_BROKER", "HALIMEDE_CREDENTIALS"), "")
    return {**os.environ, **none, "PATH": path, "HALIMEDE_HOME": str(home), "COLUMNS": "200", **variables}


async def begin(line: str, variables: dict[str, str], folder: Path = ROOT) -> asyncio.subprocess.Process:
    """Type a line, and do not wait for its end."""
    return await asyncio.create_subprocess_exec(
        "bash", "-c", line, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


async def end_of(line: str, process: asyncio.subprocess.Process) -> str:
    """Wait until a typed line has succeeded; return what it shows."""
    try:
        async with asyncio.timeout(patience(120)):
            output, _ = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == 0, f"{line}\n{output.decode()}"
    return output.decode()


async def type_line(line: str, variables: dict[str, str], folder: Path = ROOT) -> str:
    """Type a line that succeeds; return what it shows."""
    return await end_of(line, await begin(line, variables, folder))


async def halimede(home: Path, *arguments: str | Path, code: int = 0) -> str:
    """Type a command that ends with this exit code; return what it shows."""
    done = await asyncio.to_thread(typed.halimede, *arguments, env=environment(home))
    assert done.returncode == code, f"{arguments}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr
