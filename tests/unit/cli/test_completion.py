"""Completion helps where there is a system, is silent where there is none; Ctrl-C is quiet from the first moment on."""

from __future__ import annotations

import os
import subprocess

import pytest

from halimede.cli import completion
from tests.programs import run_python

MAIN = "from halimede.cli import main; main()"


def completed(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    line = "halimede " + " ".join(words)
    asked = {"_HALIMEDE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    script = f"import sys; sys.argv[0] = 'halimede'; {MAIN}"
    return run_python("-c", script, env={**os.environ, "HALIMEDE_HOME": "/nowhere", **asked, **environment})


def test_kinds_come_without_a_system() -> None:
    assert completion.kinds("mod") == ["model", "models"]
    assert completed("get", "mod").stdout.split() == ["model", "models"]


@pytest.mark.parametrize("words", [("drain", "e"), ("logs", "d"), ("get", "ji", "d"), ("events", "--about", "n")])
def test_without_a_system_there_is_nothing_and_not_a_word(words: tuple[str, ...]) -> None:
    ended = completed(*words, HALIMEDE_BROKER="127.0.0.1:9")
    assert (ended.stdout.strip(), ended.stderr) == ("", "")


def test_ctrl_c_while_packages_are_imported_prints_no_traceback() -> None:
    script = (
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n" + MAIN
    )
    ended = run_python("-c", script)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
