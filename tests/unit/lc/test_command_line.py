"""``python -m services.lc``: what it takes, and what it says when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede.errors import InvalidFieldError
from services.lc.__main__ import main, parse
from services.lc.app import Config


def test_everything_given(tmp_path: Path) -> None:
    arguments = ["--node", "edge0", "--home", str(tmp_path), "--broker", "mqtt://u:p@broker:1884"]
    config, settings = parse([*arguments, "--label", "a/role=", "--label", "zone=x=y"])
    assert config == Config("edge0", tmp_path, "mqtt://u:p@broker:1884", {"a/role": "", "zone": "x=y"})
    assert (settings.host, settings.port) == ("broker", 1884)


def test_the_environment_gives_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALIMEDE_HOME", str(tmp_path))
    monkeypatch.setenv("HALIMEDE_BROKER", "elsewhere:1999")
    config, settings = parse(["--node", "edge0"])
    assert config.home == tmp_path
    assert settings.where == "elsewhere:1999"


@pytest.mark.parametrize("label", ["", "=", "=x", "key", "k" * 300 + "=", "k=" + "v" * 300])
def test_a_bad_label_is_refused(label: str) -> None:
    with pytest.raises(InvalidFieldError, match="--label"):
        parse(["--node", "edge0", "--label", label])


def test_a_bad_broker_is_refused_without_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--node", "edge0", "--broker", "mqtt://user:hunter2@host:port"]) == 2
    said = capsys.readouterr().err
    assert "--broker" in said
    assert "hunter2" not in said


def test_the_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "--label node-role.kubernetes.io/edge=" in capsys.readouterr().out
