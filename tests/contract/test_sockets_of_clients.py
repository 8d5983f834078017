"""Both clients' connections hold nothing back."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.bus.settings import Client
from services.broker import MosquittoProcess
from tests.waiting import patience


def connections(port: int) -> list[socket.socket]:
    """Return this process's connections to a port, as copies that the caller closes."""
    found = []
    for number in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            copy = socket.socket(fileno=os.dup(number))
        except OSError:  # closed meanwhile
            continue
        try:
            ours = copy.family == socket.AF_INET and copy.getpeername()[1] == port
        except OSError:
            ours = False
        if ours:
            found.append(copy)
        else:
            copy.close()
    return found


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
async def test_a_connection_waits_neither_for_acknowledgements_nor_for_its_turn(
    mosquitto: MosquittoProcess, unique: str, each_client: Client
) -> None:
    async with MqttBus(unique, MqttSettings("127.0.0.1", mosquitto.port)) as bus:
        await bus.wait_connected(patience(20.0))
        found = connections(mosquitto.port)
        assert found, each_client
        for sock in found:
            with sock:
                assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                kind = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
                assert not kind.startswith(b"bbr")
