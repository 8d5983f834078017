"""Files and folders of a site's credentials: written atomically, by one command at a time, folders for the owner only.

A site's folder has ``broker``, ``emqx``, ``gm``, and below ``nodes``, ``pools``, ``cameras``, ``operators``,
``consumers`` and ``bridges`` a folder for each user.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path, PurePath

from halimede.access.site import FOLDERS, NODE_ROLES, POOLS, Principal, Site, role_name
from halimede.errors import HalimedeError
from halimede.system.files import write_atomic
from halimede.topic import Role

#: modes of a secret file, of any other file, and of a folder
SECRET, PUBLIC, OWN_FOLDER = 0o600, 0o644, 0o700
#: all files that halimede may write into a user's folder: with passwords, and with certificates
LOGIN_FILES = ("username", "password")
TLS_FILES = ("ca.crt", "tls.crt", "tls.key")
#: the files of a place's own broker
BRIDGE_FILES = (*TLS_FILES, "passwords", "acl", "mosquitto.conf")


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Make a site's folder and lock it until the block ends: two commands at once would revert each other's changes.

    Raises HalimedeError at once if another command has the lock, OSError.
    """
    make_folder(folder)
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, SECRET)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise HalimedeError(f"{folder} is being changed by another command: try again when it is done") from None
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Make a folder, unless it exists, and let only its owner read it."""
    path.mkdir(mode=OWN_FOLDER, parents=True, exist_ok=True)  # parents outside of the site follow the umask
    if path.stat().st_mode & 0o077:
        path.chmod(OWN_FOLDER)


def make_folders(folder: Path, below: PurePath) -> Path:
    """Make the folder ``folder/below``, each level of ``below`` readable only by its owner; return it."""
    for part in below.parts:
        folder /= part
        make_folder(folder)
    return folder


def write(path: Path, content: bytes | str, mode: int = PUBLIC, *, lasting: bool = False) -> bool:
    """Replace a file atomically by one with this content and mode; return whether that was necessary.

    ``lasting``: wait until the file is on disk, so that it survives a power cut. Other files can be made again.
    """
    data = content.encode() if isinstance(content, str) else content
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == data and path.stat().st_mode & 0o777 == mode:
            return False
    write_atomic(path, data, mode=mode, durable=lasting)
    return True


def text(path: Path) -> str | None:
    """Return a small file's text without white space around it; None if it does not exist or is not UTF-8."""
    try:
        return path.read_text().strip()
    except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
        return None


def remove(path: Path, names: tuple[str, ...]) -> bool:
    """Remove the files with these names from the folder ``path``; return whether one of them existed."""
    existed = False
    for name in names:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (path / name).unlink()
            existed = True
    return existed


def remove_others(site: Site, folder: Path) -> tuple[str, ...]:
    """Remove the credentials below ``folder`` of users that are no longer in the site; return their user names.

    Of a bridge, the files of its place's broker as well. Folders that are empty then are removed.
    """
    usernames = {principal.username for principal in site.principals()}
    removed_users = [user for user in _existing_users(folder) if user.username not in usernames]
    removed = []
    for principal in removed_users:
        path = folder / principal.folder
        broker_folder = path.parent / "broker" if principal.role is Role.BRIDGE else path
        had_broker_files = principal.role is Role.BRIDGE and remove(broker_folder, BRIDGE_FILES)
        if remove(path, LOGIN_FILES + TLS_FILES) or had_broker_files:
            removed.append(principal.username)
        for emptied in (broker_folder, path, path.parent):
            with contextlib.suppress(OSError):  # the folder has other files, which must stay
                emptied.rmdir()
    return tuple(removed)


def _existing_users(folder: Path) -> Iterator[Principal]:
    """Yield the users whose folders exist below ``folder``."""
    for node in _children(folder / "nodes"):
        names = {path.name for path in _children(node)}
        yield from (Principal(role, node.name) for role in NODE_ROLES if role_name(role) in names)
    pools = {path.name for path in _children(folder / "pools")}
    yield from (Principal(role) for role in POOLS if role_name(role) in pools)
    for role, name in FOLDERS.items():
        yield from (Principal(role, path.name) for path in _children(folder / name))
    if (folder / "gm").is_dir():
        yield Principal(Role.GM)


def _children(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted; empty if it does not exist."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return []
