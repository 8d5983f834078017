"""What only a network can do to a bus, with either client: refuse, fall silent, fill up; and TLS."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.errors import DisconnectedError
from services.broker import MosquittoProcess
from tests.ports import free_port
from tests.proxy import Proxy
from tests.simulated import eventually
from tests.waiting import patience

HOST = "127.0.0.1"
pytestmark = pytest.mark.usefixtures("each_client")


@pytest.fixture
async def proxy(mosquitto: MosquittoProcess) -> AsyncIterator[Proxy]:
    async with Proxy(mosquitto.port) as proxy:
        yield proxy


async def connect_error(bus: MqttBus, reason: str) -> str:
    """Return the error of a bus that cannot connect, as soon as that has a reason, a regular expression."""

    async def text() -> str:
        with pytest.raises(DisconnectedError) as caught:
            await bus.wait_connected(0.2)
        return str(caught.value) if re.search(reason, str(caught.value)) else ""

    error: str = await eventually(text)
    return error


async def test_a_refused_client_says_why_and_never_its_password(tmp_path: Path, unique: str) -> None:
    async with MosquittoProcess(tmp_path, port=free_port(), access=["allow_anonymous false"]) as broker:
        with capture_logs() as lines:
            url = broker.url.replace("//", "//someone:s3cret@")
            async with MqttBus(unique, url) as bus:
                error = await connect_error(bus, "Not authorized")
        assert "s3cret" not in error + str(lines)


async def test_a_bus_waits_for_a_broker_that_comes_later_and_says_so_once(tmp_path: Path, unique: str) -> None:
    port = free_port()
    with capture_logs() as lines:
        async with MqttBus(unique, f"{HOST}:{port}") as bus:
            await connect_error(bus, "refused")
            async with MosquittoProcess(tmp_path, port=port):
                await bus.wait_connected(patience(10))
    assert [line["event"] for line in lines if line["event"].startswith("bus ")][:2] == ["bus down", "bus connected"]


async def test_a_server_that_does_not_speak_mqtt_is_named_and_left_cleanly(unique: str) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100)
        await reader.read()
        writer.close()

    for server_side in (mute, nonsense):
        server = await asyncio.start_server(server_side, HOST, 0)
        async with server:
            settings = MqttSettings(HOST, server.sockets[0].getsockname()[1], connect_timeout_s=0.3)
            async with MqttBus(unique, settings) as bus:
                await connect_error(bus, r"does not answer|protocol|MQTT client|invalid MQTT|broke\b")


async def test_a_half_open_connection_is_found_by_its_silence(proxy: Proxy, unique: str) -> None:
    async with MqttBus(unique, MqttSettings(HOST, proxy.port, keepalive_s=2)) as bus:
        await bus.wait_connected(patience(10))
        proxy.freeze()
        with pytest.raises(DisconnectedError, match="lost"):
            await bus.send(Packet(unique, b"x"), timeout_s=20)
        await eventually(lambda: not bus.connected)
        proxy.cut()
        proxy.heal()
        await bus.wait_connected(patience(20))


@pytest.mark.slow
async def test_a_slow_connection_is_not_taken_for_a_dead_one(proxy: Proxy, unique: str) -> None:
    keepalive_s, one_way_s = 8, 2.9
    async with MqttBus(unique, MqttSettings(HOST, proxy.port, keepalive_s=keepalive_s)) as bus:
        await bus.wait_connected(patience(10))
        proxy.delay(one_way_s)  # a ping and its answer take nearly a whole keepalive
        await asyncio.sleep(3 * keepalive_s)
        assert (bus.connected, proxy.accepted) == (True, 1)


async def test_a_publish_gives_up_at_its_deadline_and_keeps_its_place_until_answered(proxy: Proxy, unique: str) -> None:
    async with MqttBus(unique, MqttSettings(HOST, proxy.port, window=1)) as bus:
        await bus.wait_connected(patience(10))
        proxy.freeze()
        for waits_for in ("the broker", "a place in the window"):
            with pytest.raises(DisconnectedError, match="no acknowledgement within"):
                await bus.send(Packet(unique, waits_for.encode()), timeout_s=0.1)
        proxy.cut()
        await eventually(lambda: not bus.connected)
        proxy.heal()
        await bus.wait_connected(patience(10))
        assert await bus.send(Packet(unique, b"x")) == 0x10


async def test_no_thread_and_no_socket_is_left_behind(mosquitto: MosquittoProcess, unique: str) -> None:
    import psutil

    async def connections() -> int:
        return len([c for c in psutil.Process().net_connections("tcp") if c.raddr and c.raddr.port == mosquitto.port])

    before = await connections()
    for _ in range(3):
        async with MqttBus(unique, mosquitto.url) as bus:
            await bus.wait_connected(patience(10))
    async with MqttBus(unique, mosquitto.url):
        pass  # left in the middle of connecting
    assert await connections() == before
    await eventually(lambda: not [thread for thread in threading.enumerate() if "mqtt" in thread.name])


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``key.pem`` and ``cert.pem`` for localhost."""
    if not shutil.which("openssl"):
        pytest.skip("makes its certificate with openssl")
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -keyout key.pem -out cert.pem"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


async def test_frames_of_all_sizes_pass_through_tls(certificate: Path, tmp_path: Path, unique: str) -> None:
    sizes: list[int] = []

    async def receive(packet: Packet) -> None:
        sizes.append(len(packet.payload))

    access = ["allow_anonymous true", f"certfile {certificate / 'cert.pem'}", f"keyfile {certificate / 'key.pem'}"]
    trust = tmp_path / "credentials"
    trust.mkdir()
    shutil.copy(certificate / "cert.pem", trust / "ca.crt")
    async with MosquittoProcess(tmp_path, port=free_port(), access=access) as broker:
        async with MqttBus(unique, MqttSettings.from_url(f"mqtts://localhost:{broker.port}", credentials=trust)) as bus:
            await bus.wait_connected(patience(10))
            await bus.listen(unique, 1, receive, 100)
            wanted = [0, 1, 16_383, 16_384, 16_385, 150_000, 4_000_000, *range(1, 40)]
            for size in wanted:
                await bus.send(Packet(unique, bytes(size)))
            await eventually(lambda: sizes == wanted)
        async with MqttBus(unique, MqttSettings.from_url(f"mqtts://localhost:{broker.port}")) as stranger:
            await connect_error(stranger, "certificate is not accepted: self-signed")
