"""The folder of a system: a foreign one is refused and stays as it is, an own one of any age is taken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from halimede import home_folder
from halimede.errors import HalimedeError
from halimede.home_folder import clear, lock


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def take(home: Path) -> None:
    os.close(lock(home))


@pytest.mark.parametrize("use", [take, clear])
@pytest.mark.parametrize(
    "names", [["notes.txt"], ["site", "notes.txt"], ["nodes", "gm", ".bashrc"], ["lock.txt"], ["lock", "notes.txt"]]
)
def test_a_foreign_folder_is_refused_and_not_touched(tmp_path: Path, names: list[str], use: object) -> None:
    for name in names:
        (tmp_path / name).write_text("mine")
    before = content(tmp_path)
    message = r"is not a folder of halimede, it has '.+': choose another one with .*--home"
    with pytest.raises(HalimedeError, match=message):
        use(tmp_path)  # type: ignore[operator]
    assert content(tmp_path) == before


@pytest.mark.parametrize("names", [[], ["nodes", "gm"], ["evaluation"], ["lock", "anything"], ["run.json", "site"]])
def test_a_folder_of_halimede_is_taken_whatever_made_it(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch() if name in {"lock", "run.json"} else (tmp_path / name).mkdir()
    take(tmp_path)
    assert (tmp_path / "lock").read_text() == str(os.getpid())
    take(tmp_path)


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_folder.os, "geteuid", lambda: tmp_path.stat().st_uid + 1)  # type: ignore[attr-defined]
    with pytest.raises(HalimedeError, match=r"belongs to the user .*: run as that user"):
        lock(tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_halimede_made_is_removed_and_the_rest_stays(tmp_path: Path) -> None:
    take(tmp_path)
    (tmp_path / "nodes" / "edge0").mkdir(parents=True)
    (tmp_path / "run.json").touch()
    (tmp_path / "notes.txt").touch()
    clear(tmp_path)
    assert sorted(content(tmp_path)) == ["lock", "notes.txt"]


def test_the_folder_of_a_running_system_is_not_cleared(tmp_path: Path) -> None:
    handle = lock(tmp_path)
    (tmp_path / "nodes").mkdir()
    with pytest.raises(HalimedeError, match=rf"already runs in .* \(pid {os.getpid()}\)"):
        clear(tmp_path)
    assert (tmp_path / "nodes").exists()
    os.close(handle)
