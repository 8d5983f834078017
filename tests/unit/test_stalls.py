"""A test that fails while the machine stops it runs once more, and no other."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from itertools import chain
from pathlib import Path

from tests.programs import run_python

ROOT = Path(__file__).parents[2]
#: the second test is stopped as a virtual machine is, and passes when it runs again
TESTS = """
import os, signal, subprocess, sys, time
from pathlib import Path

RUNS = Path("{runs}")

def count(name):
    with RUNS.open("a") as file:
        file.write(name + "\\n")
    return RUNS.read_text().split().count(name)

def test_right():
    count("right")

def test_stopped():
    if count("stopped") == 1:
        subprocess.Popen(["sh", "-c", f"sleep 0.6; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
        raise AssertionError

def test_wrong():
    count("wrong")
    raise AssertionError
"""
#: a machine on which nothing counts as a stop
WITHOUT_STALLS = "import tests.stalls; tests.stalls.STALL_S = float('inf')"


def run_tests(folder: Path, conftest: str = "") -> subprocess.CompletedProcess[str]:
    (folder / "test_stopped.py").write_text(TESTS.replace("{runs}", str(folder / "runs")))
    (folder / "conftest.py").write_text(conftest)
    plugins = ("pytest_rerunfailures", "pytest_timeout", "tests.stalls", "no:cacheprovider")
    return run_python(
        "-m", "pytest", "-c", "/dev/null", "--rootdir", folder, *chain.from_iterable(("-p", name) for name in plugins),
        "--timeout", "5", "--rerun-show-tracebacks", folder,
        cwd=ROOT, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip


def runs_of(folder: Path) -> Counter[str]:
    """Return how often each test ran."""
    return Counter((folder / "runs").read_text().split())


def test_a_test_that_fails_while_the_machine_stops_it_runs_once_more(tmp_path: Path) -> None:
    done = run_tests(tmp_path)
    assert done.returncode == 1, done.stderr
    assert (runs_of(tmp_path)["stopped"], runs_of(tmp_path)["right"]) == (2, 1)
    assert "os.kill(os.getpid(), signal.SIGSTOP)" in done.stdout, "the first failure is shown"


def test_a_test_that_fails_without_a_stop_has_failed(tmp_path: Path) -> None:
    assert run_tests(tmp_path, WITHOUT_STALLS).returncode == 1
    assert runs_of(tmp_path) == Counter(stopped=1, wrong=1, right=1)
