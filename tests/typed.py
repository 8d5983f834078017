"""The command `halimede` for tests that type it often: a process that has imported it forks for each line.

A child does what the console script does, from ``main()`` on, with its own arguments, environment, folder and files; it
is spared the start of an interpreter and the imports, which are most of what a short command costs. That those work is
shown by tests that start the command itself (tests/unit/cli, the README's lines, tests/e2e/test_up.py).
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from halimede.cli.app import app

ROOT = Path(__file__).parents[1]
TURN = threading.Lock()
SERVER = """
import importlib, json, os, sys
from halimede.cli import main

MODULES = ("app", "client", "manifests", "output", "broker_address")
COMMANDS = ("apply", "get", "describe", "certs", "publish")
for module in (*MODULES, *(f"commands.{command}" for command in COMMANDS)):
    importlib.import_module(f"halimede.cli.{module}")


def child(job):
    for number, path in enumerate((os.devnull, job["out"], job["err"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY), number)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    sys.argv = ["halimede", *job["words"]]
    try:
        main()
    except SystemExit as error:
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\\n")
        return 1 if isinstance(error.code, str) else error.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


answers = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = child(json.loads(line))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\\n")
    answers.flush()
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SERVER]
    made = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(made.kill)
    return made


def typed(*words: object, code: int = 0) -> Result:
    """Run ``halimede`` with these words in this process; it has to end with this code."""
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == code, done.output
    return done


def halimede(
    *words: str | Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run ``halimede`` with these words to its end; ``env`` is the whole environment (this process's if None).

    One at a time; from a coroutine call it in a thread.
    """
    with TURN, tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        out.touch()
        err.touch()
        told, line = dict(os.environ if env is None else env), [*map(str, words)]
        job = {"words": line, "env": told, "cwd": str(cwd), "out": str(out), "err": str(err)}
        server = _server()
        assert server.stdin
        assert server.stdout
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, "the process that forks has ended"
        return subprocess.CompletedProcess(line, int(answer), out.read_text(), err.read_text())
