"""A broker with several addresses, of a list or of a name: a client tries them in turn, and one that is silent ends."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiomqtt
import pytest

from halimede import topics
from halimede.access.certs import make_certificates
from halimede.access.site import Principal, Site
from halimede.bus import Packet
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.cli.broker_address import BrokerAddress
from halimede.cli.commands import doctor
from halimede.cli.follow import follow
from halimede.errors import DisconnectedError, NotAllowedError
from halimede.health_checks.check import Check
from halimede.messages import Synced
from halimede.topic import Role
from services.broker import MosquittoProcess
from tests.brokers.installation import under_test
from tests.brokers.process import of_site
from tests.ports import free_port
from tests.waiting import patience

HOST = "broker.test"
#: seconds for all addresses of a test: a silent one has a half
TIMEOUT_S = 2.0


@pytest.fixture(params=["lean", "paho"])
def client(request: pytest.FixtureRequest) -> Any:
    """Each MQTT client."""
    return request.param


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port at which no connection is accepted or refused: its queue of connections is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for waiter in waiting:
            waiter.setblocking(False)
            waiter.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
        for waiter in waiting:
            waiter.close()


@pytest.fixture
def mute_port() -> Iterator[int]:
    """A port at which the kernel accepts connections, and nothing answers: a broker that hangs."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=64)) as listener:
        yield listener.getsockname()[1]


def resolve_by(monkeypatch: pytest.MonkeyPatch, resolver: Callable[..., list[Any]]) -> None:
    """Let this resolve the name, with the options of ``getaddrinfo``."""
    original = socket.getaddrinfo

    def getaddrinfo(host: str, *arguments: Any, **options: Any) -> list[Any]:
        return resolver(**options) if host == HOST else list(original(host, *arguments, **options))

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def resolve(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Let the name have an address for each port."""
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", number)) for number in ports]
    resolve_by(monkeypatch, lambda **_: addresses)


async def connects(client_id: str, settings: MqttSettings) -> None:
    async with MqttBus(client_id, settings) as bus:
        await bus.wait_connected(patience(30))


def listed(*ports: int, client: Any = "lean", timeout_s: float = TIMEOUT_S) -> MqttSettings:
    """Return the settings of a list of brokers on loopback."""
    settings = MqttSettings.from_url(",".join(f"127.0.0.1:{port}" for port in ports))
    return replace(settings, client=client, connect_timeout_s=timeout_s)


@pytest.fixture(params=["silent_port", "mute_port"])
def dead_port(request: pytest.FixtureRequest) -> int:
    """Each of these in turn."""
    return int(request.getfixturevalue(request.param))


async def test_a_first_address_of_a_name_that_does_not_answer_leaves_time_for_the_second(
    mosquitto: MosquittoProcess, unique: str, dead_port: int, monkeypatch: pytest.MonkeyPatch, client: Any
) -> None:
    resolve(monkeypatch, dead_port, mosquitto.port)
    await connects(unique, MqttSettings(HOST, 1883, client=client, connect_timeout_s=TIMEOUT_S))


async def test_a_list_is_tried_in_turn_whatever_its_first_brokers_do(
    mosquitto: MosquittoProcess, unique: str, silent_port: int, mute_port: int, client: Any
) -> None:
    await connects(unique, listed(free_port(), silent_port, mute_port, mosquitto.port, client=client))


async def test_without_any_broker_the_error_has_the_cause_at_each_address(unique: str, mute_port: int) -> None:
    closed = free_port()
    with pytest.raises(DisconnectedError) as caught:
        await MqttBus(unique, listed(closed, mute_port, timeout_s=0.4)).check_reachable()
    assert str(caught.value) == (
        f"127.0.0.1:{closed}: Connection refused; "
        f"127.0.0.1:{mute_port}: the broker accepted the connection but does not answer"
    )


async def test_a_name_that_does_not_resolve_does_not_keep_a_client_from_the_next_broker(
    mosquitto: MosquittoProcess, unique: str, monkeypatch: pytest.MonkeyPatch, client: Any
) -> None:
    def unknown(**_: Any) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    resolve_by(monkeypatch, unknown)
    await connects(unique, MqttSettings.from_url(f"{HOST}:1883,127.0.0.1:{mosquitto.port}").for_control())


async def test_only_a_name_is_resolved_in_a_thread_which_may_take_long(
    mosquitto: MosquittoProcess, unique: str, monkeypatch: pytest.MonkeyPatch, client: Any
) -> None:
    """A connection by number starts no thread for that: clients that return to a broker may be thousands."""
    original, threads = socket.getaddrinfo, dict[str, set[threading.Thread]]()

    def getaddrinfo(host: str, *arguments: Any, **options: Any) -> list[Any]:
        answers = list(original(host, *arguments, **options))
        threads.setdefault(host, set()).add(threading.current_thread())
        return answers

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    for host in ("127.0.0.1", "localhost"):
        await connects(unique, MqttSettings(host, mosquitto.port, client=client))
    assert threading.main_thread() not in threads["localhost"]
    assert threads["127.0.0.1"] >= {threading.main_thread()}
    assert not any(thread.name.startswith("mqtt-names") for thread in threads["127.0.0.1"])


async def test_a_later_name_that_resolves_slowly_does_not_delay_the_first_broker(
    mosquitto: MosquittoProcess, unique: str, monkeypatch: pytest.MonkeyPatch, client: Any
) -> None:
    connected = threading.Event()

    def slow(flags: int, **_: Any) -> list[Any]:
        if not flags & socket.AI_NUMERICHOST:
            connected.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    resolve_by(monkeypatch, slow)
    settings = MqttSettings.from_url(f"127.0.0.1:{mosquitto.port},{HOST}:1883")
    try:
        await connects(unique, replace(settings, client=client, connect_timeout_s=patience(120)))
    finally:
        connected.set()


async def test_when_the_first_broker_is_killed_a_client_continues_at_the_second(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path, client: Any
) -> None:
    received = asyncio.Event()
    async with MosquittoProcess(tmp_path) as first:
        settings = listed(first.port, mosquitto.port, client=client)
        async with MqttBus(unique, settings) as bus, MqttBus(f"{unique}-2", listed(mosquitto.port)) as other:
            await bus.wait_connected(patience(30))
            await other.wait_connected(patience(30))
            await bus.listen(f"{unique}/in", 1, lambda _: received.set(), 0)
            await first.kill()
            async with asyncio.timeout(patience(30)):
                while not received.is_set():
                    await other.send(Packet(f"{unique}/in", b"x"))
                    await asyncio.sleep(0.05)


async def test_the_name_of_each_address_is_checked_against_its_certificate(
    tmp_path: Path, unique: str, client: Any
) -> None:
    site = Site(broker=["localhost"], port=free_port(), nodes=["edge0"])
    make_certificates(site, tmp_path / "site")
    credentials = tmp_path / "site" / Principal(Role.OPERATOR, "admin").folder
    by_address, by_name = f"127.0.0.1:{site.port}", f"localhost:{site.port}"

    def secure(endpoints: str) -> MqttSettings:
        return replace(MqttSettings.from_url(f"mqtts://{endpoints}", credentials=credentials), client=client)

    broker = of_site(under_test(), site, tmp_path / "site", tmp_path / "broker")
    async with broker, MqttBus(unique, secure(f"{by_address},{by_name}")) as bus:
        await bus.wait_connected(patience(30))
        with pytest.raises(NotAllowedError, match=rf"{by_address}: .* does not have the name 127\.0\.0\.1"):
            await MqttBus(f"{unique}-2", secure(f"{by_address},127.0.0.1:{free_port()}")).check_reachable()


async def test_a_command_that_follows_a_topic_continues_at_the_second_broker(
    mosquitto: MosquittoProcess, unique: str, tmp_path: Path
) -> None:
    received: list[Synced] = []
    topic = topics.SYNCED.at(node=unique)

    async def watch(broker: BrokerAddress) -> None:
        async for _, body in follow(broker, topics.SYNCED.filter(node=unique)):
            assert body is not None
            received.append(body)

    async def publish_until(broker: MosquittoProcess, count: int) -> None:
        async with MqttBus(f"{unique}-{count}", listed(broker.port)) as bus, asyncio.timeout(patience(60)):
            await bus.wait_connected(patience(30))
            while not any(body.count == count for body in received):
                await bus.publish(topic, Synced(epoch=0, count=count))
                await asyncio.sleep(0.05)

    async with MosquittoProcess(tmp_path) as first:
        watching = asyncio.create_task(watch(BrokerAddress(listed(first.port, mosquitto.port), "the test")))
        await publish_until(first, 1)
        await first.kill()
        await publish_until(mosquitto, 2)
        watching.cancel()
        await asyncio.wait([watching])


async def test_a_command_that_follows_subscribes_in_the_time_of_all_addresses(
    mosquitto: MosquittoProcess, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[object] = []
    subscribe = aiomqtt.Client.subscribe

    async def recorded(client: aiomqtt.Client, *arguments: Any, timeout: float | None = None, **options: Any) -> object:  # noqa: ASYNC109 (aiomqtt's)
        times.append(timeout or client.timeout)
        return await subscribe(client, *arguments, timeout=timeout, **options)

    monkeypatch.setattr(aiomqtt.Client, "subscribe", recorded)
    settings = listed(mosquitto.port, free_port(), timeout_s=patience(10))

    async def first() -> Synced | None:
        async for _, body in follow(BrokerAddress(settings, "the test"), topics.SYNCED.filter(node=unique)):
            return body
        return None

    async with asyncio.timeout(patience(30)), MqttBus(unique, settings) as bus:
        await bus.wait_connected(patience(5))
        following = asyncio.create_task(first())
        while not following.done():
            await bus.publish(topics.SYNCED.at(node=unique), Synced(epoch=0, count=1))
            await asyncio.sleep(0.05)
        assert await following
    assert times == [patience(10)]


async def test_doctor_examines_each_broker_of_a_list_and_whether_their_clients_reach_one_another(
    mosquitto: MosquittoProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALIMEDE_HOME", str(tmp_path))
    closed = free_port()

    async def checks(*ports: int) -> list[Check]:
        return [check async for check in doctor.examine(",".join(f"127.0.0.1:{port}" for port in ports), "")]

    async with MosquittoProcess(tmp_path / "second") as second:
        separate = await checks(closed, mosquitto.port, second.port)
        # two addresses of one broker stand for two brokers of a cluster
        joined = await checks(mosquitto.port, mosquitto.port)
    assert [check.level for check in separate if check.name == "connection"] == ["problem", "ok", "ok"]
    (about_separate,) = (check for check in separate if check.name == "brokers")
    (about_joined,) = (check for check in joined if check.name == "brokers")
    assert (about_separate.level, about_joined.level) == ("warning", "ok")
    assert f"of 127.0.0.1:{mosquitto.port} do not reach clients of 127.0.0.1:{second.port}" in about_separate.found
