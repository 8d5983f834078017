"""A whole system over a bridge: GM and a cloud node beyond it, an edge node and a camera at the place; its link cut."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from halimede import topics
from halimede.access.site import Principal
from halimede.bus import Delivery
from halimede.bus.mqtt import MqttBus
from halimede.cli.client import Client
from halimede.cli.manifests import load as load_manifests
from halimede.frames.payloads import new_id, pack
from halimede.messages import Frame, Result, StatusDocument
from halimede.topic import Role
from tests.bridged import Bridged, bridged
from tests.e2e.running import DIGITS, ROOT, digits
from tests.simulated import eventually
from tests.waiting import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PATIENCE = 60
SERVICE = "digits"


class Seen:
    """Results and the newest status as a consumer beyond the bridge has them, and results as the place's own has."""

    def __init__(self) -> None:
        self.results: dict[str, Result] = {}
        self.here: dict[str, Result] = {}
        self.sent: list[str] = []
        self.status: StatusDocument | None = None

    async def follow(self, viewer: MqttBus, gate: MqttBus) -> None:
        async def result(delivery: Delivery[Result]) -> None:
            self.results.setdefault(delivery.body.id, delivery.body)

        async def near(delivery: Delivery[Result]) -> None:
            self.here.setdefault(delivery.body.id, delivery.body)

        async def status(delivery: Delivery[StatusDocument]) -> None:
            self.status = delivery.body

        async def cleared(_: Any) -> None:
            self.status = None

        wanted = topics.RESULT.filter(ns="default", service=SERVICE)
        await viewer.subscribe(wanted, result)
        await gate.subscribe(wanted, near)
        names = {"ns": "default", "plural": "jointinferenceservices", "name": SERVICE}
        await viewer.subscribe(topics.STATUS.filter(**names), status, cleared=cleared)

    def phase(self) -> str:
        return self.status.status.phase if self.status else ""

    def generation(self) -> int:
        return self.status.status.observed_generation if self.status else 0

    def metric(self, key: str) -> float:
        metrics = self.status.status.metrics if self.status else []
        return next((float(m.value) for m in metrics if m.key == key), 0.0)

    async def send(self, camera: MqttBus, pictures: list[bytes]) -> list[str]:
        ids = []
        for number, picture in enumerate(pictures):
            frame = Frame(id=new_id(), camera="cam0", sequence=number, encoding="png", data=memoryview(picture))
            ids.append(frame.id.hex())
            await camera.publish(topics.CAMERA_FRAME.at(ns="default", camera="cam0"), pack(frame))
            await asyncio.sleep(0.02)
        self.sent += ids
        return ids


@asynccontextmanager
async def process(world: Bridged, name: str, *words: str, here: bool = False) -> AsyncIterator[None]:
    command = [sys.executable, "-m", "halimede", *words, "--broker", world.url(here=here), "--http", "off"]
    environment = {**os.environ, "HALIMEDE_LOG": "json", "HALIMEDE_HOME": str(world.folder / "home")}
    with (world.folder / f"{name}.log").open("wb") as log:
        started = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        yield
        assert started.poll() is None, (world.folder / f"{name}.log").read_text()
    finally:
        started.terminate()
        await asyncio.to_thread(started.wait, patience(60))


@asynccontextmanager
async def system(world: Bridged) -> AsyncIterator[Client]:
    """Start GM, both LCs and a client of GM."""
    async with AsyncExitStack() as stack:
        home, site = world.folder / "home", world.folder
        gm = ["gm", "--store", str(home / "gm"), "--credentials", str(site / "gm")]
        await stack.enter_async_context(process(world, "gm", *gm))
        for node, role in (("edge0", "edge"), ("cloud0", "cloud")):
            lc = ["lc", "--node", node, "--home", str(home), "--credentials", str(site / "nodes" / node)]
            lc += ["--label", f"node-role.kubernetes.io/{role}="]
            await stack.enter_async_context(process(world, node, *lc, here=role == "edge"))
        settings = world.settings(Principal(Role.OPERATOR, "admin"), here=False)
        client = Client(MqttBus("t-operator", settings), patience_s=PATIENCE)  # processes take their time to come up
        yield await stack.enter_async_context(client)


async def test_a_place_goes_on_without_its_link_and_nothing_that_it_accepted_is_lost(tmp_path: Path) -> None:
    pictures = digits()
    # passwords: Mosquitto 2.0.11 may never end a TLS handshake that is broken off (docs/deploy.md)
    async with bridged(tmp_path, secure=False) as world, system(world) as client:
        viewer = await world.client(Principal(Role.CONSUMER, "viewer"))
        gate = await world.client(Principal(Role.CONSUMER, "gate"))
        camera = await world.client(Principal(Role.CAMERA, "cam0"))
        seen = Seen()
        await seen.follow(viewer, gate)
        for manifest in load_manifests([str(DIGITS)]):
            await client.apply(manifest.resource.body)
        await eventually(lambda: seen.phase() == "Running", PATIENCE)

        # the link is there: hard samples go up, their answers come back
        first = await seen.send(camera, pictures[:100])
        await eventually(lambda: set(first) <= set(seen.results), PATIENCE)
        assert any(seen.results[id_].by == "cloud" for id_ in first)

        # the link is cut: the edge answers all, who is there hears it, nobody beyond does
        world.link.cut()
        second = await seen.send(camera, pictures[100:200])
        await eventually(lambda: set(second) <= set(seen.here), PATIENCE)
        assert all(seen.here[id_].by == "edge" for id_ in second)
        assert any(seen.here[id_].degraded for id_ in second)
        assert not set(second) & set(seen.results)

        # what is applied meanwhile cannot arrive; the service goes on as it was
        manifests = {m.resource.body["kind"]: m.resource.body for m in load_manifests([str(DIGITS)])}
        edited = manifests["JointInferenceService"]
        edited["spec"]["edgeWorker"]["deadlineMs"] = 2000
        await client.apply(edited)

        # the link is back: all that was answered arrives, the edit too, and samples go up again
        world.link.heal()
        await eventually(lambda: set(second) <= set(seen.results), PATIENCE)
        await eventually(lambda: seen.generation() == 2 and seen.phase() == "Running", PATIENCE)
        for _ in range(10):  # the connection for samples comes back in its own time
            third = await seen.send(camera, pictures[200:300])
            await eventually(lambda third=third: set(third) <= set(seen.results), PATIENCE)
            if any(seen.results[id_].by == "cloud" for id_ in third):
                break
        assert any(seen.results[id_].by == "cloud" for id_ in third)
        await eventually(lambda: seen.metric("inferenceNumber") == len(seen.sent), PATIENCE)
        assert seen.metric("lost") == 0
        assert set(seen.results) == set(seen.sent)

        await client.delete("jointinferenceservices", SERVICE)
        await eventually(lambda: seen.status is None, PATIENCE)
