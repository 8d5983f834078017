"""The network that a benchmark runs in: loopback alone, with the congestion control that the kernel comes with.

Machines differ in it. BBR paces what each socket sends, over loopback too, and a broker's way has twice as many sockets
as others: figures would say more of the machine's settings than of the ways. Linux alone, and only as root; elsewhere
it is the machine's network.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

SETTING = Path("/proc/sys/net/ipv4/tcp_congestion_control")
#: what the kernel comes with
PLAIN = "cubic"
#: from linux/sched.h, linux/sockios.h and linux/if.h
NEW_NETWORK, GET_FLAGS, SET_FLAGS, UP = 0x40000000, 0x8913, 0x8914, 0x1
REQUEST = struct.Struct("16sh22x")


def congestion() -> str:
    """Return the congestion control of the network that this process is in, empty where there is no telling."""
    return SETTING.read_text().strip() if SETTING.exists() else ""


@contextlib.contextmanager
def own() -> Iterator[None]:
    """Have this thread, and the processes that it starts, in a network of their own within the block.

    Raises OSError where that is not allowed.
    """
    with Path("/proc/thread-self/ns/net").open("rb") as before:
        _call("unshare", NEW_NETWORK)
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
                name, flags = REQUEST.unpack(fcntl.ioctl(any_socket, GET_FLAGS, REQUEST.pack(b"lo", 0)))
                fcntl.ioctl(any_socket, SET_FLAGS, REQUEST.pack(name, flags | UP))
            SETTING.write_text(PLAIN)
            yield
        finally:
            _call("setns", before.fileno(), NEW_NETWORK)


def _call(name: str, *given: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*given):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@contextlib.contextmanager
def chosen(wanted: str) -> Iterator[dict[str, str]]:
    """Be in a network of its own within the block if ``wanted`` is "own" and that is allowed.

    Gives what is written beside the figures.
    """
    machine = congestion()
    with contextlib.ExitStack() as stack:
        if wanted == "own":
            try:
                stack.enter_context(own())
            except OSError as error:
                print(f"in the machine's network, since a namespace of its own is not to be had: {error}", flush=True)
                wanted = "machine"
        here = congestion()
        print(f"network: {wanted}, congestion control {here or 'unknown'} (the machine's: {machine})", flush=True)
        yield {"network": wanted, "congestion_control": here, "of_the_machine": machine}
