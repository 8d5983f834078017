"""Whether this machine's TCP paces what a broker on it sends.

BBR spaces packets by timers, at the rate that it believes the line to have. Over loopback there is no line to spare,
and each timer is processor time: about a quarter of what a broker spends on a frame of 150 KB. Our clients ask for none
of it on such connections (``bus/sockets.py``); a broker and the clients of others take what the machine has set.
"""

from __future__ import annotations

from pathlib import Path

from halimede.cli.doctor.check import Check, ok, warning

FILE = Path("/proc/sys/net/ipv4/tcp_congestion_control")
NAME = "congestion"


def look(file: Path = FILE) -> Check | None:
    """Look at what new connections of this machine are given; None: there is nothing to see, as beside Linux."""
    try:
        return judge(file.read_text().strip())
    except OSError:
        return None


def judge(control: str) -> Check:
    """Judge a congestion control of TCP by its name, for a broker that is reached over loopback."""
    if not control.startswith("bbr"):
        return ok(NAME, f"TCP's control is {control}, which does not pace what stays on this machine")
    found = f"TCP's control is {control}, which paces: a broker on this machine spends a quarter more on large frames"
    do = (
        "`sysctl -w net.ipv4.tcp_congestion_control=cubic`, then start the broker again (connections keep what they "
        "were made with); leave it if this machine sends over a long, lossy way, which BBR is for"
    )
    return warning(NAME, found, do)
