"""The command as a shell sees it: help with examples, exit codes, one line an error, never a traceback."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import halimede as package
from halimede.api import plurals
from halimede.cli.app import COMMANDS, GROUPS, SUBCOMMANDS, app, load
from halimede.cli.runner import run
from halimede.errors import HalimedeError, InvalidFieldError
from tests.programs import run_python
from tests.typed import typed
from tests.waiting import patience

NOWHERE = ["--broker", "127.0.0.1:9"]
MAIN = "from halimede.cli import main\n"


@pytest.fixture(autouse=True)
def _permissions_as_they_were() -> Iterator[None]:
    """A program sets those of new files for its process; here that is the process of other tests as well."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


def halimede(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    shown_in = {**os.environ, "COLUMNS": "200", **environment}
    return run_python("-c", f"{MAIN}main()", *arguments, stdin=subprocess.DEVNULL, env=shown_in)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_list_of_commands_has_the_first_paragraph_of_their_help(command: str) -> None:
    assert " ".join(load(command).help.split("\n\n")[0].split()) == COMMANDS[command]


@pytest.mark.parametrize("arguments", [["--help"], []], ids=["help", "no arguments"])
def test_the_list_of_commands_shows_each_command_once_in_its_group(arguments: list[str]) -> None:
    titles = "|".join(map(re.escape, GROUPS))
    _, *parts = re.split(rf" ({titles}) ", CliRunner().invoke(app, arguments, env={"COLUMNS": "160"}).output)
    shown = [re.findall(r"^│ (\w+) ", part, re.MULTILINE) for part in parts[1::2]]
    assert [*zip(parts[::2], shown, strict=True)] == [(title, names.split()) for title, names in GROUPS.items()]
    assert sorted(itertools.chain(*shown)) == sorted(COMMANDS)


def every_command() -> Iterator[tuple[str, Any]]:
    for name in COMMANDS:
        command = load(name)
        yield from ((f"{name} {each}", found) for each, found in getattr(command, "commands", {"": command}).items())


#: as in kubectl: of commands that read manifests, and of commands that show what happens
TWO_MEANINGS = {"-f": {"--filename", "--follow"}}


def test_a_letter_means_the_same_in_every_command() -> None:
    meanings: dict[str, set[str]] = defaultdict(set)
    for _, command in every_command():
        for parameter in command.params:
            for letter in (name for name in parameter.opts if re.fullmatch("-[a-zA-Z]", name)):
                meanings[letter] |= {name for name in parameter.opts if name.startswith("--")}
    assert {"-n", "-o", "-f"} <= set(meanings)
    assert {letter: names for letter, names in meanings.items() if len(names) > 1} == TWO_MEANINGS


def test_the_version_is_shown_without_a_system() -> None:
    assert typed("--version").output == f"halimede {package.__version__}\n"


@pytest.mark.parametrize("command", ["get", "describe"])
def test_the_help_names_every_kind(command: str) -> None:
    (kind,) = [each for each in load(command).params if each.name == "kind"]
    for known in plurals():
        assert re.search(rf"\b({known.short_names[0]}|{known.plural[:-1]})\b", kind.help), known.plural


@pytest.mark.parametrize("group", SUBCOMMANDS)
def test_every_command_of_a_group_takes_the_broker_of_the_whole_command(group: str) -> None:
    assert tuple(load(group).commands) == SUBCOMMANDS[group]


def test_get_alone_lists_the_kinds_without_a_broker() -> None:
    rows = {row.split()[0]: row.split()[1:] for row in typed("get").stdout.splitlines()[1:]}
    ours = ["ji", "JointInferenceService", "sedna.io/v1alpha1,", "neptune.io/v1alpha1"]
    assert rows["jointinferenceservices"] == ours
    assert rows.keys() == {*(kind.plural for kind in plurals()), "nodes", "cameras", "events"}
    for name, (short, *_) in rows.items():
        for word in (name, short):  # what it lists, it takes
            assert "no MQTT broker answers" in typed("get", word, *NOWHERE, code=1).stderr
    assert typed("get", "-o", "name").stdout.split() == list(rows)


@pytest.mark.parametrize("command", ["", *(name for name, _ in every_command())])
def test_every_help_has_examples_and_names_no_path_of_the_repository(command: str) -> None:
    shown = typed(*command.split(), "--help").output
    assert not command or "Examples:" in shown
    assert f"halimede {command}".strip() in shown
    assert "examples/" not in shown
    assert "\\b" not in shown


@pytest.mark.parametrize(
    ("words", "imported"),
    [
        (["--help"], "[name for name in sys.modules if name.startswith(('halimede.cli.commands', 'halimede.bus'))]"),
        (["version", *NOWHERE], "[*{'numpy', 'PIL', 'onnxruntime', 'ruamel.yaml', 'aiomqtt'} & set(sys.modules)]"),
    ],
    ids=["no command for the list of them", "nothing heavy for a command that does not need it"],
)
def test_what_is_not_needed_is_not_imported(words: list[str], imported: str) -> None:
    script = f"import sys\nfrom halimede.cli.app import start\nsys.argv = {['halimede', *words]}\nstart()\n"
    assert run_python("-c", f"{script}print({imported})", check=True).stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["describe"], "Missing argument 'KIND'"),
        (["get", "-A"], "give a KIND"),
        (["get", "-w"], "give a KIND"),
        (["gte"], "No such command 'gte'"),
        (["apply"], "give -f FILE"),
        (["delete"], "give KIND NAME or -f FILE"),
        (["delete", "ji", *NOWHERE], "give a name"),
        (["describe", "ji", *NOWHERE], "give a name"),
        (["get", "ji/a", "b", *NOWHERE], "give one name"),
        (["get", "ji", "a", "-A", *NOWHERE], "leave out -A"),
        (["get", "ji", "-o", "xml"], "xml"),
        (["publish", "x.png"], "--camera"),
        (["publish", "x.png", "--camera", "c", "--loop", "--repeat", "2"], "not both"),
        (["publish", "x.png", "--camera", "c", "--qos", "2"], "--qos"),
    ],
)
def test_wrong_usage_is_explained_with_exit_code_2(arguments: list[str], part: str) -> None:
    assert part in " ".join(typed(*arguments, code=2).output.split())


MISTAKES = [
    (["get", "nonsense"], "kind: 'nonsense' is not accepted: use one of"),
    (["get", "ji", "A/b"], "NAME: 'A/b' is not accepted"),
    (["get", "ji", "-n", "a/b"], "--namespace: 'a/b' is not accepted"),
    (["get", "ji", "--broker", "x:y"], "--broker: 'x:y' is not accepted"),
    (["get", "ji", *NOWHERE], "no MQTT broker answers at 127.0.0.1:9 (from --broker): the connection is refused"),
    ([*NOWHERE, "get", "ji"], "no MQTT broker answers at 127.0.0.1:9"),
    (["nodes", *NOWHERE], "halimede up"),
    (["results", "-f", "digits", *NOWHERE], "no MQTT broker answers"),
    (["results", "../x", *NOWHERE], "'../x' is not accepted"),
    (["logs", "#", *NOWHERE], "NAME: '#' is not accepted"),
    (["events", "--about", "ji/A", *NOWHERE], "NAME: 'A' is not accepted"),
    (["apply", "-f", "/nonexistent", *NOWHERE], "there is no such file or folder"),
    (["publish", "/nonexistent", "--camera", "a+b", *NOWHERE], "'a+b' is not accepted"),
]


@pytest.mark.parametrize(("arguments", "part"), MISTAKES)
def test_a_mistake_is_one_line_on_standard_error_with_exit_code_1(arguments: list[str], part: str) -> None:
    shown = typed(*arguments, code=1)
    is_one_error(part, shown.exit_code, shown.stdout, shown.stderr)


def test_apply_shows_each_mistake_of_a_manifest_on_a_line_of_its_own(tmp_path: Path) -> None:
    manifest = tmp_path / "m.yaml"
    manifest.write_text("apiVersion: sedna.io/v1alpha1\nkind: Model\nmetadata: {name: A}\nspec: {fromat: onnx}\n")
    shown = typed("apply", "-f", str(manifest), *NOWHERE, code=1)
    assert shown.stdout == ""
    at = f"Error: {manifest}"
    assert [line.partition(" is not accepted: ")[0] for line in shown.stderr.splitlines()] == [
        f"{at}:3: document 1: metadata.name: 'A'",
        f"{at}:4: document 1: spec.fromat: 'onnx'",
    ]


@pytest.mark.parametrize(
    ("options", "dry_run"),
    [([], "none"), (["--dry-run"], "server"), (["--dry-run=server"], "server"), (["--dry-run=client"], "client")],
)
def test_a_dry_run_is_gms_unless_it_is_the_clients(options: list[str], dry_run: str) -> None:
    assert load("apply").make_context("apply", [*options, "-f", "x"]).params["dry_run"] == dry_run


def test_a_dry_run_of_the_client_needs_no_broker() -> None:
    digits = str(Path(__file__).parents[3] / "examples" / "digits")
    shown = typed("apply", "--dry-run=client", "-f", digits, *NOWHERE)
    assert shown.stdout.splitlines()[0] == "model/digits-small valid (dry run)"


#: a name, an address, and a broker that is not there, as processes of their own
@pytest.mark.parametrize(("arguments", "part"), [MISTAKES[0], MISTAKES[3], MISTAKES[4]])
def test_and_so_it_is_in_a_shell(arguments: list[str], part: str) -> None:
    ended = halimede(*arguments)
    is_one_error(part, ended.returncode, ended.stdout, ended.stderr)


def is_one_error(part: str, code: int, out: str, error: str) -> None:
    assert (code, out) == (1, "")
    assert error.startswith("Error: ")
    assert len(error.splitlines()) == 1
    assert part in error


def test_the_run_file_is_read_from_halimede_home(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"broker": "mqtt://127.0.0.1:9"}')
    ended = halimede("nodes", HALIMEDE_HOME=str(tmp_path), HALIMEDE_BROKER="")
    assert f"127.0.0.1:9 (from {tmp_path}/run.json)" in ended.stderr


def test_without_its_packages_it_says_what_to_install() -> None:
    ended = run_python("-c", f"import sys\nsys.modules['typer'] = None\n{MAIN}main()")
    expected = "halimede: not installed: typer: pip install 'halimede[cli]'\n"
    assert (ended.returncode, ended.stderr) == (2, expected)


@pytest.mark.parametrize(
    ("package", "words", "extras"),
    [
        ("cryptography", ["certs", "show", "x"], "cli"),
        ("filelock", ["blob", "list"], "cli,worker"),
        ("aiohttp", ["upload", __file__, "http://127.0.0.1:9/x"], "cli,worker"),
    ],
)
def test_a_package_that_only_one_command_needs_is_named_by_extra(package: str, words: list[str], extras: str) -> None:
    ended = run_python("-c", f"import sys\nsys.modules[{package!r}] = None\n{MAIN}main()", *words)
    assert ended.returncode in {1, 2}, ended.stderr
    assert ended.stderr.endswith(f": not installed: {package}: pip install 'halimede[{extras}]'\n"), ended.stderr
    assert ended.stderr.count("\n") == 1


def test_ctrl_c_ends_quietly_with_130(tmp_path: Path) -> None:
    import socket

    command = [sys.executable, "-c", f"{MAIN}main()", "nodes", "--broker"]
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes the connection and never answers
        address = f"127.0.0.1:{server.getsockname()[1]}"
        process = subprocess.Popen([*command, address], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        taken, _ = server.accept()
        taken.settimeout(30)
        assert taken.recv(1)  # it waits for the answer to its CONNECT
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=patience(30))
        taken.close()
    assert (process.returncode, out, error) == (130, b"", b"")


@pytest.mark.parametrize("error", [InvalidFieldError("f", "v", "fix it"), HalimedeError("a\nb"), RuntimeError("bug")])
def test_no_error_becomes_a_traceback(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    async def fails() -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        run(fails)
    assert ended.value.exit_code == 1
    said = capsys.readouterr().err
    assert said.startswith("Error: ")
    assert said.count("\n") == 1
