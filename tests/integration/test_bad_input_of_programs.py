"""Bad input to every program: a missing file, the wrong kind; without a broker, or with a wrong password, it goes on.

The programs and their options are those of ``halimede.programs``: a new program, or a new option that takes a file,
needs a line here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from halimede import programs
from halimede.serving import settings as serving
from tests.password_broker import PasswordBroker, password_broker
from tests.ports import free_port
from tests.serving_world import adds
from tests.typed import halimede
from tests.waiting import patience

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(60)
#: seconds until a program names the state of its broker, on a busy machine
DEADLINE = 30.0
#: options that take files or folders, by how help shows them
TAKES_FILE = re.compile(r"FILE|FOLDER|DIR|MODEL|\bOUT\b|CREDENTIALS|NAME=URL")
#: folders that may be mounted later
LATER = {"lc": {"--host-root"}}
ROUTER = "--edge http://127.0.0.1:9 --cloud http://127.0.0.1:9"
KUBERNETES = "--kubernetes --store {new}"
#: line, the exit code, and what the error names; {missing} does not exist, {text} is text, {model} a model
LINES: dict[str, list[tuple[str, int, str]]] = {
    "up": [("--home {text}", 1, "{text} cannot be used"), ("--nodes 'A B'", 2, "--nodes: 'A B'")],
    "demo": [("--out {text}", 1, "--out: '{text}'"), ("--files {text}", 1, "--files: '{text}'")],
    "gm": [
        ("--store {text}", 2, "{text} must be a writable folder"),
        ("--credentials {missing}", 2, "--credentials: '{missing}'"),
        ("--credentials {text}", 2, "--credentials: '{text}'"),
        (f"{KUBERNETES} --pods-config {{missing}}", 2, "--pods-config: '{missing}'"),
        (f"{KUBERNETES} --pods-config {{text}}", 2, "--pods-config: '{text}'"),
        (f"{KUBERNETES} --kubeconfig {{missing}}", 2, "--kubeconfig: '{missing}'"),
        (f"{KUBERNETES} --kubeconfig {{text}}", 2, "--kubeconfig: '{text}'"),
    ],
    "lc": [
        ("--node edge0 --home {text}", 2, "{text}/nodes/edge0 cannot be used"),
        ("--node edge0 --credentials {missing}", 2, "--credentials: '{missing}'"),
        ("--node edge0 --credentials {text}", 2, "--credentials: '{text}'"),
    ],
    "worker": [("nonsense", 2, "'nonsense'"), ("cloud", 2, "HALIMEDE_CREDENTIALS: '{missing}'")],
    "camera": [
        ("--camera door=@{missing}", 2, "--camera door: '{missing}'"),
        ("--camera door=ftp://x/y", 2, "--camera door: 'ftp://x/y'"),
        ("--cameras {missing}", 2, "--cameras: '{missing}'"),
        ("--cameras {text}", 2, "--cameras: '{text}'"),
        ("--camera door=rtsp://127.0.0.1:9/x --credentials {missing}", 2, "--credentials: '{missing}'"),
    ],
    "serve": [
        ("{missing}", 2, "MODEL: '{missing}' is not accepted: there is no such file"),
        ("{text}", 2, "MODEL: 'notes' is not accepted: the model file {text} is not an ONNX model"),
        ("--file {text}", 2, "--file: '{text}'"),
        ("{model} --spec {missing}", 2, "--spec: '{missing}'"),
        ("{model} --spec {text}", 2, "--spec: '{text}' is not accepted: give a file with a Model's spec as JSON"),
        ("{model} --estimator nowhere:Class", 2, "'nowhere:Class' is not accepted: mend nowhere or put its folder"),
        ("{model} --token-file {missing}", 2, "--token-file: '{missing}'"),
        ("{model} --tls-cert {missing} --tls-key {text}", 2, "--tls-cert: '{missing}'"),
    ],
    "router": [
        (f"{ROUTER} --mining Nonsense", 2, "--mining: 'Nonsense' is not accepted: use one of"),
        ("--edge nonsense --cloud http://127.0.0.1:9 --mining Margin", 2, "--edge: 'nonsense'"),
        (f"{ROUTER} --mining Margin --camera cam0 --credentials {{missing}}", 2, "--credentials: '{missing}'"),
    ],
}
#: a line of each program that connects to a broker; {broker} and {credentials} are for it
CONNECTED = {
    "gm": "--store {folder} --broker {broker} --http off",
    "lc": "--node edge0 --home {folder} --broker {broker} --http off",
    "worker": "cloud",
    "camera": "--camera door={folder} --loop --broker {broker}",
    "router": f"{ROUTER} --mining Margin --camera cam0 --broker {{broker}} --http 127.0.0.1:0",
}
#: of a worker, whose settings are its environment
WORKER = {"NAMESPACE": "default", "SERVICE_NAME": "a", "WORKER_NAME": "a-cloud-n", "NODE_NAME": "n"}


def options(name: str) -> Iterator[tuple[str, str]]:
    """Yield each option of a program's command line, and how help shows what it takes."""
    module = programs.PROGRAMS[name].entry.partition(":")[0]
    found = import_module(module)
    parser: Any = serving.parser if found.__name__ == "halimede.serving.server" else found.parser
    for action in parser()._actions:
        if action.nargs != 0:
            shown = action.metavar or action.dest
            yield (action.option_strings or [""])[0], str(shown).upper()


def test_each_program_has_its_lines() -> None:
    assert LINES.keys() == programs.PROGRAMS.keys()
    with_broker = {name for name in LINES if name not in {"up", "demo", "serve"}}
    assert CONNECTED.keys() == with_broker


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
def test_each_option_that_takes_a_file_is_in_a_line(name: str) -> None:
    lines = [line for line, _, error in LINES[name] if "{" in error or "=" in line]
    for option, shown in options(name):
        if TAKES_FILE.search(shown) and option not in LATER.get(name, ()):
            assert any(option in line.split() for line in lines) or (not option and lines), (option, shown)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "line", "code", "error"),
    [pytest.param(name, *row, id=f"{name} {row[0]}") for name, rows in LINES.items() for row in rows],
)
def test_a_mistake_ends_a_program_with_one_line_that_names_it(
    tmp_path: Path, name: str, line: str, code: int, error: str
) -> None:
    (tmp_path / "notes.txt").write_text("these are notes")
    model = adds(tmp_path / "m.onnx", 1)
    places = {"missing": tmp_path / "nothing", "text": tmp_path / "notes.txt", "new": tmp_path / "new", "model": model}
    told = {"HALIMEDE_HOME": str(tmp_path / "home"), "HALIMEDE_PODS_BROKER": "127.0.0.1:9", "HALIMEDE_BROKER": ""}
    if name == "worker":
        told |= {**WORKER, "MODEL_URL": str(model), "HALIMEDE_CREDENTIALS": str(places["missing"])}
    words = [word.format(**places) for word in shlex.split(line)]
    began = time.monotonic()
    done = halimede(name, *words, env={**os.environ, **told, "HALIMEDE_LOG_LEVEL": "CRITICAL"}, cwd=tmp_path)
    assert time.monotonic() - began < DEADLINE
    assert done.returncode == code, done.stderr
    assert error.format(**places) in done.stderr.splitlines()[-1]
    others = done.stderr.splitlines()[:-1]
    assert all(each.startswith(("usage: ", " ")) for each in others), done.stderr


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PasswordBroker]:
    with password_broker(tmp_path_factory.mktemp("broker")) as made:
        yield made


@contextlib.contextmanager
def running(folder: Path, *words: str, **told: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program; its output goes into ``folder``/log. At the end it is stopped, and must have had no traceback."""
    command, variables = [sys.executable, "-m", "halimede", *words], {**os.environ, "HALIMEDE_LOG": "json", **told}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=log, stderr=log)
    try:
        yield process
        assert process.poll() is None, (folder / "log").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(patience(DEADLINE)) == 0, (folder / "log").read_text()
        assert "Traceback" not in (folder / "log").read_text()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def logged(folder: Path, event: str, process: subprocess.Popen[bytes]) -> str:
    """Wait for an event in the log; return its line."""
    end = time.monotonic() + patience(DEADLINE)
    while True:
        shown = (folder / "log").read_text()
        found = [line for line in shown.splitlines() if f'"{event}"' in line]
        if found:
            return found[0]
        assert process.poll() is None, shown
        assert time.monotonic() < end, shown
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONNECTED)
@pytest.mark.parametrize("why", ["no broker", "wrong password"])
def test_a_program_without_its_broker_names_it_and_the_reason_and_goes_on(
    broker: PasswordBroker, tmp_path: Path, name: str, why: str
) -> None:
    refused = why == "wrong password"
    address = broker.address if refused else f"127.0.0.1:{free_port()}"
    reason = "not authorized" if refused else "connection refused"
    told = {"HALIMEDE_BROKER": address, "HALIMEDE_CREDENTIALS": str(broker.wrong) if refused else ""}
    if name == "worker":
        told |= {**WORKER, "MODEL_URL": str(adds(tmp_path / "m.onnx", 1))}
    (tmp_path / "data").mkdir()
    line = shlex.split(CONNECTED[name].format(folder=tmp_path / "data", broker=address))
    with running(tmp_path, name, *line, **told) as process:
        down = logged(tmp_path, "bus down", process)
        assert address in down
        assert reason in down.lower()


@pytest.mark.slow
def test_a_server_names_the_file_that_it_waits_for(tmp_path: Path) -> None:
    with running(tmp_path, "serve", "--file", str(tmp_path / "later.json"), "--http", "127.0.0.1:0") as process:
        line = logged(tmp_path, "no models yet: the server waits for its file", process)
        assert str(tmp_path / "later.json") in line


@pytest.mark.slow
@pytest.mark.parametrize(("content", "reason"), [(None, "NotFound"), ("these are notes", "Garbage")])
def test_a_camera_names_a_source_that_it_cannot_read_and_tries_it_again(
    broker: PasswordBroker, tmp_path: Path, content: str | None, reason: str
) -> None:
    source = tmp_path / "film.mp4"
    if content:
        source.write_text(content)
    line = ["--camera", f"door={source}", "--broker", broker.address, "--credentials", str(broker.operator)]
    with running(tmp_path, "camera", *line) as process:
        broken = logged(tmp_path, "camera broke off", process)
        assert str(source) in broken
        assert reason in broken
