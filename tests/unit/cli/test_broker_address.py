"""The broker is found by option, environment, run file and default, in this order."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from halimede.cli.broker_address import BrokerAddress, find
from halimede.cli.client import not_let_in
from halimede.errors import HalimedeError, InvalidFieldError


def address(home: Path, option: str = "", **told: str) -> BrokerAddress:
    return find(option, {"HALIMEDE_HOME": str(home), **told})


@pytest.mark.parametrize(
    ("option", "told", "pid", "found"),
    [
        ("there:2000", {"HALIMEDE_BROKER": "here:3000"}, 1, "there:2000"),
        ("", {"HALIMEDE_BROKER": "mqtt://here:3000"}, 1, "here:3000"),
        ("", {}, 1, "127.0.0.1:1000"),
        ("", {}, None, "localhost:1883"),
    ],
    ids=["option", "environment", "run file", "the usual port here"],
)
def test_the_option_comes_before_the_environment_and_that_before_the_run_file(
    option: str, told: dict[str, str], pid: int | None, found: str, tmp_path: Path
) -> None:
    if pid:
        (tmp_path / "run.json").write_text(json.dumps({"broker": "mqtt://127.0.0.1:1000", "pid": pid}))
    assert str(address(tmp_path, option, **told)).split(" ", maxsplit=1)[0] == found


def test_the_run_file_of_a_killed_system_is_not_followed(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    (tmp_path / "run.json").write_text(json.dumps({"broker": "mqtt://127.0.0.1:1000", "pid": process.pid}))
    with pytest.raises(HalimedeError, match="was killed"):
        address(tmp_path)


def test_the_default_names_the_absent_run_file_and_the_export_for_another_home(tmp_path: Path) -> None:
    for text in (str(address(tmp_path)), str(not_let_in(address(tmp_path), PermissionError("Not authorized")))):
        assert f"there is no {tmp_path / 'run.json'}" in text
        assert "`export HALIMEDE_HOME=DIR`" in text
    assert "HALIMEDE_HOME" not in str(address(tmp_path, "here:2000"))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"broker": 5}', '{"broker": "http://x"}', "\x00", '{"pid": 2147483648}']
)
def test_a_broken_run_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InvalidFieldError, match=r"run\.json"):
        address(tmp_path)


@pytest.mark.parametrize("text", ["host:port", "http://host", "a b", "host:99999", "host:0", "mqtt://"])
def test_an_address_that_is_none_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(InvalidFieldError, match="--broker"):
        find(text, {})
