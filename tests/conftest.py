"""Fixtures for everybody: a real Mosquitto for each test process, a broker in memory for each test, and both."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AsyncExitStack
from typing import get_args

import pytest
import structlog
from hypothesis import HealthCheck, settings

from halimede.bus.memory import MemoryBroker
from halimede.bus.settings import CLIENT, Client, chosen_client
from services.broker import MosquittoProcess
from tests.brokers.installation import UNDER_TEST, under_test
from tests.brokers.process import without_users
from tests.digits import Digits
from tests.ports import free_port
from tests.properties import ALL, QUICK
from tests.simulated import SimulatedLoop
from tests.waiting import patience
from tests.worlds import MqttWorld, World

# how fast examples are made says something about the machine and its load, nothing about the code
settings.register_profile("halimede", max_examples=ALL, deadline=None, suppress_health_check=[HealthCheck.too_slow])
#: of `make test`
settings.register_profile("quick", settings.get_profile("halimede"), max_examples=QUICK)
settings.load_profile("halimede")

#: seconds after which a test that hangs is ended on a slow machine, unless its own limit is longer
LONGEST_TEST_S = 1800
#: the files that take longest: begun first, nobody waits for them at the end; those that wait among those that work
LONGEST = (
    "test_fault_23_two_clients_one_id",
    "test_demo_multi_edge",
    "test_demo_real_pairs",
    "test_tiers",
    "test_fault_02_broker_stopped",
    "test_fault_05_a_narrow_way",
    "test_monitoring",
    "test_end_to_end",
    "test_fault_16_disk_full",
    "test_operator",
    "test_attack_21_floods",
    "test_guarded",
    "test_fault_24_corrupt_stores",
    "test_demo",
    "test_lc_pods",
    "test_rbac",
    "test_worker_over_mosquitto",
    "test_deploy_documentation",
    "test_fault_24_sigterm_under_load",
    "test_tracing",
    "test_fault_20_clocks_a_day_apart",
    "test_observability",
    "test_serve_router",
    "test_main_job",
    "test_fault_13_two_gms_one_lease",
    "test_fault_12_gm_killed_between_writes",
    "test_images",
    "test_fault_03_lc_cut_off",
    "test_fault_14_api_server_faults",
    "test_documentation",
    "test_typed_pages",
    "test_install",
    "test_serve_process",
    "test_multi_edge_documentation",
    "test_attack_10_compression_bombs",
    "test_attack_11_frames_that_crash_the_model",
    "test_bridge_system",
    "test_crd_agreement",
    "test_convergence",
)


def pytest_configure() -> None:
    """Let SIGINT end what tests start, also where the suite runs in the background: shells have it ignored there."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first (with ``--no-loadscope-reorder``, processes take them in that order).

    The limit of a test ends one that hangs, on a slow machine as well: each of its steps has a deadline of its own.
    """
    for item in items:
        if limit := item.get_closest_marker("timeout"):
            seconds = min(patience(limit.args[0]), max(limit.args[0], LONGEST_TEST_S))
            item.add_marker(pytest.mark.timeout(seconds), append=False)
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector the tests themselves: a million objects that stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the async tests and fixtures that are marked with ``simulated`` in simulated time."""
    return {"loop": SimulatedLoop if item.get_closest_marker("simulated") else asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """End with a test how it set up logging: commands that run in this process silence it for all who come after."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MosquittoProcess]:
    """A real broker on a free port. Shared by the tests of one process: use names of your own (``unique``).

    It is the embedded Mosquitto, or the broker that ``make test-brokers`` tries.
    """
    folder, port = tmp_path_factory.mktemp("mosquitto"), free_port()
    broker = (
        without_users(under_test(), folder, port) if UNDER_TEST in os.environ else MosquittoProcess(folder, port=port)
    )
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


@pytest.fixture(params=["memory", "paho", "lean"])
def _broker_of_world(request: pytest.FixtureRequest) -> tuple[str, MemoryBroker | MosquittoProcess]:
    return request.param, request.getfixturevalue("memory_broker" if request.param == "memory" else "mosquitto")


@pytest.fixture
async def world(_broker_of_world: tuple[str, MemoryBroker | MosquittoProcess]) -> AsyncIterator[World]:
    """Buses of each adapter in turn: a test that asks for it runs three times. No callback of the loop may fail."""
    client, broker = _broker_of_world
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: failed.append(context) if "handle" in context else loop.default_exception_handler(context)
    )
    async with AsyncExitStack() as stack:
        if isinstance(broker, MemoryBroker):
            yield World(broker, stack)
        else:
            yield MqttWorld(broker, stack, "lean" if client == "lean" else "paho")
    assert not failed


@pytest.fixture(params=get_args(Client))
def each_client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Have all who name no client connect with each in turn: a test that uses this runs twice."""
    monkeypatch.setenv(CLIENT, request.param)
    return chosen_client({CLIENT: request.param})


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    """Real digits, and a small and a big ONNX model of them."""
    from examples.digits.data import to_png
    from tests.integration.workers import train

    small, big, split = train(tmp_path_factory.mktemp("digits"))
    return Digits(small, big, [to_png(image) for image in split.test_x])
