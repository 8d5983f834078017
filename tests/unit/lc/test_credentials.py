"""A node's credentials: the LC has its own, each worker those of its role, and nobody anybody else's."""

from __future__ import annotations

import shutil
from collections.abc import Callable
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


def add_certificate(node: Path) -> None:
    user(node / "lc", **{"tls.crt": "x", "tls.key": "x"})


def empty_role(node: Path) -> None:
    for file in (node / "edge-worker").iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "folder", "scheme", "part"),
    [
        (Path.exists, "../nobody", "mqtt", "there is no such folder"),
        (Path.exists, "../" + "n" * 300, "mqtt", "File name too long"),
        (Path.exists, "lc", "mqtt", "the folder of one user: give the node's"),
        (lambda node: shutil.rmtree(node / "cloud-worker"), "", "mqtt", "it has no folder cloud-worker"),
        (empty_role, "", "mqtt", "it holds no credentials"),
        (add_certificate, "", "mqtt", "write the broker's address as mqtts://"),
        (add_certificate, "", "mqtts", "its files do not fit"),
    ],
    ids=["missing", "too long a name", "of one user", "a role short", "an empty role", "for TLS", "no certificate"],
)
def test_a_folder_that_cannot_serve_is_one_line_that_says_why(
    node: Path,
    damage: Callable[[Path], object],
    folder: str,
    scheme: str,
    part: str,
    *,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(node)
    arguments = ["--node", "edge0", "--home", str(node.parent), "--credentials", str(node / folder)]
    assert main([*arguments, "--broker", f"{scheme}://127.0.0.1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"halimede lc: --credentials: '{str(node)[:20]}")
    assert part in said
    assert (len(said.splitlines()), "hunter2" in said) == (1, False)


@pytest.mark.parametrize("option", ["--home", "--credentials"])
def test_the_home_of_nobody_is_refused(option: str) -> None:
    with pytest.raises(InvalidFieldError, match=f"{option}.*no such user"):
        parse(["--node", "edge0", option, "~no-such-user/site"])
