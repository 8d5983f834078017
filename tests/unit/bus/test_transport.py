"""Sockets of both clients: nothing that is ready to leave waits."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from halimede.bus.settings import Client
from halimede.bus.transport import (
    Ended,
    disable_socket_delays,
    is_within_machine,
    refusal_error,
    tls_error,
)
from halimede.errors import BrokerNameError, DisconnectedError, NotAllowedError
from tests.scripted import accepted

KNOWN = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
paced = pytest.mark.skipif(
    not KNOWN.exists() or "cubic" not in KNOWN.read_text(), reason="only where the kernel can do both"
)


def pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname(), 5.0)
        return ours, server.accept()[0]


async def test_small_packets_leave_at_once(client: Client) -> None:
    async with accepted(client) as (bus, _):
        link: Any = bus._link
        sock = link._sock if client == "lean" else link._client.socket()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@paced
@pytest.mark.parametrize(("is_within", "control"), [(True, b"cubic"), (False, b"reno")])
def test_what_stays_within_a_machine_is_not_paced_and_the_rest_is_sent_as_the_machine_says(
    monkeypatch: pytest.MonkeyPatch, is_within: bool, control: bytes
) -> None:
    ours, theirs = pair()
    with ours, theirs:
        ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        if is_within:
            assert is_within_machine(ours)
        else:
            monkeypatch.setattr("halimede.bus.transport.is_within_machine", lambda _: False)
        disable_socket_delays(ours)
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0") == control


def test_a_connection_that_ended_at_once_is_no_error_here() -> None:
    ours, theirs = pair()
    with ours, theirs:
        ours.shutdown(socket.SHUT_RDWR)
        theirs.shutdown(socket.SHUT_RDWR)
        disable_socket_delays(ours)
        assert not is_within_machine(ours)


@pytest.mark.parametrize(
    ("ended", "secure", "kind", "text"),
    [
        (Ended("refused: Banned", barred=True), False, NotAllowedError, "refused: Banned"),
        (Ended("refused: Banned", barred=True), True, NotAllowedError, "refused: Banned"),
        (Ended("refused: Server busy", explained=True), True, DisconnectedError, "refused: Server busy"),
        (Ended("it broke"), True, NotAllowedError, "it broke: with TLS, a broker closes"),
        (Ended("broke"), False, DisconnectedError, "broke before the broker answered; a broker that requires TLS"),
    ],
)
def test_a_refused_client_is_told_what_to_do(
    ended: Ended, secure: bool, kind: type[DisconnectedError], text: str
) -> None:
    error = refusal_error(ended, secure=secure)
    assert type(error) is kind
    assert str(error).startswith(text)


def failure(error: Any, **fields: object) -> OSError:
    for name, value in fields.items():
        setattr(error, name, value)
    return error  # type: ignore[no-any-return]


def not_verified(code: int) -> OSError:
    return failure(ssl.SSLCertVerificationError("not verified"), verify_code=code, verify_message="no such authority")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (not_verified(62), BrokerNameError, "broker.example"),
        (not_verified(64), BrokerNameError, "broker.example"),
        (not_verified(20), NotAllowedError, "the broker's certificate is not accepted: no such authority"),
        (ssl.SSLError("handshake"), NotAllowedError, "the TLS handshake with the broker failed"),
        (failure(ssl.SSLError(1, ""), reason="WRONG"), NotAllowedError, "broker failed (WRONG): it may not use TLS"),
        (ConnectionResetError(104, "reset"), NotAllowedError, "the broker failed (reset): it may not use TLS"),
    ],
)
def test_a_failed_handshake_says_whose_fault_it_is(error: OSError, kind: type[NotAllowedError], text: str) -> None:
    refusal = tls_error(error, "broker.example")
    assert type(refusal) is kind
    assert text in str(refusal)
