"""The broker is found by option, environment, run file and default, in this order."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from halimede.cli.broker_address import find
from halimede.cli.client import not_let_in
from halimede.errors import HalimedeError, InvalidFieldError


def environment(home: Path, **more: str) -> dict[str, str]:
    return {"HALIMEDE_HOME": str(home), **more}


def run_file(home: Path, content: str) -> None:
    (home / "run.json").write_text(content)


def where(found: object) -> str:
    return str(found).split(" ", maxsplit=1)[0]


@pytest.mark.parametrize(
    ("option", "told", "found"),
    [
        ("there:2000", {"HALIMEDE_BROKER": "here:3000"}, "there:2000"),
        ("", {"HALIMEDE_BROKER": "mqtt://here:3000"}, "here:3000"),
        ("", {}, "127.0.0.1:1000"),
    ],
    ids=["option", "environment", "run file"],
)
def test_the_option_comes_before_the_environment_and_that_before_the_run_file(
    option: str, told: dict[str, str], found: str, tmp_path: Path
) -> None:
    run_file(tmp_path, json.dumps({"broker": "mqtt://127.0.0.1:1000", "pid": 1}))
    assert where(find(option, environment(tmp_path, **told))) == found


def test_the_run_file_of_a_killed_system_is_not_followed(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    run_file(tmp_path, json.dumps({"broker": "mqtt://127.0.0.1:1000", "pid": process.pid}))
    with pytest.raises(HalimedeError, match="was killed"):
        find("", environment(tmp_path))


def test_without_any_of_them_it_is_the_usual_port_here(tmp_path: Path) -> None:
    assert where(find("", environment(tmp_path))) == "localhost:1883"


def test_the_default_names_the_absent_run_file_and_the_export_for_another_home(tmp_path: Path) -> None:
    address = find("", environment(tmp_path))
    refused = str(not_let_in(address, PermissionError("Not authorized")))
    for text in (str(address), refused):
        assert f"there is no {tmp_path / 'run.json'}" in text
        assert "`export HALIMEDE_HOME=DIR`" in text
    assert "HALIMEDE_HOME" not in str(find("here:2000", environment(tmp_path)))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"broker": 5}', '{"broker": "http://x"}', "\x00", '{"pid": 2147483648}']
)
def test_a_broken_run_file_is_named(tmp_path: Path, content: str) -> None:
    run_file(tmp_path, content)
    with pytest.raises(InvalidFieldError, match=r"run\.json"):
        find("", environment(tmp_path))


@pytest.mark.parametrize("text", ["host:port", "http://host", "a b", "host:99999", "host:0", "mqtt://"])
def test_an_address_that_is_none_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(InvalidFieldError, match="--broker"):
        find(text, {})
