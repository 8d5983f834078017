"""Bad input to every command: a missing file, the wrong kind, no broker, a wrong password.

The commands and their arguments are those of the app: a new command, or a new argument that takes a file or a kind,
needs a line here.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from halimede.cli.app import COMMANDS, app, load
from halimede.programs import PROGRAMS
from tests.graphs import FLOAT, write_graph
from tests.integration.gm_world import model, service, template
from tests.password_broker import password_broker
from tests.ports import free_port
from tests.waiting import patience

#: seconds in which a command reports a mistake: those of a connection, twice
DEADLINE = patience(20.0)
pytestmark = pytest.mark.timeout(180)
DIGEST, FRAME = "2fea1e98e29e4b4a1c94ad3a2a9cb9d9c5a1a0a6dd1a0b8fbd1ad1a1ca3f7a55", "0" * 32
#: lines of each command that are right: {name} is a file or folder that it reads, {kind} a kind, {new} what it writes
LINES: dict[str, list[str]] = {
    "apply": ["-f {service}", "-f {service} {manifest}"],
    "get": ["{kind}", "{kind} -w", "cameras"],
    "describe": ["{kind} a"],
    "explain": ["{kind}"],
    "delete": ["{kind} a", "-f {manifest}"],
    "nodes": [""],
    "version": [""],
    "events": ["", "-f", "--about {kind}/a"],
    "logs": ["a", "-f a"],
    "results": ["a", "-f a", "a --draw {new}s"],
    "publish": [
        "{picture} --camera cam0",
        "{picture} --camera cam0 --draw {new}s",
        "{pictures} --camera cam0 --wait",
        "{video} --camera cam0",
    ],
    "status": [""],
    "top": ["--once", ""],
    "doctor": [""],
    "drain": ["edge0"],
    "bridge homeassistant": ["", "--control", "--to-credentials {site}/operators/admin"],
    "uncordon": ["edge0"],
    "rollback": ["{kind} a"],
    "record": ["{new} --camera cam0"],
    "replay": ["{pictures} --camera cam0"],
    "upload": ["{any} {new}"],
    "trace": ["--last", FRAME],
    "seen": ["a", "-f a", "a --picture {picture} --model {manifest}"],
    "inspect": ["{model} {picture}", "{manifest}", "{model} --out {new}", "{model} {picture} --draw {new}.jpg"],
    "models add": ["{model} --preset embedding --out {new}.yaml"],
    "calibrate": [
        "--service {service} --data {pictures} --target-upload 0.2 --out {new}",
        "--service {service} --data {pictures} --costs miss=10,upload=1 --out {new}",
    ],
    "evaluate": ["--service {service} --data {pictures} --out {new}"],
    "certs init": ["{new} --node edge0 --install {new}"],
    "certs add": ["{site} --node edge1"],
    "certs remove": ["{site} --node edge0"],
    "certs rotate": ["{site}"],
    "certs show": ["{site}"],
    "certs acl": ["{site}"],
    "certs secrets": ["{site}"],
    "blob put": ["{any}"],
    "blob list": ["", "--from edge0"],
    "blob get": [f"{DIGEST} {{new}}"],
    "blob delete": [DIGEST],
    "loop": ["digits"],
    "hard list": [""],
    "hard show": [f"{FRAME} --out {{new}}"],
    "hard label": [f"{FRAME} 7", "--folder {labelled}"],
    "hard export": ["{new}"],
}
#: files and folders that lines read, with what they are; {any} may have any content
READ = {
    "service": "manifest.yaml",
    "manifest": "model.yaml",
    "picture": "picture.png",
    "pictures": "pictures",
    "labelled": "labelled",
    "video": "film.mp4",
    "model": "model.onnx",
    "site": "site",
    "any": "anything",
}
#: arguments that take a file, a folder or a kind, by how help shows them
TAKES_FILE = re.compile(r"\b(FILE|FOLDER|PATH|OUT|MODEL|MANIFEST|PICTURE|SOURCE)\b")
TAKES_KIND = re.compile(r"\bKIND\b")


@functools.cache
def every_command() -> dict[str, Any]:
    """Return each command that is no program, and no group, by its words."""
    found = {}
    for name in sorted(COMMANDS.keys() - PROGRAMS.keys()):
        command = load(name)
        below = getattr(command, "commands", None)
        found |= {f"{name} {each}": command for each, command in below.items()} if below else {name: command}
    return found


@dataclass
class Files:
    """Files that are right, below ``folder``, and a broker that does not accept the password of ``user``."""

    folder: Path
    broker: str
    user: Path

    def line(self, command: str, line: str, **changes: Path | str) -> list[str]:
        """Return the words of a line, with these changes."""
        kind = "model" if command == "rollback" else "ji"
        places = {word: self.folder / name for word, name in READ.items()}
        found = {**places, "new": self.folder / "new", "kind": kind, **changes}
        return [*command.split(), *(word.format(**found) for word in shlex.split(line))]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    folder = tmp_path_factory.mktemp("files")
    (folder / "pictures").mkdir()
    (folder / "labelled" / "7").mkdir(parents=True)
    for name in ("picture.png", "pictures/a.png", f"labelled/7/{FRAME}.png"):
        Image.new("RGB", (8, 8), "red").save(folder / name)
    (folder / "anything").write_bytes(b"anything")
    (folder / "film.mp4").touch()
    node: Any = ("Flatten", ["x"], ["y"], {})
    write_graph(folder / "model.onnx", [node], {"x": (FLOAT, ["N", 8, 8, 3])}, {"y": (FLOAT, ["N", 192])})
    embedding = {"url": "./model.onnx", "postprocess": {"task": "embedding"}}
    n = {"model": {"name": "n"}}
    bodies = [model("n", **embedding), service("a", edge_worker=n, cloudWorker={**n, "template": template("cloud0")})]
    (folder / "model.yaml").write_text(json.dumps(model("m", **embedding)))
    (folder / "manifest.yaml").write_text("\n---\n".join(map(json.dumps, bodies)))
    assert halimede("certs", "init", str(folder / "site"), "--node", "edge0", "--passwords").exit_code == 0
    with password_broker(folder) as broker:
        yield Files(folder, broker.address, broker.wrong)


@pytest.fixture(autouse=True)
def _no_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No broker and no credentials but those of a line."""
    for variable in ("HALIMEDE_BROKER", "HALIMEDE_CREDENTIALS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HALIMEDE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def halimede(*words: str) -> Result:
    began = time.monotonic()
    done = CliRunner().invoke(app, words, env={"COLUMNS": "400"})
    assert time.monotonic() - began < DEADLINE
    return done


def is_clear(done: Result, *parts: str) -> None:
    """Fail unless a command has ended with one error that has these parts, and without a traceback."""
    shown = f"{done.exit_code}: {done.output}"
    assert done.exit_code in {1, 2}, shown
    assert done.exception is None or isinstance(done.exception, SystemExit), shown
    assert "bug in halimede" not in done.output, shown
    errors = [line for line in done.output.splitlines() if re.match("Error: |│ Invalid value|problem|  broker: ", line)]
    assert len(errors) == 1, shown
    assert all(part.lower() in errors[0].lower() for part in parts), f"{parts}\n{shown}"


def with_words(*words: str, other_than: Sequence[str] = ()) -> list[Any]:
    """Return command, line and word for each line that has one of these words."""
    return [
        pytest.param(command, line, word, id=f"{command} {line}: {word}")
        for command, lines in LINES.items()
        for line in lines
        for word in sorted(words)
        if f"{{{word}}}" in line and f"{command}: {word}" not in other_than
    ]


#: each line of a command that connects to a broker
WITH_BROKER = pytest.mark.parametrize(
    ("command", "line"),
    [
        pytest.param(command, line, id=f"{command} {line}")
        for command, found in every_command().items()
        if {"broker", "credentials"} <= {parameter.name for parameter in found.params}
        for line in LINES[command]
    ],
)


def test_each_command_has_its_lines() -> None:
    assert LINES.keys() == every_command().keys()


@pytest.mark.parametrize("name", LINES)
def test_each_argument_that_takes_a_file_or_a_kind_is_in_a_line(name: str) -> None:
    command, covered = every_command()[name], set()
    for line in LINES[name]:
        given = command.make_context(name, shlex.split(line), resilient_parsing=True).params
        covered |= {parameter for parameter, value in given.items() if "{" in str(value)}
    for parameter in command.params:
        shown = str(parameter.metavar)
        assert parameter.name in covered or not (TAKES_FILE.search(shown) or TAKES_KIND.search(shown)), shown


@pytest.mark.parametrize(("command", "line", "word"), with_words(*READ))
def test_a_missing_file_is_named(files: Files, command: str, line: str, word: str) -> None:
    missing = files.folder / f"missing{Path(READ[word]).suffix}"
    is_clear(halimede(*files.line(command, line, **{word: missing})), str(missing))


@pytest.mark.parametrize(("command", "line", "word"), with_words(*(READ.keys() - {"any", "video"})))
def test_a_file_or_folder_of_another_kind_is_named(files: Files, command: str, line: str, word: str) -> None:
    stranger = files.folder / f"stranger-{READ[word]}"
    if word in {"pictures", "labelled", "site"}:
        stranger.mkdir(exist_ok=True)
        (stranger / "notes.txt").write_text("these are notes")
    else:
        stranger.write_text("these are notes")
    is_clear(halimede(*files.line(command, line, **{word: stranger})), str(stranger))


@pytest.mark.parametrize(("command", "line", "word"), with_words("kind"))
def test_a_kind_that_does_not_exist_is_named_with_those_that_do(
    files: Files, command: str, line: str, word: str
) -> None:
    done = halimede(*files.line(command, line, **{word: "servcie"}))
    is_clear(done, "kind", "'servcie'", "use one of", "jointinferenceservices")


@WITH_BROKER
def test_a_broker_that_is_not_there_is_named(files: Files, command: str, line: str) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    is_clear(halimede(*files.line(command, line), "--broker", nobody), nobody)


@WITH_BROKER
def test_a_wrong_password_is_named_with_the_folder_that_has_it(files: Files, command: str, line: str) -> None:
    done = halimede(*files.line(command, line), "--broker", files.broker, "--credentials", str(files.user))
    is_clear(done, files.broker, str(files.user), "not authorized")


@WITH_BROKER
def test_a_missing_folder_of_credentials_is_named(files: Files, command: str, line: str) -> None:
    missing = files.folder / "nobody"
    done = halimede(*files.line(command, line), "--broker", files.broker, "--credentials", str(missing))
    is_clear(done, "--credentials", str(missing))
