"""What Home Assistant may change with an operator's rights: budgets and drained nodes, of a real global manager."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from halimede.bridges.homeassistant.bridge import HomeAssistantBridge
from halimede.bridges.homeassistant.discovery import DiscoveryTopics
from halimede.bus.memory import MemoryBus
from halimede.cli.client import ApiRefusedError, Client
from tests.homeassistant.listener import DiscoveryListener
from tests.homeassistant.stand_in import StandInSystem, status_document
from tests.integration.gm_world import World, model, service, world
from tests.simulated import eventually

pytestmark = pytest.mark.simulated

SERVICE, NODE = "ji_default_helmet", "node_edge0"


@dataclass
class ControlWorld:
    """A running service, the entities that a bridge with control publishes, and a client of the global manager."""

    gm: World
    core: DiscoveryListener
    client: Client

    def entity(self, device: str, id_: str) -> dict[str, Any]:
        document = self.core.documents.get(device)
        return document.components.get(id_, {}) if document else {}

    async def set(self, target: str, payload: bytes) -> None:
        await self.core.command(f"halimede/{target}", payload)

    async def spec(self) -> dict[str, Any]:
        return (await self.client.get("jointinferenceservices", "helmet"))["spec"]["edgeWorker"]

    async def shows(self, entity: str, state: bytes) -> None:
        await eventually(lambda: self.core.state(entity) == state, 60)

    async def is_drained(self) -> bool:
        return (await self.client.nodes("edge0"))[0].drained


@asynccontextmanager
async def control_world(folder: Path, *retained: tuple[str, bytes], **edge_worker: Any) -> AsyncIterator[ControlWorld]:
    """Run a bridge with control. ``retained``: entities and commands that are retained before it starts."""
    async with world(folder) as w, w.gm(), w.node("edge0"), w.node("cloud0"):
        await w.deploy(service(edge_worker=edge_worker))
        async with bridge_with_control(w, *retained) as bridged:
            await eventually(lambda: {SERVICE, NODE} <= set(bridged.core.documents), 60)
            yield bridged


@asynccontextmanager
async def bridge_with_control(w: World, *retained: tuple[str, bytes]) -> AsyncIterator[ControlWorld]:
    """Run a bridge with control beside a global manager, or without one."""
    async with (
        MemoryBus("core", w.broker) as bus,
        MemoryBus("target", w.broker) as target,
        MemoryBus("reader", w.broker) as reader,
        Client(MemoryBus("bridge-client", w.broker), patience_s=0.0) as bridge_client,
        Client(MemoryBus("client", w.broker)) as client,
    ):
        await asyncio.gather(*(connection.wait_connected(10.0) for connection in (bus, target, reader)))
        core = DiscoveryListener(bus)
        await core.start()
        for target_entity, payload in retained:
            await core.command(f"halimede/{target_entity}", payload, retain=True)
        task = asyncio.create_task(
            HomeAssistantBridge(reader, target, DiscoveryTopics(), bridge_client).run(), name="bridge"
        )
        yield ControlWorld(w, core, client)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_budget_that_is_set_is_in_the_resource_and_shown(tmp_path: Path) -> None:
    async with control_world(tmp_path, targetUploadRatio=0.1) as w:
        await w.shows(f"{SERVICE}/budget", b"10")
        await w.set(f"{SERVICE}/budget", b"25")
        await w.shows(f"{SERVICE}/budget", b"25")
        assert (await w.spec())["targetUploadRatio"] == 0.25
        # one that an operator sets
        body = await w.client.get("jointinferenceservices", "helmet")
        body["spec"]["edgeWorker"]["targetUploadRatio"] = 0.5
        await w.client.apply(body)
        await w.shows(f"{SERVICE}/budget", b"50")


async def test_a_bridge_that_starts_before_the_global_manager_waits_for_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w, bridge_with_control(w) as bridged:
        await bridged.shows("availability", b"online")
        await asyncio.sleep(20)
        async with w.gm(), w.node("edge0"), w.node("cloud0"):
            await w.apply(model("small"), model("big"), service())
            await eventually(lambda: bridged.entity(SERVICE, "budget").get("platform") == "number", 60)
            await bridged.set(f"{SERVICE}/budget", b"25")
            await bridged.shows(f"{SERVICE}/budget", b"25")


async def test_a_service_that_the_global_manager_does_not_have_hides_no_other_budget(tmp_path: Path) -> None:
    async with control_world(tmp_path) as w:
        await StandInSystem(w.core.bus).status(status_document("absent"))
        await eventually(lambda: "ji_default_absent" in w.core.documents)
        await w.gm.apply(service("second", edge_worker={"targetUploadRatio": 0.2}))
        await w.shows("ji_default_second/budget", b"20")


async def test_a_service_whose_costs_decide_has_no_budget(tmp_path: Path) -> None:
    costs = {"miss": 10, "upload": 0.2}
    async with control_world(tmp_path, costs=costs) as w:
        await eventually(lambda: set(w.entity(SERVICE, "budget")) <= {"platform"}, 60)
        await w.set(f"{SERVICE}/budget", b"25")
        await eventually(lambda: b"costs decide" in (w.core.state("system/last_problem") or b""))
        assert "targetUploadRatio" not in await w.spec()


async def test_a_switch_drains_a_node_and_makes_it_schedulable_again(tmp_path: Path) -> None:
    async with control_world(tmp_path) as w:
        await w.shows(f"{NODE}/drained", b"OFF")
        await w.set(f"{NODE}/drained", b"ON")
        await w.shows(f"{NODE}/drained", b"ON")
        assert await w.is_drained()
        await w.set(f"{NODE}/drained", b"OFF")
        await w.shows(f"{NODE}/drained", b"OFF")
        assert not await w.is_drained()


async def test_a_retained_command_is_old_and_ignored(tmp_path: Path) -> None:
    async with control_world(tmp_path, (f"{NODE}/drained", b"ON")) as w:
        await w.shows(f"{NODE}/drained", b"OFF")
        await asyncio.sleep(20)
        assert not await w.is_drained()


async def test_commands_for_which_there_is_no_space_are_counted(tmp_path: Path) -> None:
    async with control_world(tmp_path) as w:
        await w.shows(f"{NODE}/drained", b"OFF")
        await asyncio.gather(*(w.set(f"{NODE}/drained", b"OFF" if number % 2 else b"ON") for number in range(100)))
        await eventually(lambda: int(w.core.state("system/undelivered") or b"0") > 50, 60)
        await w.shows(f"{NODE}/drained", b"OFF")


async def test_on_kubernetes_home_assistant_only_sees_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise ApiRefusedError("NotAllowed", "this global manager works on Kubernetes: use kubectl")

    monkeypatch.setattr(Client, "events", refuse)
    async with control_world(tmp_path, targetUploadRatio=0.1) as w:
        await w.shows(f"{SERVICE}/budget_value", b"10")
        assert w.entity(SERVICE, "budget_value")["platform"] == "sensor"
        assert w.entity(NODE, "is_drained")["platform"] == "binary_sensor"
        await w.set(f"{NODE}/drained", b"ON")
        await asyncio.sleep(10)
        assert not await w.is_drained()


@pytest.mark.parametrize("payload", [b"", b"toggle", b"\xff" * 1000])
async def test_a_command_that_makes_no_sense_changes_nothing_and_is_shown(tmp_path: Path, payload: bytes) -> None:
    async with control_world(tmp_path) as w:
        await w.shows(f"{NODE}/drained", b"OFF")
        await w.set(f"{NODE}/drained", payload)
        await eventually(lambda: b"send ON or OFF" in (w.core.state("system/last_problem") or b""))
        assert not await w.is_drained()
