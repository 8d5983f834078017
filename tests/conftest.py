"""Fixtures for everybody: a real Mosquitto for each test process, a broker in memory for each test, and both."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest
from hypothesis import HealthCheck, settings

from halimede.bus.memory import MemoryBroker
from services.broker import Broker
from tests.digits import Digits
from tests.ports import free_port
from tests.worlds import MemoryWorld, MqttWorld, World

# how fast examples are made says something about the machine and its load, nothing about the code
settings.register_profile("halimede", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("halimede")

#: the files that take longest, mostly waiting: begun first, nobody waits for them at the end
LONGEST = (
    "test_fault_23_two_clients_one_id",
    "test_fault_02_broker_stopped",
    "test_convergence",
    "test_commands_documentation",
    "test_images",
    "test_bridge_system",
    "test_crd_agreement",
    "test_end_to_end",
    "test_any_resource",
    "test_lc_pods",
    "test_install",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first (with ``--no-loadscope-reorder``, processes take them in that order)."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real broker on a free port. Shared by the tests of one process: use names of your own (``unique``)."""
    broker = Broker(tmp_path_factory.mktemp("mosquitto"), port=free_port())
    asyncio.run(broker.start())
    yield broker
    asyncio.run(broker.stop())


@pytest.fixture
def memory_broker() -> MemoryBroker:
    """A broker of this test's own, without faults until some are switched on."""
    return MemoryBroker()


@pytest.fixture
def unique() -> str:
    """A name that no other test uses."""
    return f"t-{secrets.token_hex(6)}"


@pytest.fixture(params=["memory_broker", "mosquitto"], ids=["memory", "mqtt"])
def any_broker(request: pytest.FixtureRequest) -> MemoryBroker | Broker:
    """Each broker in turn."""
    broker: MemoryBroker | Broker = request.getfixturevalue(request.param)
    return broker


@pytest.fixture
async def world(any_broker: MemoryBroker | Broker) -> AsyncIterator[World]:
    """Buses on either broker: a test that asks for it runs twice."""
    async with AsyncExitStack() as stack:
        if isinstance(any_broker, Broker):
            yield MqttWorld(any_broker, stack)
        else:
            yield MemoryWorld(any_broker, stack)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    """Real digits, and a small and a big ONNX model of them."""
    from examples.digits.data import to_png
    from tests.integration.workers import train

    small, big, split = train(tmp_path_factory.mktemp("digits"))
    return Digits(small, big, [to_png(image) for image in split.test_x])
