"""A node's credentials: the LC has its own, each worker those of its role, and nobody anybody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from halimede.errors import InvalidFieldError
from services.lc.credentials import NodeCredentials
from services.lc.main import main, parse
from services.lc.supervisor.linux_process import inherited_variables


def user(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"username": folder.name, "password": f"hunter2-{folder.name}", **files}.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The node's folder of a site with passwords."""
    for word in ("lc", "edge-worker", "cloud-worker"):
        user(tmp_path / "edge0" / word)
    return tmp_path / "edge0"


def test_the_controller_shows_its_own(node: Path, tmp_path: Path) -> None:
    _, settings = parse(["--node", "edge0", "--home", str(tmp_path), "--credentials", str(node)])
    assert settings.login() == ("lc", "hunter2-lc")


def test_the_environment_names_them_as_well(node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALIMEDE_CREDENTIALS", str(node))
    config, _ = parse(["--node", "edge0", "--home", str(tmp_path)])
    assert config.credentials == NodeCredentials(node)


def test_an_empty_option_means_none_whatever_the_environment_says(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALIMEDE_CREDENTIALS", str(node))
    config, settings = parse(["--node", "edge0", "--home", str(tmp_path), "--credentials", ""])
    assert (config.credentials, settings.credentials) == (None, None)


def test_a_worker_is_told_the_folder_of_its_role(node: Path) -> None:
    assert NodeCredentials(node).worker("edge") == node / "edge-worker"
    assert NodeCredentials(node).worker("cloud") == node / "cloud-worker"


def test_a_worker_inherits_neither_the_folder_of_its_controller_nor_what_stood_in_its_address(
    node: Path, tmp_path: Path
) -> None:
    assert inherited_variables({"HALIMEDE_CREDENTIALS": str(node), "HALIMEDE_X": "1"}) == {"HALIMEDE_X": "1"}
    arguments = ["--node", "edge0", "--home", str(tmp_path), "--credentials", str(node)]
    config, _ = parse([*arguments, "--broker", "mqtt://lc.edge0:hunter2@broker:1999/site1"])
    assert config.broker == "mqtt://broker:1999/site1"


def damaged(node: Path, how: str) -> tuple[Path, str, str]:
    """Return the folder to give, the broker's address, and a part of what is said."""
    broker = "mqtt://127.0.0.1"
    if how == "too long a name":
        return node.parent / ("n" * 300), broker, "File name too long"
    if how == "missing":
        return node.parent / "nobody", broker, "there is no such folder"
    if how == "of one user":
        return node / "lc", broker, "the folder of one user: give the node's"
    if how == "a role short":
        (node / "cloud-worker" / "username").unlink()
        (node / "cloud-worker" / "password").unlink()
        (node / "cloud-worker").rmdir()
        return node, broker, "it has no folder cloud-worker"
    if how == "an empty role":
        for file in (node / "edge-worker").iterdir():
            file.unlink()
        return node, broker, "it holds no credentials"
    if how == "for TLS":
        user(node / "lc", **{"tls.crt": "x", "tls.key": "x"})
        return node, broker, "write the broker's address as mqtts://"
    user(node / "lc", **{"tls.crt": "x", "tls.key": "x"})
    return node, "mqtts://127.0.0.1", "its files do not fit"


@pytest.mark.parametrize(
    "how",
    ["missing", "too long a name", "of one user", "a role short", "an empty role", "for TLS", "no certificate at all"],
)
def test_a_folder_that_cannot_serve_is_one_line_that_says_why(
    node: Path, tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, broker, part = damaged(node, how)
    arguments = ["--node", "edge0", "--home", str(tmp_path), "--credentials", str(folder), "--broker", broker]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"halimede lc: --credentials: '{str(folder)[:20]}")
    assert part in said
    assert len(said.splitlines()) == 1
    assert "hunter2" not in said


def test_the_home_of_nobody_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFieldError, match=r"--credentials.*no such user"):
        parse(["--node", "edge0", "--home", str(tmp_path), "--credentials", "~no-such-user/site"])
