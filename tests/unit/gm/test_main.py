"""The process: its options, its exit codes, and what a user reads on standard error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.gm.app import GlobalManager
from services.gm.cluster.sqlite_file import Database, StoreError
from services.gm.main import main

NOBODY = "mqtt://127.0.0.1:1"


def refusal(capsys: pytest.CaptureFixture[str], store: Path, *options: str) -> str:
    """Return what the process says as it ends with exit code 2."""
    assert main(["--store", str(store), *options]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


def test_a_wrong_address_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--broker: 'http://x' is not accepted" in refusal(capsys, tmp_path, "--broker", "http://x")


@pytest.mark.parametrize(("files", "said"), [((), "it holds no credentials"), (("tls.crt", "tls.key"), "mqtts://")])
def test_credentials_that_cannot_serve_are_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: tuple[str, ...], said: str
) -> None:
    for file in files:
        (tmp_path / file).write_text("")
    error = refusal(capsys, tmp_path, "--broker", NOBODY, "--credentials", str(tmp_path)).splitlines()
    assert error[0].startswith(f"halimede gm: --credentials: '{tmp_path}'")
    assert (len(error), said in error[0]) == (1, True)


def test_a_store_in_use_is_named_with_what_to_do_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Database(tmp_path / "store.db"):
        error = refusal(capsys, tmp_path, "--broker", NOBODY)
    assert str(tmp_path / "store.db") in error
    assert "--store" in error


def test_what_goes_wrong_in_a_background_task_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def breaks(_: GlobalManager) -> None:
        raise StoreError("the disk is full: free some space")

    monkeypatch.setattr(GlobalManager, "_complain", breaks)
    assert "halimede gm: the disk is full: free some space\n" in refusal(capsys, tmp_path, "--broker", NOBODY)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_without_a_broker_it_says_so_goes_on_and_ends_cleanly_when_asked(
    tmp_path: Path, number: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "halimede", "gm", "--store", str(tmp_path), "--broker", NOBODY],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HALIMEDE_LOG": "json"},
    )
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "bus down" in line and '"client": "halimede-gm"' in line:
                break
        assert "127.0.0.1:1" in lines[-1]
        process.send_signal(number)
        rest = process.stderr.read()
        assert process.wait(30) == 0
        assert "Traceback" not in rest
        assert "global manager stopped" in rest
    finally:
        process.kill()
        process.wait()


def test_help_names_the_options_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for part_of_help in ("--store DIR", "--broker URL", "HALIMEDE_BROKER", "exit code"):
        assert part_of_help in text
