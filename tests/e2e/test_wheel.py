"""A stranger's first hour with the wheel: the commands of docs/install.md in a clean environment and an empty folder.

Nothing of this checkout is in reach but its wheel; the packages come from where pip finds them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.running import ROOT
from tests.e2e.test_documentation import commands
from tests.ports import free_port
from tests.waiting import patience
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
    assert float(first) < FIRST
    assert (stranger.folder / "halimede-demo" / "report.html").exists()


def test_a_system_of_ones_own_runs_from_the_wheel(stranger: Stranger, lines: list[str]) -> None:
    typed = lines[lines.index("halimede demo --files digits") :]
    log = stranger.folder / "up.log"
    with log.open("wb") as out:
        up = subprocess.Popen(
            ["halimede", "up", "--port", str(free_port())], cwd=stranger.folder, env=stranger.environment,
            executable=stranger.venv / "bin" / "halimede", stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        end = time.monotonic() + patience(START)
        while "halimede is up" not in log.read_text():
            assert up.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        assert "halimede demo --files digits" in log.read_text()
        for line in typed:
            if line.startswith("halimede publish"):
                stranger.types("timeout 60 bash -c 'until halimede get ji | grep -q Running; do sleep 0.2; done'")
            shown = stranger.types(line, seconds=120)
        assert "digits" in shown
        counted = "until halimede get ji -o json | grep -A1 cloudInferenceNumber | grep -q '[1-9]'; do sleep 0.2; done"
        stranger.types(f'timeout 60 bash -c "{counted}"')
        second = subprocess.run(
            [stranger.venv / "bin" / "halimede", "up"], env=stranger.environment, capture_output=True, text=True,
            timeout=patience(60), check=False,
        )  # fmt: skip
        assert second.returncode == 1
        assert f"(pid {up.pid})" in second.stderr
        up.send_signal(signal.SIGINT)
        assert up.wait(60) == 0
        assert "all processes have ended" in log.read_text()
    finally:
        if up.poll() is None:
            up.kill()


def test_nothing_of_ours_stands_among_other_packages(stranger: Stranger) -> None:
    code = "import importlib.util as u; print([m for m in ('services', 'examples', 'tests') if u.find_spec(m)])"
    assert stranger.types(f'python -c "{code}"').strip() == "[]"
    assert "halimede" in stranger.types("python -m halimede --help")


def test_another_version_takes_the_place_of_the_one_before_and_reads_its_home(stranger: Stranger) -> None:
    """The same home with a wheel that calls itself another version: pip leaves one of them, and it starts."""
    for path in (stranger.checkout / "pyproject.toml", stranger.checkout / "halimede" / "__init__.py"):
        path.write_text(path.read_text().replace('"0.1.0"', '"0.1.1"', 1))
    stranger.types(
        "pip wheel --no-deps --wheel-dir newer . && pip install --no-deps newer/*.whl", folder=stranger.checkout
    )
    assert "0.1.1" in stranger.types("halimede version || true")
    assert (
        stranger.types("ls -d venv/lib/python*/site-packages/halimede-*", folder=stranger.folder.parent).count("\n")
        == 1
    )
    up = f"timeout -s INT 20 halimede up --port {free_port()} || true"
    shown = stranger.types(up)
    assert "halimede is up" in shown, shown
    assert "all processes have ended" in shown, shown
