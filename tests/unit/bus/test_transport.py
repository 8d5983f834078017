"""Sockets of both clients: nothing that is ready to leave waits."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from halimede.bus.transport import disable_socket_delays, within_machine

KNOWN = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
paced = pytest.mark.skipif(
    not KNOWN.exists() or "cubic" not in KNOWN.read_text(), reason="only where the kernel can do both"
)


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname(), 5.0)
        return ours, server.accept()[0]


def test_small_packets_leave_at_once() -> None:
    ours, theirs = pair()
    with ours, theirs:
        disable_socket_delays(ours)
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@paced
def test_what_stays_within_a_machine_is_not_paced() -> None:
    ours, theirs = pair()
    with ours, theirs:
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        assert within_machine(ours)
        disable_socket_delays(ours)
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"cubic"


@paced
def test_what_leaves_the_machine_is_sent_as_the_machine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pair()
    with ours, theirs:
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        monkeypatch.setattr("halimede.bus.transport.within_machine", lambda _: False)
        disable_socket_delays(ours)
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == b"reno"


def test_a_connection_that_ended_at_once_is_no_error_here() -> None:
    ours, theirs = pair()
    with ours, theirs:
        ours.shutdown(socket.SHUT_RDWR)
        theirs.shutdown(socket.SHUT_RDWR)
        disable_socket_delays(ours)
        assert not within_machine(ours)
