"""A broker's name with several addresses: a client tries all of them, also if the first machine does not answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from halimede.bus.mqtt import MqttBus, MqttSettings
from services.broker import MosquittoProcess
from tests.waiting import patience

HOST = "broker.test"


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port at which no connection is accepted or refused: its queue of connections is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
        for client in waiting:
            client.close()


def resolve(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Let the name have an address for each port."""
    loop = asyncio.get_running_loop()

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        assert host == HOST
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", each)) for each in ports]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)


async def test_a_first_address_that_does_not_answer_leaves_time_for_the_second(
    mosquitto: MosquittoProcess, unique: str, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve(monkeypatch, silent_port, mosquitto.port)
    settings = MqttSettings(HOST, 1883, client="lean", connect_timeout_s=2.0)
    async with MqttBus(unique, settings) as bus:
        await bus.wait_connected(patience(30))
