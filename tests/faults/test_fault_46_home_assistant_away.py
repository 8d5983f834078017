"""Fault 46: Home Assistant's broker killed, and a hung bridge. Nothing that runs waits, and what is lost is counted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from halimede import programs
from halimede.bus.mqtt import MqttBus, MqttSettings
from services.broker import MosquittoProcess
from tests.homeassistant.listener import DiscoveryListener
from tests.homeassistant.stand_in import StandInSystem, occupancy_event, status_document
from tests.ports import free_port
from tests.waiting import eventually, patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

CONNECT_S = 10.0
#: events of a worker while nobody takes them
EVENTS = 300
UNDELIVERED = "system/undelivered"


async def connected(stack: AsyncExitStack, name: str, port: int) -> MqttBus:
    bus = await stack.enter_async_context(MqttBus(name, MqttSettings("127.0.0.1", port)))
    await bus.wait_connected(patience(CONNECT_S))
    return bus


async def slowest_publish(system: StandInSystem, first: int) -> float:
    """Publish events as a worker does, one after the other; return the seconds of the slowest acknowledgement."""
    slowest = 0.0
    for number in range(first, first + EVENTS):
        began = time.monotonic()
        await system.occupancy(occupancy_event(number, "left" if number % 2 else "entered", before=number))
        slowest = max(slowest, time.monotonic() - began)
    return slowest


def numbers(core: DiscoveryListener) -> list[int]:
    """The numbers of the events that Home Assistant has received."""
    return [json.loads(payload)["before"] for topic, payload in core.messages if topic.endswith("/events_digits")]


async def test_a_system_goes_on_without_home_assistant_and_with_a_hung_bridge(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        own, target = (MosquittoProcess(tmp_path / name, port=free_port()) for name in ("own", "target"))
        await stack.enter_async_context(own)
        await stack.enter_async_context(target)
        system = StandInSystem(await connected(stack, "system", own.port))
        await system.start()
        core = DiscoveryListener(await connected(stack, "core", target.port))
        await core.start()
        bridge = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "halimede", "bridge", "homeassistant",
            "--broker", f"127.0.0.1:{own.port}", "--to", f"127.0.0.1:{target.port}",
            env={**os.environ, **programs.child_variables()},
        )  # fmt: skip
        stack.callback(lambda: bridge.returncode is None and bridge.kill())
        await eventually(lambda: core.state("availability") == b"online", 60)
        await system.occupancy(occupancy_event(0))
        await eventually(lambda: core.count("events_digits") == 1)

        bridge.send_signal(signal.SIGSTOP)
        assert await slowest_publish(system, 1000) < patience(2.0)
        await system.status(status_document(metrics={"queued": "41"}))
        bridge.send_signal(signal.SIGCONT)
        await eventually(lambda: core.state("ji_default_digits/queue") == b"41", 60)

        lost_before = int(core.state(UNDELIVERED) or 0)
        await target.kill()
        core.messages.clear()
        assert await slowest_publish(system, 3000) < patience(2.0)
        await system.status(status_document(metrics={"queued": "42"}))
        core.retained.clear()
        await target.start()
        await eventually(lambda: core.state("ji_default_digits/queue") == b"42", 60)
        await eventually(lambda: core.state("availability") == b"online")
        # the events that happened meanwhile have reached Home Assistant, or are in its counts
        await system.occupancy(occupancy_event(9999, before=9999))

        await eventually(lambda: 9999 in numbers(core), 90)

        def are_all_counted() -> bool:
            received = {number for number in numbers(core) if number >= 3000}
            return len(received) + int(core.state(UNDELIVERED) or 0) - lost_before >= EVENTS + 1

        await eventually(are_all_counted, shown=lambda: f"{len(numbers(core))} and {core.state(UNDELIVERED)!r}")
        assert bridge.returncode is None
        bridge.terminate()
        assert await asyncio.wait_for(bridge.wait(), patience(20.0)) == 0
