"""The checks of ``doctor`` that concern this machine: its disks, a broker's allocator, and its TCP congestion control.

A Mosquitto whose allocator is not pinned may be fast for a while, so its time tells too little. Its environment shows
it, where we may read it: on Linux, for a process of our own user.

BBR spaces packets by timers, at the rate that it believes the line to have. Over loopback there is no line to spare,
and each timer is processor time: about a quarter of what a broker spends on a frame of 150 KB. Our clients ask for none
of it on such connections (``bus/transport.py``); a broker and the clients of others take what the machine has set.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from halimede.access.mosquitto import ENVIRONMENT
from halimede.cli.doctor import Check, ok, problem, warning

#: bytes of disk that should be free, and that must be
ENOUGH, LEAST = 2 * 2**30, 200 * 2**20
PROC = Path("/proc")
LISTENING = "0A"
CONGESTION_FILE = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def check_allocator(port: int, proc: Path = PROC) -> Check | None:
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
            return warning(
                "allocator", "not pinned: frames of about 1 MB may take several times as long in the broker", do
            )
        return ok("allocator", "the broker's is pinned for large frames")
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


def check_congestion(file: Path = CONGESTION_FILE) -> Check | None:
    """Look at what new connections of this machine are given; None: there is nothing to see, as beside Linux."""
    try:
        return judge_congestion(file.read_text().strip())
    except OSError:
        return None


def judge_congestion(control: str) -> Check:
    """Judge a congestion control of TCP by its name, for a broker that is reached over loopback."""
    if not control.startswith("bbr"):
        return ok("congestion", f"TCP's control is {control}, which does not pace what stays on this machine")
    found = f"TCP's control is {control}, which paces: a broker on this machine spends a quarter more on large frames"
    do = (
        "`sysctl -w net.ipv4.tcp_congestion_control=cubic`, then start the broker again (connections keep what they "
        "were made with); leave it if this machine sends over a long, lossy way, which BBR is for"
    )
    return warning("congestion", found, do)


def disks(home: Path) -> list[Check]:
    """Look at the free space where a system of this machine keeps its files."""
    if not home.exists():
        return [ok("disk", f"no system keeps files on this machine ({home})")]
    checks, seen = [], set()
    for folder in (home, *(home / part for part in ("gm", "nodes", "broker", "logs"))):
        if not folder.exists() or (device := folder.stat().st_dev) in seen:
            continue
        seen.add(device)
        free = shutil.disk_usage(folder).free
        found = f"{free / 2**30:.1f} GiB free at {folder}"
        do = "make room: stores, models and logs are kept there"
        judge = problem if free < LEAST else warning
        checks.append(ok("disk", found) if free >= ENOUGH else judge("disk", found, do))
    return checks
