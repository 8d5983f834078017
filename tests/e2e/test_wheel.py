"""A stranger's first hour with the wheel: the commands of docs/install.md in a clean environment and an empty folder.

Nothing of this checkout is in reach but its wheel; the packages come from where pip finds them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import ROOT
from tests.e2e.test_documentation import commands
from tests.ports import free_port
from tests.programs import run_program, started
from tests.waiting import patience, wait_for
from tests.wheels import build

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: seconds from the command to the first answer of both models
FIRST = 60.0
START = 60.0


class Stranger:
    """A user with a new virtual environment, an empty folder, and nothing in the environment."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.venv, self.checkout = folder / "empty", folder / "venv", folder / "checkout"
        self.folder.mkdir()
        subprocess.run([sys.executable, "-m", "venv", self.venv], check=True, timeout=patience(120))
        kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        path = f"{self.venv}/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        self.environment = {**kept, "PATH": path, "HOME": str(self.folder), "COLUMNS": "160", "PIP_NO_COMPILE": "1"}

    def types(self, line: str, folder: Path | None = None, seconds: float = 600) -> str:
        """Type a line; return what it shows."""
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder or self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=patience(seconds), check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.stdout}"
        return done.stdout

    @property
    def program(self) -> Path:
        return self.venv / "bin" / "halimede"

    @contextlib.contextmanager
    def system(self, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run `halimede up` within the block, which begins when the system is up, or has ended before."""
        options: dict[str, Any] = {"cwd": self.folder, "env": self.environment, "start_new_session": True}
        with started(self.program, "up", "--port", str(free_port()), log=log, **options) as up:
            wait_for(lambda: "halimede is up" in log.read_text() or up.poll() is not None, START)
            yield up


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return commands("docs/install.md")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> Stranger:
    """Return a user who has typed the lines that install."""
    made = Stranger(tmp_path_factory.mktemp("stranger"))
    shutil.unpack_archive(build("sdist", ROOT, made.folder.parent), made.folder.parent)
    made.folder.parent.joinpath("halimede-0.1.0").rename(made.checkout)
    for line in lines:
        if line.startswith("pip "):
            # as the images do: a machine without a compiler
            made.types(line.replace("pip install", "pip install --only-binary :all:"), folder=made.checkout)
    return made


def test_the_first_answer_of_both_models_comes_within_a_minute_of_the_install(
    stranger: Stranger, lines: list[str]
) -> None:
    assert "halimede demo" in lines
    shown = stranger.types("halimede demo", seconds=200)
    found = json.loads((stranger.folder / "halimede-demo" / "report.json").read_text())
    assert found["answered_by"]["cloud"] > 50
    assert found["lost"] == 0
    (first,) = re.findall(r"first answer of both models after ([0-9.]+) s", shown)
    assert float(first) < patience(FIRST)
    assert (stranger.folder / "halimede-demo" / "report.html").exists()


def test_a_system_of_ones_own_runs_from_the_wheel(stranger: Stranger, lines: list[str]) -> None:
    typed = lines[lines.index("halimede demo --files digits") :]
    log = stranger.folder / "up.log"
    with stranger.system(log) as up:
        assert "halimede demo --files digits" in log.read_text()
        for line in typed:
            if line.startswith("halimede publish"):
                stranger.types(
                    f"timeout {patience(60):g} bash -c 'until halimede get ji | grep -q Running; do sleep 1; done'"
                )
            shown = stranger.types(line, seconds=120)
        assert "digits" in shown
        counted = "until halimede get ji -o json | grep -A1 cloudInferenceNumber | grep -q '[1-9]'; do sleep 1; done"
        stranger.types(f'timeout {patience(60):g} bash -c "{counted}"')
        second = run_program(stranger.program, "up", env=stranger.environment)
        assert second.returncode == 1
        assert f"(pid {up.pid})" in second.stderr
        up.send_signal(signal.SIGINT)
        assert up.wait(patience(60)) == 0
        assert "all processes have ended" in log.read_text()


def test_another_version_takes_the_place_of_the_one_before_and_reads_its_home(stranger: Stranger) -> None:
    """The same home with a wheel that calls itself another version: pip leaves one of them, and it starts."""
    for path in (stranger.checkout / "pyproject.toml", stranger.checkout / "halimede" / "__init__.py"):
        path.write_text(path.read_text().replace('"0.1.0"', '"0.1.1"', 1))
    install = "pip wheel --no-deps --wheel-dir newer . && pip install --no-deps newer/*.whl"
    stranger.types(install, folder=stranger.checkout)
    assert "0.1.1" in stranger.types("halimede version || true")
    installed = stranger.types("ls -d venv/lib/python*/site-packages/halimede-*", folder=stranger.folder.parent)
    assert installed.count("\n") == 1
    log = stranger.folder / "newer.log"
    with stranger.system(log) as up:
        up.send_signal(signal.SIGINT)
        assert up.wait(patience(60)) == 0
    assert "halimede is up" in log.read_text(), log.read_text()
    assert "all processes have ended" in log.read_text(), log.read_text()
