"""Retained occupancy events: GM clears those that no service has any longer, and no others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from halimede import topics
from halimede.contract.examples import EXAMPLES
from services.gm.cluster.local import LocalCluster
from tests.integration.gm_world import World, model, service, world
from tests.simulated import eventually

pytestmark = pytest.mark.simulated


def with_occupancy(*cameras: str, **source: Any) -> dict[str, Any]:
    return service(edge_worker={"source": {"cameras": list(cameras)} if cameras else source, "occupancy": {}})


async def publish(w: World, *cameras: str) -> None:
    """Publish an event of each camera, as a worker does."""
    for camera in cameras:
        event = msgspec.structs.replace(EXAMPLES[topics.OCCUPANCY.id], camera=camera)
        await w.operator.publish(topics.OCCUPANCY.at(ns="default", service="helmet", camera=camera), event)


async def occupied(w: World, *cameras: str) -> None:
    """Apply a service that has published an event of each camera."""
    await w.apply(model("small"), model("big"), with_occupancy(*cameras))
    await publish(w, *cameras)
    await asyncio.sleep(5)


def retained(w: World) -> str:
    """Return the cameras with a retained event."""
    addresses = {c: topics.OCCUPANCY.at(ns="default", service="helmet", camera=c) for c in ("cam0", "cam1", "helmet")}
    return " ".join(camera for camera, address in addresses.items() if w.broker.retained_payload(address.text))


async def test_events_of_a_deleted_service_are_cleared_also_the_last_ones_of_its_workers(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm():
        await occupied(w, "cam0", "cam1")
        assert retained(w) == "cam0 cam1"
        await w.ask("delete", plural="jointinferenceservices", name="helmet")
        await eventually(lambda: not retained(w))
        await publish(w, "cam1")
        await eventually(lambda: not retained(w))


@pytest.mark.parametrize(
    ("changed", "remaining"),
    [
        (service(), ""),
        (with_occupancy("cam1", "cam2"), "cam1"),
        (with_occupancy(path="/pictures"), "cam0 cam1 helmet"),
        (service(edge_worker={"occupancy": {}}), "helmet"),
    ],
    ids=["no occupancy", "another camera", "a folder", "no source: the service's own camera"],
)
async def test_events_that_a_changed_service_no_longer_has_are_cleared(
    tmp_path: Path, changed: dict[str, Any], remaining: str
) -> None:
    async with world(tmp_path) as w, w.gm():
        await occupied(w, "cam0", "cam1", "helmet")
        await w.apply(changed)
        await eventually(lambda: retained(w) == remaining)
        await asyncio.sleep(10)
        assert retained(w) == remaining


@pytest.mark.parametrize("is_complete", [True, False])
async def test_a_gm_that_starts_clears_what_is_of_no_service_unless_its_store_was_lost(
    tmp_path: Path, is_complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalCluster, "complete", is_complete)
    async with world(tmp_path) as w:
        await publish(w, "cam0")
        async with w.gm():
            await asyncio.sleep(10)
            assert retained(w) == ("" if is_complete else "cam0")


async def test_events_of_a_service_that_exists_and_cannot_be_read_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalCluster, "complete", True)
    monkeypatch.setattr(LocalCluster, "exists", lambda *_: True)
    async with world(tmp_path) as w, w.gm():
        await publish(w, "cam0")
        await asyncio.sleep(10)
        assert retained(w) == "cam0"


async def test_events_of_made_up_services_are_cleared_also_when_no_more_cameras_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalCluster, "complete", True)
    monkeypatch.setattr("services.gm.occupancy_topics.MAX_CAMERAS", 2)
    async with world(tmp_path) as w, w.gm():
        await w.apply(model("small"), model("big"), with_occupancy("cam0", "cam1"))
        await publish(w, "cam0", "cam1")
        addresses = [topics.OCCUPANCY.at(ns="default", service=f"made-up-{i}", camera="cam0") for i in range(20)]
        for address in addresses:
            await w.operator.publish(address, EXAMPLES[topics.OCCUPANCY.id])
        await eventually(lambda: not any(w.broker.retained_payload(address.text) for address in addresses))
        assert retained(w) == "cam0 cam1"
        assert len(w.manager._plane.occupancy._cameras) == 1


async def test_services_whose_events_were_cleared_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalCluster, "complete", True)
    async with world(tmp_path) as w, w.gm():
        await publish(w, "cam0", "cam1")
        await eventually(lambda: not retained(w))
        await asyncio.sleep(5)
        occupancy = w.manager._plane.occupancy
        assert (occupancy._cameras, occupancy.queue._last) == ({}, {})


async def test_events_are_cleared_when_the_broker_is_back(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.gm():
        await occupied(w, "cam0")
        await w.ask("delete", plural="jointinferenceservices", name="helmet")
        w.bus.cut()
        await asyncio.sleep(5)
        await publish(w, "cam0")
        assert retained(w) == "cam0"
        w.bus.heal()
        await eventually(lambda: not retained(w))
