"""The README's two terminals, typed in as they stand there; and every `make` word of the documentation is a target."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.e2e.running import ROOT, System, digits, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

FOLLOWING = ("halimede results -f", "mosquitto_sub")
#: where a system keeps its files when nobody says otherwise, below the user's home
HOME = ".local/state/halimede"


def commands(document: str) -> list[str]:
    """Return the lines of all fenced blocks of the language ``sh``, without comments."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)
    blocks = [text for language, text in blocks if language == "sh"]
    lines = [re.split(r"\s+# ", line)[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def environment(system: System) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    user = str(system.home).removesuffix(f"/{HOME}")
    return {**os.environ, "PATH": path, "HOME": user, "HALIMEDE_HOME": "", "HALIMEDE_BROKER": "", "COLUMNS": "160"}


async def typed(system: System, line: str) -> tuple[asyncio.subprocess.Process, list[str]]:
    """Type a line, behind what was exported before it."""
    exports = [each for each in commands("README.md") if each.startswith("export ")]
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        "\n".join([*exports, f"exec {line}"]),
        cwd=ROOT,
        env=environment(system),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    return process, shlex.split(line)


def test_every_make_word_of_the_documentation_is_a_target() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    documents = ["README.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
    text = "\n".join((ROOT / d).read_text() for d in documents)
    assert set(re.findall(r"`?\bmake ([a-z-]+)", "\n".join(re.findall(r"`(make [^`]*)`", text)))) <= targets
    assert {line.split()[1] for d in documents for line in commands(d) if line.startswith("make ")} <= targets


def test_every_file_that_the_documentation_links_to_is_there() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


async def test_the_two_terminals_of_the_readme(tmp_path: Path) -> None:
    lines = [line.removesuffix(" &") for line in commands("README.md") if line.startswith(("halimede", "mosquitto_"))]
    # those are typed in by tests/kubernetes/test_deploy_documentation.py
    lines = [line for line in lines if not line.startswith("halimede certs")]
    assert len(lines) >= 8
    digits()
    (tmp_path / HOME).parent.mkdir(parents=True)
    async with running(tmp_path / HOME) as system:
        await system.follow("digits")
        followers = [await typed(system, line) for line in lines if line.startswith(FOLLOWING)]
        outputs: dict[str, str] = {}
        for line in (line for line in lines if not line.startswith(FOLLOWING)):
            if "publish" in line:
                await system.until("Running", lambda: system.phase == "Running")
            if line.startswith("halimede delete"):  # the last line of its block; the broker's tools come after it
                continue
            process, _ = await typed(system, line)
            output, _ = await asyncio.wait_for(process.communicate(), 60)
            outputs[line] = output.decode()
            assert process.returncode == 0, outputs[line]
        await system.until("answers", lambda: len(system.results) >= 101)
        delete, _ = await typed(system, next(line for line in lines if line.startswith("halimede delete")))
        output, _ = await asyncio.wait_for(delete.communicate(), 60)
        assert delete.returncode == 0, output.decode()
        await system.until("status cleared", lambda: system.status is None)
        for process, words in followers:
            process.terminate()
            output, _ = await asyncio.wait_for(process.communicate(), 20)
            seen = output.decode()
            if words[0] == "halimede":
                assert len(seen.splitlines()) >= 101, seen
            else:
                assert '"phase":"Running"' in seen.replace(" ", "")
                assert "default/sedna/status/jointinferenceservices/digits" in seen.split("\n")[-2], seen[-500:]
