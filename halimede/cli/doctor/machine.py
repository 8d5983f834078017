"""The checks of ``doctor`` for this machine: its disks, a broker's allocator, and its TCP congestion control.

A Mosquitto with default allocator settings may be fast for a while, so a measurement is not enough. Its environment
shows the settings, if this user may read it: on Linux, for the user's own processes.

BBR paces packets with timers, at the estimated rate of the link. Over loopback there is no link to protect, and each
timer costs processor time: about a quarter of a broker's work on a frame of 150 KB. Halimede's clients disable it on
such connections (``bus/transport.py``); a broker and other clients use the machine's setting.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from halimede.access.mosquitto import ENVIRONMENT
from halimede.health_checks.check import Check, ok, problem, warning

#: bytes of free disk that are recommended, and required
ENOUGH_FREE, MIN_FREE = 2 * 2**30, 200 * 2**20
#: Linux's folder of processes; the state of a listening socket in its tables; the file with the congestion control
PROC = Path("/proc")
LISTENING = "0A"
CONGESTION_FILE = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def check_allocator(port: int, proc: Path = PROC) -> Check | None:
    """Return the row about the environment of the Mosquitto that listens on a port of this machine.

    None: no Mosquitto listens there, its environment cannot be read, or it runs with musl, which has no such settings.
    ``proc``: the folder of processes.
    """
    sockets = set(_sockets_on_port(port, proc))
    for process in proc.glob("[0-9]*") if sockets else ():
        try:
            if (process / "comm").read_text().strip() != "mosquitto" or not sockets & set(_sockets(process)):
                continue
            environment = (process / "environ").read_bytes().decode(errors="replace").split("\0")
            if "musl" in (process / "maps").read_text():
                return None  # the settings are those of glibc's allocator
        except OSError:
            continue
        missing = [f"{name}={value}" for name, value in ENVIRONMENT.items() if f"{name}={value}" not in environment]
        if missing:
            do = f"set in the broker's environment: {' '.join(missing)} (docs/security.md)"
            return warning(
                "allocator", "not tuned: the broker may take several times as long for frames of about 1 MB", do
            )
        return ok("allocator", "tuned in the broker for large frames")
    return None


def _sockets_on_port(port: int, proc: Path) -> Iterator[str]:
    """Yield the sockets that listen on a port, as links of file descriptors name them. Raises OSError."""
    for table in ("tcp", "tcp6"):
        file = proc / "net" / table
        for line in file.read_text().splitlines()[1:] if file.is_file() else ():
            _, local, _, state, *fields = line.split()
            if state == LISTENING and int(local.rpartition(":")[2], 16) == port:
                yield f"socket:[{fields[5]}]"


def _sockets(process: Path) -> Iterator[str]:
    """Yield the targets of a process's file descriptors; ``process`` is its folder. Raises OSError."""
    for descriptor in (process / "fd").iterdir():
        yield str(descriptor.readlink())


def check_congestion(file: Path = CONGESTION_FILE) -> Check | None:
    """Return the row about the congestion control of new connections; None: it cannot be read (not on Linux)."""
    try:
        return judge_congestion(file.read_text().strip())
    except OSError:
        return None


def judge_congestion(control: str) -> Check:
    """Return the row about a TCP congestion control, for a broker that is reached over loopback."""
    if not control.startswith("bbr"):
        return ok("congestion", f"TCP uses {control}, without pacing on this machine")
    what = f"TCP uses {control}, which paces: a broker on this machine needs 25 % more time for large frames"
    do = (
        "`sysctl -w net.ipv4.tcp_congestion_control=cubic`, then restart the broker (open connections do not "
        "change); leave it if this machine sends over a long, lossy link, for which BBR is made"
    )
    return warning("congestion", what, do)


def disks(home: Path) -> list[Check]:
    """Return a row about the free space of each disk on which a local system has files; ``home`` is its folder."""
    if not home.exists():
        return [ok("disk", f"no system has files on this machine ({home})")]
    checks, devices = [], set()
    for folder in (home, *(home / part for part in ("gm", "nodes", "broker", "logs"))):
        if not folder.exists() or (device := folder.stat().st_dev) in devices:
            continue
        devices.add(device)
        free = shutil.disk_usage(folder).free
        what = f"{free / 2**30:.1f} GiB free at {folder}"
        do = "free some space: stores, models and logs are there"
        judge = problem if free < MIN_FREE else warning
        checks.append(ok("disk", what) if free >= ENOUGH_FREE else judge("disk", what, do))
    return checks
