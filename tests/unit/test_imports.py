"""Processes of ours start without what they do not need; whoever imports the library finds all as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs import run_python

ROOT = Path(__file__).parents[2]


def run(*words: str) -> str:
    done = run_python(*words, cwd=ROOT, check=True)
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("program", ["gm", "lc", "worker", "serve"])
def test_a_service_loads_neither_tables_nor_their_colours(program: str) -> None:
    shown = run("-X", "importtime", "-m", "halimede", program, "--help")
    loaded = {line.rpartition("|")[2].strip() for line in shown.splitlines()}
    assert {"structlog", "halimede.system.runtime"} <= loaded
    assert not {"rich.console", "pygments", "typer"} & loaded


@pytest.mark.parametrize(
    ("script", "written"),
    [
        ("import structlog, rich.console; print('there')", "there\n"),
        (
            "import sys; print('to standard output'); import atexit; atexit.register(print, 'at the end')",
            "to standard output\nat the end\n",
        ),
    ],
    ids=["what it asks for later is there", "what is open at the end is written"],
)
def test_a_process_of_ours_does_what_others_do(script: str, written: str) -> None:
    assert run("-c", f"from halimede.system.runtime import own_process; own_process(); {script}") == written


def test_what_imports_our_services_keeps_its_collections_and_its_log_lines() -> None:
    script = "import gc; was = gc.get_threshold(); import services; print(gc.get_threshold() == was, end=' ')"
    assert run("-c", f"{script}; import structlog.dev; print(structlog.dev.rich is not None)") == "True True\n"
