"""Raw TCP with blocking sockets, the floor below all event loops; what is sent is that of ``tcp``."""

from __future__ import annotations

import socket
from functools import partial

from bench.peers import peer

HEAD = 4
BUFFER = 1 << 21


def server() -> None:
    """Answer connection after connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer.end_with_input()
        peer.listening(listener.getsockname()[1])
        while True:
            connection, _ = listener.accept()
            with connection:
                _answer(connection)


def _answer(connection: socket.socket) -> None:
    """Answer until the other side closes: what one call has read is answered with one."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(BUFFER))
    have = 0
    while got := connection.recv_into(buffer[have:]):
        have += got
        at, answers = 0, b""
        while have - at >= HEAD:
            end = at + HEAD + int.from_bytes(buffer[at : at + HEAD], "big")
            if end > have:
                break
            answers += peer.answer(buffer[at + HEAD : end])
            at = end
        if at:
            buffer[: have - at] = buffer[at:have]
            have -= at
            connection.sendall(answers)


def client(port: str) -> None:
    """Send with one system call a sample, and read as many answers as there are."""
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pump = peer.Pump(partial(_send, connection))
        rest = bytearray()

        def turn() -> None:
            rest.extend(connection.recv(65_536))
            whole = len(rest) - len(rest) % peer.ECHO.size
            answers = bytes(rest[:whole])
            del rest[:whole]
            for at in range(0, whole, peer.ECHO.size):
                pump.answered(answers[at : at + peer.ECHO.size])

        peer.pumped(pump, turn)


def _send(connection: socket.socket, data: bytes) -> None:
    """Send length and sample without joining them."""
    sent = connection.sendmsg([len(data).to_bytes(HEAD, "big"), data])
    if sent < HEAD + len(data):
        connection.sendall(memoryview(data)[max(sent - HEAD, 0) :])
