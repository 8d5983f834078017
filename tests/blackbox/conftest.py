"""Each test of the black-box suite runs over the broker in memory and over a real Mosquitto."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from halimede.bus.memory import MemoryBroker
from services.broker import MosquittoProcess
from tests.blackbox.buses import MemoryBuses, MqttBuses
from tests.blackbox.models import write_onnx
from tests.blackbox.world import World


@pytest.fixture(params=["memory", "mosquitto"])
def broker(request: pytest.FixtureRequest) -> MemoryBroker | MosquittoProcess:
    found: MemoryBroker | MosquittoProcess = request.getfixturevalue(
        "memory_broker" if request.param == "memory" else "mosquitto"
    )
    return found


@pytest.fixture
async def world(broker: MemoryBroker | MosquittoProcess, unique: str, tmp_path: Path) -> AsyncIterator[World]:
    """Observe a service in a namespace of the test's own."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        buses = MemoryBuses(broker, stack) if isinstance(broker, MemoryBroker) else MqttBuses(broker, stack)
        made = World(buses, unique, tmp_path, http)
        await made.start_observing()
        yield made


@pytest.fixture(scope="session")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX model: workers may call it without a thread, as they may not a user's estimator."""
    return write_onnx(tmp_path_factory.mktemp("onnx") / "model.onnx")
