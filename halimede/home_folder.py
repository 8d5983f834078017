"""The folder in which a system on one machine (``halimede up``) keeps its files, and its lock.

One system at a time uses the folder, and the folder of another program or user is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
from pathlib import Path

from halimede.errors import HalimedeError

#: the folder if neither HALIMEDE_HOME nor --home is set
DEFAULT_HOME = "~/.local/state/halimede"
#: the name of the lock file, which has the id of the process that holds the lock
LOCK = "lock"
#: the files and folders that halimede makes in the folder
ENTRY_NAMES = frozenset(
    {LOCK, "run.json", "site", "clients", "broker", "gm", "nodes", "logs", "evaluation", "services.log"}
)
#: what to do about a folder that is not halimede's: the end of an error's text
FOLDER_FIX = "choose another one with HALIMEDE_HOME or --home"


def lock(home: Path) -> int:
    """Make the folder if it is missing, lock it, and write this process's id into its lock file.

    Returns the lock file's descriptor: the lock ends when the descriptor is closed. Does not wait: raises HalimedeError
    if another process has the lock, and for a folder that cannot be used, is not halimede's, or is another user's.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check(home)
        handle = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise HalimedeError(
            f"{home} cannot be used ({error.strerror}): set HALIMEDE_HOME or --home to a writable folder"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(handle, 32).decode(errors="replace").strip() or "?"
        os.close(handle)
        raise HalimedeError(
            f"a system already runs in {home} (pid {holder}): stop it first, or choose another --home"
        ) from error
    try:
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
    except OSError as error:
        os.close(handle)
        raise HalimedeError(
            f"{home / LOCK} cannot be used ({error.strerror}): "
            "move it, free some space, or choose another folder with HALIMEDE_HOME or --home"
        ) from error
    return handle


def clear(home: Path) -> None:
    """Remove all that halimede made in the folder except for the lock file; make the folder if it is missing.

    Raises HalimedeError if ``lock`` refuses the folder, and OSError if a file cannot be removed.
    """
    handle = lock(home)
    try:
        for path in home.iterdir():
            if path.name in ENTRY_NAMES - {LOCK}:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    finally:
        os.close(handle)


def _check(home: Path) -> None:
    """Raise HalimedeError for another user's folder, and for foreign files without a lock file of halimede.

    Raises OSError if the folder cannot be read.
    """
    owner = home.stat().st_uid
    if owner != os.geteuid():
        name = str(owner)
        with contextlib.suppress(KeyError):
            name = pwd.getpwuid(owner).pw_name
        raise HalimedeError(f"{home} belongs to the user {name}: run as that user, or {FOLDER_FIX}")
    foreign = sorted({path.name for path in home.iterdir()} - ENTRY_NAMES)
    if foreign and not _is_lock(home / LOCK):
        raise HalimedeError(f"{home} is not a folder of halimede, it has {foreign[0]!r}: {FOLDER_FIX}")


def _is_lock(path: Path) -> bool:
    """Whether a path is the lock file of a system: a file that is empty, or begins with digits (a process id)."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        content = file.read(32)
    return not content or content.isdigit()
