"""The bridge to Home Assistant on a real Mosquitto: with a site's rules, and on a broker that lacks a feature."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from halimede import programs
from halimede.access.mosquitto import listener_lines
from halimede.access.passwords import make_passwords
from halimede.access.site import Site
from halimede.bridges.homeassistant import claim, published_record, publisher, system_listener
from halimede.bridges.homeassistant.bridge import HomeAssistantBridge
from halimede.bridges.homeassistant.claim import SecondBridgeError
from halimede.bridges.homeassistant.discovery import DiscoveryTopics
from halimede.bridges.homeassistant.publisher import availability_will
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.errors import HalimedeError
from services.broker import MosquittoProcess
from tests.homeassistant.listener import DiscoveryListener
from tests.homeassistant.stand_in import StandInSystem, status_document
from tests.ports import free_port
from tests.refusing_broker import RETAINED_BY_WILDCARD, RefusingBroker
from tests.waiting import eventually, output_of, patience

CONNECT_S = 10.0
DEVICES = {"system", "ji_default_digits", "node_edge0", "camera_default_cam0"}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers on loopback send retained messages at once."""
    monkeypatch.setattr(claim, "ANSWER_S", 0.5)
    monkeypatch.setattr(published_record, "RETAINED_S", 0.5)
    monkeypatch.setattr(publisher, "DOCUMENT_PAUSE_S", 0.5)


@pytest.fixture
def mosquitto(own_broker: MosquittoProcess) -> MosquittoProcess:
    """The bridge shows each service and camera whose status is retained."""
    return own_broker


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def connected(stack: AsyncExitStack, name: str, settings: MqttSettings) -> MqttBus:
    bus = await stack.enter_async_context(MqttBus(name, settings))
    await bus.wait_connected(patience(CONNECT_S))
    return bus


@dataclass
class Side:
    """A system and Home Assistant on one broker."""

    system: StandInSystem
    core: DiscoveryListener
    topics: DiscoveryTopics

    async def is_available(self, state: bytes) -> None:
        await eventually(lambda: self.core.retained.get(self.topics.availability) == state)

    async def shows(self, devices: set[str]) -> None:
        await eventually(lambda: set(self.core.documents) == devices, shown=lambda: str(set(self.core.documents)))


@pytest.fixture
async def side(mosquitto: MosquittoProcess, stack: AsyncExitStack) -> AsyncIterator[Side]:
    address = MqttSettings("127.0.0.1", mosquitto.port)
    core = DiscoveryListener(await connected(stack, "core", address))
    await core.start()
    system = StandInSystem(await connected(stack, "system", address))
    await system.start()
    yield Side(system, core, DiscoveryTopics(core.prefix))
    await system.remove(status_document())


@contextlib.asynccontextmanager
async def bridge(topics: DiscoveryTopics, port: int, name: str = "bridge") -> AsyncIterator[asyncio.Task[None]]:
    async with (
        MqttBus(f"{name}-target", MqttSettings("127.0.0.1", port), lambda: availability_will(topics)) as target,
        MqttBus(f"{name}-reader", MqttSettings("127.0.0.1", port)) as reader,
    ):
        await target.wait_connected(patience(CONNECT_S))
        await reader.wait_connected(patience(CONNECT_S))
        task = asyncio.create_task(HomeAssistantBridge(reader, target, topics).run())
        try:
            yield task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, HalimedeError):
                await task


async def test_devices_appear_survive_a_restart_and_go_with_their_service(
    mosquitto: MosquittoProcess, side: Side
) -> None:
    async with bridge(side.topics, mosquitto.port):
        await side.shows(DEVICES)
        await side.is_available(b"online")
        before = dict(side.core.documents)
    await side.is_available(b"offline")
    async with bridge(side.topics, mosquitto.port):
        await side.is_available(b"online")
        side.core.messages.clear()
        await side.core.birth()
        await eventually(lambda: side.core.count("/config") >= len(DEVICES))
        assert side.core.documents == before
        await side.system.remove(status_document())
        await side.shows(DEVICES - {"ji_default_digits"})
        await eventually(lambda: not [topic for topic in side.core.retained if "ji_default_digits" in topic])


async def test_a_second_bridge_is_refused_and_the_first_goes_on(mosquitto: MosquittoProcess, side: Side) -> None:
    async with bridge(side.topics, mosquitto.port) as first:
        await side.shows(DEVICES)
        async with bridge(side.topics, mosquitto.port, "second") as second:
            with pytest.raises(SecondBridgeError, match="--name"):
                await asyncio.wait_for(second, patience(20.0))
        await side.is_available(b"online")
        assert not first.done()


async def test_a_broker_without_retained_messages_for_wildcards_loses_no_device(
    mosquitto: MosquittoProcess, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bridge(side.topics, mosquitto.port):
        await side.shows(DEVICES)
    monkeypatch.setattr(system_listener, "REMOVE_S", 1.0)  # here nothing is removed, after however long
    async with RefusingBroker(mosquitto.port) as lacking:
        lacking.lacks = frozenset({RETAINED_BY_WILDCARD})
        async with bridge(side.topics, lacking.port) as task:
            await side.is_available(b"online")
            await asyncio.sleep(system_listener.REMOVE_S + 0.5)
            assert set(side.core.documents) == DEVICES
            # GM publishes each status again after a while
            await side.system.status(status_document(phase="Degraded"))
            problem = side.topics.state("ji_default_digits", "problem")
            await eventually(lambda: side.core.retained.get(problem) == b"ON")
            assert not task.done()


@dataclass
class GuardedSite:
    """A broker with the rules of a site that has a consumer ``homeassistant``."""

    folder: Path
    port: int

    def user(self, path: str) -> str:
        return str(self.folder / "site" / path)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedSite]:
    folder = tmp_path_factory.mktemp("site")
    make_passwords(Site(nodes=["edge0"], consumers=["homeassistant", "viewer"]), folder / "site")
    broker = MosquittoProcess(folder, port=free_port(), access=listener_lines(folder / "site", tls=False))
    asyncio.run(broker.start())
    yield GuardedSite(folder, broker.port)
    asyncio.run(broker.stop())


async def started(site: GuardedSite, *options: str) -> asyncio.subprocess.Process:
    """Start ``halimede bridge homeassistant`` as its user would."""
    command = [sys.executable, "-m", "halimede", "bridge", "homeassistant", "--broker", f"127.0.0.1:{site.port}"]
    variables = {**programs.child_variables(), "PATH": "/usr/bin:/bin", "HALIMEDE_HOME": str(site.folder)}
    return await asyncio.create_subprocess_exec(
        *command, *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=variables
    )


async def test_the_program_runs_with_the_rights_of_its_consumer_and_ends_with_a_signal(
    site: GuardedSite, stack: AsyncExitStack
) -> None:
    settings = MqttSettings.from_url(f"127.0.0.1:{site.port}", credentials=site.user("consumers/homeassistant"))
    core = DiscoveryListener(await connected(stack, "core", settings))
    await core.start()
    process = await started(site, "--credentials", site.user("consumers/homeassistant"))
    await eventually(lambda: core.state("availability") == b"online", 60)
    await eventually(lambda: set(core.documents) == {"system"})
    process.send_signal(signal.SIGTERM)
    output = await output_of(process)
    assert process.returncode == 0, output
    assert "refuse" not in output
    await eventually(lambda: core.state("availability") == b"offline")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--credentials", "consumers/viewer"], "homeassistant/halimede/halimede"),
        (["--credentials", "consumers/homeassistant", "--prefix", "other"], "read and write other/#"),
        (["--credentials", "consumers/homeassistant", "--control"], "use the credentials of an operator"),
    ],
)
async def test_a_user_without_the_rights_gets_one_line_with_what_to_do(
    site: GuardedSite, options: list[str], message: str
) -> None:
    process = await started(site, *(site.user(option) if "/" in option else option for option in options))
    output = await output_of(process)
    errors = [line for line in output.splitlines() if line.startswith("Error: ")]
    assert process.returncode == 1, output
    assert len(errors) == 1
    assert message in errors[0]
    assert "Traceback" not in output
