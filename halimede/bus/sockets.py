"""What both clients ask of a connected socket: that nothing which is ready to leave waits."""

from __future__ import annotations

import contextlib
import socket

#: what is asked for on a way on which nothing can be congested: most machines have it, and it paces nothing
UNPACED = b"cubic"


def hasten(sock: socket.socket) -> None:
    """Switch off what holds a packet back: Nagle's algorithm, and within a machine pacing.

    Nagle's algorithm against delayed acknowledgements makes 40 ms of a QoS 1 round trip. A machine's congestion control
    may be one that paces (BBR): good on a long way, and a tenth of a sample's processor time where there is none.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is not None and within_machine(sock):
        with contextlib.suppress(OSError):  # not to be had here
            sock.setsockopt(socket.IPPROTO_TCP, option, UNPACED)


def within_machine(sock: socket.socket) -> bool:
    """Whether a socket's both ends have one address: then it is this machine's. Not so of one that has ended."""
    try:
        return bool(sock.getpeername()[0] == sock.getsockname()[0])
    except OSError:  # a broker may hang up at once
        return False
