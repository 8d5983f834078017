"""``halimede lc``: what it takes, and what it says when it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede.errors import InvalidFieldError
from halimede.models import AddressPolicy
from services.lc.app import Config
from services.lc.main import KEEPALIVE_S, main, parse


def test_everything_given(tmp_path: Path) -> None:
    arguments = ["--node", "edge0", "--home", str(tmp_path), "--broker", "mqtt://u:p@broker:1884"]
    config, settings = parse([*arguments, "--label", "a/role=", "--label", "zone=x=y"])
    labels = {"a/role": "", "zone": "x=y"}
    assert config == Config("edge0", tmp_path, "mqtt://u:p@broker:1884", labels, http="127.0.0.1:0")
    assert (settings.host, settings.port) == ("broker", 1884)


def test_the_environment_gives_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALIMEDE_HOME", str(tmp_path))
    monkeypatch.setenv("HALIMEDE_BROKER", "elsewhere:1999")
    config, settings = parse(["--node", "edge0"])
    assert config.home == tmp_path
    assert settings.where == "elsewhere:1999"


@pytest.mark.parametrize("http", ["8686", "127.0.0.1", "127.0.0.1:99999", "http://127.0.0.1:80", "on"])
def test_a_bad_address_is_refused_with_what_to_write(http: str) -> None:
    with pytest.raises(InvalidFieldError, match=r"^--http: .*host:port.* or off"):
        parse(["--node", "edge0", "--http", http])


def test_where_models_may_come_from_is_said_by_option_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse(["--node", "edge0"])[0].fetch_policy == AddressPolicy()
    monkeypatch.setenv("HALIMEDE_FETCH_ALLOW", "private")
    assert parse(["--node", "edge0"])[0].fetch_policy == AddressPolicy.parse("private")
    told = parse(["--node", "edge0", "--fetch-allow", "models.lan"])[0].fetch_policy
    assert told == AddressPolicy.parse("models.lan")
    with pytest.raises(InvalidFieldError, match="--fetch-allow"):
        parse(["--node", "edge0", "--fetch-allow", "10.0.0.1/8"])


@pytest.mark.parametrize("label", ["", "=", "=x", "key", "k" * 300 + "=", "k=" + "v" * 300])
def test_a_bad_label_is_refused(label: str) -> None:
    with pytest.raises(InvalidFieldError, match="--label"):
        parse(["--node", "edge0", "--label", label])


def test_a_bad_broker_is_refused_without_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--node", "edge0", "--broker", "mqtt://user:hunter2@host:port"]) == 2
    said = capsys.readouterr().err
    assert "--broker" in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("home", "file"),
    [
        ("home", "home"),
        ("home", "home/nodes"),
        ("home", "home/nodes/edge0"),
        ("h" * 600, "other"),
        ("home", "home/nodes/edge0/lc.lock/file"),
    ],
    ids=["a file", "full of files", "a node's file", "too long", "a folder for a lock"],
)
def test_a_home_that_cannot_be_used_is_told_in_one_line(
    home: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halimede.log.configure", lambda **_: None)  # it would hold on to this test's stderr
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    assert main(["--node", "edge0", "--home", str(tmp_path / home)]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(f"halimede lc: {tmp_path / home}/nodes/edge0 cannot be used: ")
    assert "set --home" in said


@pytest.mark.parametrize(("value", "pods"), [("", False), ("0", False), ("1", True), ("true", True)])
def test_pods_may_come_by_environment(value: str, pods: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALIMEDE_PODS", value)
    assert parse(["--node", "edge0"])[0].pods is pods
    assert parse(["--node", "edge0", "--pods"])[0].pods


def test_an_environment_that_says_neither_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HALIMEDE_PODS", "maybe")
    assert main(["--node", "edge0"]) == 2
    assert "HALIMEDE_PODS" in capsys.readouterr().err


def test_with_pods_the_controller_has_credentials_of_its_own_alone(tmp_path: Path) -> None:
    (tmp_path / "lc").mkdir()
    (tmp_path / "lc" / "username").write_text("lc.edge0")
    (tmp_path / "lc" / "password").write_text("x")
    arguments = ["--node", "edge0", "--credentials", str(tmp_path)]
    with pytest.raises(InvalidFieldError, match="edge-worker"):
        parse(arguments)
    _, settings = parse([*arguments, "--pods"])
    assert settings.credentials.folder == tmp_path / "lc"


def test_where_folders_of_the_node_are_mounted_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse(["--node", "edge0", "--pods"])[0].host_root == Path("/host")
    monkeypatch.setenv("HALIMEDE_HOST_ROOT", "/mnt/node")
    assert parse(["--node", "edge0", "--pods"])[0].host_root == Path("/mnt/node")


def test_the_broker_reports_a_hung_controller_soon_enough_to_be_named_within_15_seconds() -> None:
    """MQTT 5, section 3.1.2.10: a broker ends a connection that is silent for one and a half keepalives."""
    assert 1.5 * KEEPALIVE_S <= 12


def test_the_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "--label node-role.kubernetes.io/edge=" in capsys.readouterr().out
