"""A test that fails while the machine stops it runs once more, and no other."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from tests.programs import run_python

ROOT = Path(__file__).parents[2]
#: the first test is stopped as a virtual machine is, and passes when it runs again
TESTS = """
import os, signal, subprocess, sys, time
from pathlib import Path

RUNS = Path("{runs}")

def count(name):
    with RUNS.open("a") as file:
        file.write(name + "\\n")
    return RUNS.read_text().split().count(name)

def test_stopped():
    if count("stopped") == 1:
        subprocess.Popen(["sh", "-c", f"sleep 0.6; kill -CONT {os.getpid()}"])
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.1)
        raise AssertionError

def test_wrong():
    count("wrong")
    raise AssertionError

def test_right():
    count("right")
"""
#: a machine on which nothing counts as a stop
PATIENT = "import tests.stalls; tests.stalls.STALL_S = float('inf')"


def run_tests(folder: Path, plugin: str = "") -> tuple[int, Counter[str]]:
    """Run the tests above; return the exit code, and how often each test ran."""
    runs = folder / "runs"
    (folder / "test_stopped.py").write_text(TESTS.replace("{runs}", str(runs)))
    (folder / "conftest.py").write_text(plugin)
    done = run_python(
        "-m", "pytest", "-c", "/dev/null", "--rootdir", folder, "-p", "pytest_rerunfailures", "-p", "tests.stalls",
        "-p", "no:cacheprovider", folder, cwd=ROOT, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return done.returncode, Counter(runs.read_text().split())


def test_a_test_that_fails_while_the_machine_stops_it_runs_once_more(tmp_path: Path) -> None:
    exit_code, runs = run_tests(tmp_path)
    assert (exit_code, runs["stopped"], runs["right"]) == (1, 2, 1)


def test_a_test_that_fails_without_a_stop_has_failed(tmp_path: Path) -> None:
    assert run_tests(tmp_path, PATIENT) == (1, Counter(stopped=1, wrong=1, right=1))
