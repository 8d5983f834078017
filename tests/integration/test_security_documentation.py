"""docs/security.md and docs/emqx.md, typed in: their commands work, and the files that they name are there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.typed import halimede
from tests.waiting import patience

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TEXT = "".join((ROOT / "docs" / name).read_text() for name in ("security.md", "emqx.md"))
BLOCKS = re.findall(r"^```(?:sh|text)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    return [line for block in BLOCKS for line in block.splitlines() if line.startswith("halimede ")]


def test_its_commands_work_in_the_order_in_which_they_stand(tmp_path: Path) -> None:
    said = {}
    for line in commands():
        done = halimede(*shlex.split(line)[1:], cwd=tmp_path)
        said[line] = done.stdout
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    assert {line.split()[2] for line in said} == {"init", "show", "add", "remove", "rotate", "acl"}
    assert "made     lc.edge7, edge-worker.edge7, cloud-worker.edge7" in said["halimede certs add --node edge7 site/"]
    assert "the old authority is removed" in said["halimede certs rotate --finish site/"]
    copied = {word for block in BLOCKS for word in block.split() if word.startswith("site-emqx") and "." in word}
    assert len(copied) == 8
    assert [path for path in copied if not (tmp_path / path).is_file()] == []


def test_the_files_that_it_names_are_there(tmp_path: Path) -> None:
    line = commands()[0].replace("halimede", f"{sys.executable} -c 'from halimede.cli import main; main()'", 1)
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True, timeout=patience(60), capture_output=True)
    named = [line.split("  ")[0] for block in BLOCKS for line in block.splitlines() if line.startswith("site/")]
    assert len(named) == 9
    for names in named:
        first, *more = names.split(", ")
        for path in [first, *(str(Path(first).parent / name) for name in more)]:
            assert (tmp_path / path).exists(), path
