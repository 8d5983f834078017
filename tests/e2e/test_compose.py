"""docker-compose.yml under podman: the demo's frames, and each container killed under load."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest

from halimede import topics
from halimede.bus.mqtt import MqttBus, MqttSettings
from halimede.cli.client import Client
from halimede.cli.manifests import load
from halimede.errors import BusError
from halimede.frames.payloads import new_id, pack
from halimede.messages import Frame, Result, StatusDocument
from tests.e2e.compose import Compose, missing, running
from tests.e2e.running import digits
from tests.inbox import Inbox
from tests.simulated import eventually

WHY = missing()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(420), pytest.mark.skipif(bool(WHY), reason=WHY)]

FPS = 25.0
#: seconds for podman and two LCs on a busy machine
PATIENCE = 90.0
#: frames that the broker may have had in hand when it was killed, and no worker yet: those of two seconds
IN_HAND = int(2 * FPS)


class Deployment:
    """The service on it: frames that the broker took for somebody, and their answers."""

    def __init__(self, bus: MqttBus) -> None:
        self.bus = bus
        self.accepted: set[str] = set()
        self.results: Inbox[Result] = Inbox()
        self.statuses: Inbox[StatusDocument] = Inbox()

    async def follow(self) -> None:
        await self.bus.subscribe(topics.RESULT.filter(ns="default", service="digits"), self.results)
        names = {"ns": "default", "plural": "jointinferenceservices", "name": "digits"}
        await self.bus.subscribe(topics.STATUS.filter(**names), self.statuses)

    @property
    def status(self) -> StatusDocument | None:
        return self.statuses.deliveries[-1].body if self.statuses.deliveries else None

    @property
    def answered(self) -> set[str]:
        return set(self.results.read(lambda result: result.id))

    @property
    def unanswered(self) -> set[str]:
        return self.accepted - self.answered

    def metric(self, key: str) -> float:
        metrics = self.status.status.metrics if self.status else []
        return next((float(m.value) for m in metrics if m.key == key), -1.0)

    async def send(self, pictures: list[bytes]) -> None:
        """Publish as a camera; what the broker refuses or cannot take is not accepted."""
        address = topics.CAMERA_FRAME.at(ns="default", camera="cam0")
        for number, picture in enumerate(pictures):
            frame = Frame(id=new_id(), camera="cam0", sequence=number, encoding="png", data=memoryview(picture))
            try:
                if await self.bus.publish(address, pack(frame)):
                    self.accepted.add(frame.id.hex())
            except BusError:
                pass
            await asyncio.sleep(1 / FPS)


async def loaded(compose: Compose, deployment: Deployment, container: str, pictures: list[bytes]) -> None:
    """Send pictures, and kill a container among them."""
    sending = asyncio.create_task(deployment.send(pictures))
    await asyncio.sleep(2.0)
    await compose.kill(container)
    await sending


async def test_the_demos_frames_are_answered_while_each_container_is_killed(tmp_path: Path) -> None:
    with running(tmp_path) as compose:
        await eventually((compose.credentials / "password").exists, PATIENCE)
        settings = MqttSettings.from_url("mqtt://127.0.0.1:1883", credentials=compose.credentials)
        bus = MqttBus(f"test-{secrets.token_hex(4)}", settings)
        async with Client(bus) as client:
            deployment = Deployment(bus)
            await deployment.follow()
            for manifest in load([str(tmp_path / "examples" / "digits")]):
                await client.apply(manifest.resource.body)
            await eventually(lambda: deployment.metric("lost") == 0, PATIENCE)
            try:
                await answers_through_kills(compose, deployment)
            except BaseException as error:
                error.add_note(f"{deployment.status}\n{compose.logs()}")
                raise


async def answers_through_kills(compose: Compose, deployment: Deployment) -> None:
    pictures = digits()
    part = len(pictures) // 5
    await eventually(lambda: deployment.status is not None and deployment.status.status.phase == "Running", PATIENCE)
    await deployment.send(pictures[:part])
    for number, container in enumerate(("gm", "cloud0", "edge0"), 1):
        await loaded(compose, deployment, container, pictures[number * part : (number + 1) * part])
        await eventually(lambda: not deployment.unanswered, PATIENCE)
    assert len(deployment.accepted) >= 3 * part

    # a broker without persistence takes along what no worker has accepted; what one has accepted is answered
    await loaded(compose, deployment, "broker", pictures[4 * part :])
    await eventually(lambda: len(deployment.unanswered) <= IN_HAND, PATIENCE)
    before = len(deployment.answered)
    await deployment.send(pictures[:10])
    await eventually(lambda: len(deployment.answered) >= before + 10, PATIENCE)
    await eventually(lambda: deployment.metric("inferenceNumber") >= len(deployment.answered), PATIENCE)
    assert deployment.metric("lost") == 0
