"""Passwords: random, kept, readable by their owners alone, and written as Mosquitto's own tool would."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest

from halimede.access.files import lock
from halimede.access.passwords import hash_password, make_passwords
from halimede.access.site import Principal, Site
from halimede.errors import HalimedeError
from halimede.topic import Role
from tests.programs import run_program

SITE = Site(nodes=["edge0", "cloud0"], cameras=["cam0"], consumers=["viewer"])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the folder with passwords of SITE."""
    make_passwords(SITE, tmp_path)
    return tmp_path


def content(folder: Path) -> dict[str, tuple[int, bytes]]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def test_everyone_has_a_name_and_a_password_of_their_own(tmp_path: Path) -> None:
    report = make_passwords(SITE, tmp_path / "site")
    users = list(SITE.principals())
    assert report.created == tuple(user.username for user in users)
    told = [(tmp_path / "site" / user.folder / "password").read_text().strip() for user in users]
    assert len(set(told)) == len(users) == 10
    assert all(len(password) >= 43 for password in told)
    for user in users:
        assert (tmp_path / "site" / user.folder / "username").read_text() == f"{user.username}\n"
    lines = (tmp_path / "site" / "broker" / "passwords").read_text().splitlines()
    assert len({line.split("$")[3] for line in lines}) == len(users)  # a salt for each


def test_only_their_owner_can_read_them_whatever_the_umask_is(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    make_passwords(SITE, folder)
    for path in [folder, *folder.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_second_run_changes_nothing_and_a_new_node_nobody_elses_password(home: Path) -> None:
    before = content(home)
    assert not make_passwords(SITE, home).changed
    assert content(home) == before
    more = Site(nodes=[*SITE.nodes, "edge7"], cameras=SITE.cameras, consumers=SITE.consumers)
    assert make_passwords(more, home).created == ("lc.edge7", "edge-worker.edge7", "cloud-worker.edge7")
    after = content(home)
    assert {name for name in before if before[name] != after[name]} == {"broker/acl", "broker/passwords"}
    old = before["broker/passwords"][1].splitlines()
    assert [line for line in after["broker/passwords"][1].splitlines() if b"edge7" not in line] == old


def test_a_user_that_is_gone_has_neither_a_password_nor_rights(home: Path) -> None:
    (home / "nodes" / "cloud0" / "note.txt").write_text("not ours")
    report = make_passwords(Site(nodes=["edge0"], cameras=["cam0"], consumers=["viewer"]), home)
    assert report.removed == ("lc.cloud0", "edge-worker.cloud0", "cloud-worker.cloud0")
    assert [path.name for path in (home / "nodes" / "cloud0").iterdir()] == ["note.txt"]
    assert "cloud0" not in (home / "broker" / "passwords").read_text() + (home / "broker" / "acl").read_text()


def test_rotation_makes_new_ones_for_all(home: Path) -> None:
    own = home / Principal(Role.GM).folder / "password"
    before = own.read_text()
    assert len(make_passwords(SITE, home, rotate=True).created) == 10
    assert own.read_text() != before


def test_a_broken_line_in_the_brokers_file_is_made_anew(home: Path) -> None:
    passwords, own = home / "broker" / "passwords", home / "gm" / "password"
    lines = passwords.read_text().splitlines()
    of_another = "gm:" + lines[1].partition(":")[2]
    for broken in ("gm:", "gm:$7$101$%%%$x", "gm:$6$a$b", "gm:$7$0$$", "nonsense", "", of_another):
        passwords.write_text("\n".join([broken, *lines[1:]]))
        make_passwords(SITE, home)
        written = passwords.read_text().splitlines()
        assert written[1:] == lines[1:]
        _, _, rounds, salt, _ = written[0].split("$")
        assert int(rounds) == 101
        assert written[0] == f"gm:{hash_password(own.read_text().strip(), salt=base64.b64decode(salt))}"


def test_it_is_the_form_that_mosquittos_own_tool_writes(tmp_path: Path) -> None:
    theirs = tmp_path / "passwords"
    theirs.write_text("gm:secret\n")
    theirs.chmod(0o600)
    run_program("mosquitto_passwd", "-U", theirs, check=True)
    line = theirs.read_text().strip().partition(":")[2]
    _, kind, rounds, salt, digest = line.split("$")
    assert kind == "7"
    assert line == hash_password("secret", salt=base64.b64decode(salt), iterations=int(rounds))
    assert len(base64.b64decode(digest)) == hashlib.sha512().digest_size


def test_two_commands_at_once_do_not_mix(tmp_path: Path) -> None:
    with lock(tmp_path), pytest.raises(HalimedeError, match="being changed by another command"):
        make_passwords(SITE, tmp_path)
    assert make_passwords(SITE, tmp_path).changed
