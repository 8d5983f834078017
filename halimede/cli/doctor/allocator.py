"""Whether a Mosquitto on this machine has its allocator pinned, which is what decides how fast large frames pass it.

Its time tells too little: it may be fast for a while without. Its environment says it, where we may read it: on Linux,
for a process of our own user.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from halimede.access.mosquitto import ENVIRONMENT
from halimede.cli.doctor.check import Check, ok, warning

PROC = Path("/proc")
NAME, LISTENING = "allocator", "0A"


def look(port: int, proc: Path = PROC) -> Check | None:
    """Look at the environment of the Mosquitto that listens on a port of this machine; None: there is none to see."""
    sockets = set(_listening(port, proc))
    for process in proc.glob("[0-9]*") if sockets else ():
        try:
            if (process / "comm").read_text().strip() != "mosquitto" or not sockets & set(_sockets(process)):
                continue
            told = (process / "environ").read_bytes().decode(errors="replace").split("\0")
            if "musl" in (process / "maps").read_text():
                return None  # these are glibc's
        except OSError:
            continue
        missing = [f"{name}={value}" for name, value in ENVIRONMENT.items() if f"{name}={value}" not in told]
        if missing:
            do = f"set in the broker's environment: {' '.join(missing)} (docs/security.md)"
            return warning(NAME, "not pinned: frames of about 1 MB may take several times as long in the broker", do)
        return ok(NAME, "the broker's is pinned for large frames")
    return None


def _listening(port: int, proc: Path) -> Iterator[str]:
    """Give what the links of file descriptors of sockets say that listen on a port."""
    for table in ("tcp", "tcp6"):
        file = proc / "net" / table
        for line in file.read_text().splitlines()[1:] if file.is_file() else ():
            _, local, _, state, *rest = line.split()
            if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                yield f"socket:[{rest[5]}]"


def _sockets(process: Path) -> Iterator[str]:
    for each in (process / "fd").iterdir():
        yield str(each.readlink())
